BEGIN TRANSACTION;
CREATE TABLE announced (
    bucket TEXT NOT NULL,
    name TEXT NOT NULL,
    inode INTEGER NOT NULL,
    md5 TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (bucket, name, inode)
) WITHOUT ROWID;
CREATE TABLE buckets (
    name TEXT PRIMARY KEY,
    generation INTEGER NOT NULL,
    created TEXT NOT NULL,
    body TEXT NOT NULL
);
INSERT INTO "buckets" VALUES('reconciler-staging',1795441445186380,'2026-11-23T13:44:05.186380Z','{}');
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    collection TEXT NOT NULL,
    project TEXT NOT NULL,
    project_number TEXT NOT NULL,
    location TEXT NOT NULL,
    job_id TEXT NOT NULL,
    body TEXT NOT NULL,
    images TEXT NOT NULL,
    state TEXT NOT NULL,
    create_time TEXT NOT NULL,
    start_time TEXT NOT NULL,
    end_time TEXT NOT NULL,
    update_time TEXT NOT NULL,
    error_code INTEGER NOT NULL,
    error_message TEXT NOT NULL,
    etag TEXT NOT NULL,
    gcs_secret TEXT NOT NULL UNIQUE,
    revision INTEGER NOT NULL DEFAULT 0,
    UNIQUE (collection, project_number, location, job_id)
);
INSERT INTO "jobs" VALUES(1,'customJobs','local','642872260880','local','8757399389692438461','{"displayName": "tiny_f454d14af75bbfbc", "labels": {"reconciler-source": "local", "reconciler-key": "6rkncsxxlo73yfrrtnrrqaqbtzfhz5joewikdkja3lykvsuj3iba", "reconciler-attempt": "1", "reconciler-code": "y5t6h4hnxpqjesaxxruv6jrwvoypnyoidku3na3mrdkziuihjk3q", "reconciler-try": "f2lv5fkqv7ttomliqy5b6krsqm"}, "jobSpec": {"baseOutputDirectory": {"outputUriPrefix": "gs://models/tiny"}, "workerPoolSpecs": [{"machineSpec": {"machineType": "n1-standard-4"}, "pythonPackageSpec": {"executorImageUri": "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-0:latest", "pythonModule": "task", "packageUris": ["gs://reconciler-staging/reconciler/packages/b071141b9df94b114b2bf4bcd878cc178409456c36f6e8e9927b3bf43ea9f9a3/tiny_job_code-0.0.0.tar.gz"]}, "replicaCount": "1"}]}}','{}','SUCCEEDED','2026-11-23T13:44:06.106179Z','2026-11-23T13:44:46.939506Z','2026-11-23T13:44:47.321092Z','2026-11-23T13:44:47.321092Z',0,'','uWLK5XvFaC6v','Qfag_Kgf1-yoi1pNnaMTtLp_aKk5V4vg',3);
INSERT INTO "jobs" VALUES(2,'customJobs','local','642872260880','local','5982334494456954788','{"displayName": "tiny2_d6df43119de487f9", "labels": {"reconciler-source": "local", "reconciler-key": "23pugem54sd7sf3cnzp4h5jvewcbksgjaeqoruodolo2y77ycpxq", "reconciler-attempt": "1", "reconciler-code": "y5t6h4hnxpqjesaxxruv6jrwvoypnyoidku3na3mrdkziuihjk3q", "reconciler-try": "gzfgex3aqq5va4i4wn5vtb7ltm"}, "jobSpec": {"baseOutputDirectory": {"outputUriPrefix": "gs://models/tiny"}, "workerPoolSpecs": [{"machineSpec": {"machineType": "n1-standard-4"}, "pythonPackageSpec": {"executorImageUri": "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-0:latest", "pythonModule": "task", "packageUris": ["gs://reconciler-staging/reconciler/packages/2a9807bf6b205ed98b4ec28abf3b069d1f6f2273745017be5db2de9b86b3d2d1/tiny2_job_code-0.0.0.tar.gz"]}, "replicaCount": "1"}]}}','{}','SUCCEEDED','2026-11-23T13:45:20.071566Z','2026-11-23T13:45:31.475460Z','2026-11-23T13:45:31.688767Z','2026-11-23T13:45:31.688767Z',0,'','JBTn8qREAHae','O18z6ISc6xbnU8KHGxXK1KnKnufUFrsm',3);
CREATE TABLE objects (
    bucket TEXT NOT NULL,
    name TEXT NOT NULL,
    generation INTEGER NOT NULL,
    metageneration INTEGER NOT NULL,
    created TEXT NOT NULL,
    updated TEXT NOT NULL,
    size INTEGER NOT NULL,
    md5 TEXT NOT NULL,
    crc32c TEXT NOT NULL,
    inode INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (bucket, name)
);
INSERT INTO "objects" VALUES('reconciler-staging','reconciler/claims/local/genesis',1795441445619280,1,'2026-11-23T13:44:05.619280Z','2026-11-23T13:44:05.619280Z',46,'h/ru4zEusigya0rEDIsJeQ==','6UeeNw==',2163149,1795441445536347452,'{"cacheControl": "no-store", "contentType": "application/json", "metadata": {"genesis": "{\"formatVersion\":1,\"source\":\"local\"}"}}');
INSERT INTO "objects" VALUES('reconciler-staging','reconciler/packages/b071141b9df94b114b2bf4bcd878cc178409456c36f6e8e9927b3bf43ea9f9a3/tiny_job_code-0.0.0.tar.gz',1795441445723276,1,'2026-11-23T13:44:05.723276Z','2026-11-23T13:44:05.723276Z',10268,'aFWtK4n9X74vfDUwMsErPg==','WO79VA==',2163087,1795441445679439582,'{"contentType": "application/gzip"}');
INSERT INTO "objects" VALUES('reconciler-staging','reconciler/claims/local/local/local/6rkncsxxlo73yfrrtnrrqaqbtzfhz5joewikdkja3lykvsuj3iba/1',1795441487867272,1,'2026-11-23T13:44:47.867272Z','2026-11-23T13:44:47.867272Z',569,'78nNMCI9CQAbuxHRpepQ6g==','5XH9DA==',2162860,1795441487827593324,'{"cacheControl": "no-store", "contentType": "application/json", "metadata": {"claim": "{\"format_version\":1,\"state\":\"bound\",\"job_name\":\"tiny_f454d14af75bbfbc\",\"base_name\":\"tiny\",\"api_version\":\"aiplatform.googleapis.com/v1\",\"kind\":\"CustomJob\",\"path\":\"jobs/tiny.yaml\",\"on_delete\":\"keep\",\"tries\":[\"f2lv5fkqv7ttomliqy5b6krsqm\"],\"resource\":\"projects/642872260880/locations/local/customJobs/8757399389692438461\",\"ended\":\"SUCCEEDED\",\"rerun\":\"e3b0c44298fc1c14\",\"labels\":\"f86b944f5ab737d4\",\"owner\":\"process 2049 on host\",\"key\":\"6rkncsxxlo73yfrrtnrrqaqbtzfhz5joewikdkja3lykvsuj3iba\",\"attempt\":1}"}}');
INSERT INTO "objects" VALUES('reconciler-staging','reconciler/packages/2a9807bf6b205ed98b4ec28abf3b069d1f6f2273745017be5db2de9b86b3d2d1/tiny2_job_code-0.0.0.tar.gz',1795441519951286,1,'2026-11-23T13:45:19.951286Z','2026-11-23T13:45:19.951286Z',10268,'iNgeAq/utB8QKR6ber8fdw==','OhShHQ==',2163179,1795441519911334439,'{"contentType": "application/gzip"}');
INSERT INTO "objects" VALUES('reconciler-staging','reconciler/claims/local/local/local/23pugem54sd7sf3cnzp4h5jvewcbksgjaeqoruodolo2y77ycpxq/1',1795441532127262,1,'2026-11-23T13:45:32.127262Z','2026-11-23T13:45:32.127262Z',571,'hU1cH3nBagEN23VU+2Zq4g==','CzOx0w==',2163115,1795441532103716456,'{"cacheControl": "no-store", "contentType": "application/json", "metadata": {"claim": "{\"format_version\":1,\"state\":\"bound\",\"job_name\":\"tiny2_d6df43119de487f9\",\"base_name\":\"tiny2\",\"api_version\":\"aiplatform.googleapis.com/v1\",\"kind\":\"CustomJob\",\"path\":\"jobs/tiny.yaml\",\"on_delete\":\"keep\",\"tries\":[\"gzfgex3aqq5va4i4wn5vtb7ltm\"],\"resource\":\"projects/642872260880/locations/local/customJobs/5982334494456954788\",\"ended\":\"SUCCEEDED\",\"rerun\":\"e3b0c44298fc1c14\",\"labels\":\"e4644b439d5828f3\",\"owner\":\"process 4817 on host\",\"key\":\"23pugem54sd7sf3cnzp4h5jvewcbksgjaeqoruodolo2y77ycpxq\",\"attempt\":1}"}}');
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY,
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    trial INTEGER NOT NULL DEFAULT 0,
    UNIQUE (job, number)
);
INSERT INTO "runs" VALUES('1-1-64aa0d63',1,1,0);
INSERT INTO "runs" VALUES('2-1-790313d7',2,1,0);
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO "settings" VALUES('page_key','"83f083557069e5123e8e6e7d8aaa02ee"');
INSERT INTO "settings" VALUES('port','45961');
INSERT INTO "settings" VALUES('token_secret','"zG2pmv2_q8uV2aq7MSVZuuUgt-wEN2o63S1405RboFE"');
INSERT INTO "settings" VALUES('images','{}');
INSERT INTO "settings" VALUES('claims_buckets','["reconciler-staging/reconciler/claims/"]');
INSERT INTO "settings" VALUES('generation','1795441532127262');
CREATE TABLE trials (
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    parameters TEXT NOT NULL,
    state TEXT NOT NULL,
    create_time TEXT NOT NULL,
    start_time TEXT NOT NULL,
    end_time TEXT NOT NULL,
    measurements TEXT NOT NULL,
    final TEXT NOT NULL,
    stopped_early INTEGER NOT NULL,
    message TEXT NOT NULL,
    PRIMARY KEY (job, number)
) WITHOUT ROWID;
CREATE INDEX jobs_by_state ON jobs (state);
CREATE INDEX jobs_by_place ON jobs (collection, project_number, location, id, revision);
CREATE TRIGGER jobs_revised AFTER UPDATE ON jobs WHEN NEW.revision = OLD.revision BEGIN UPDATE jobs SET revision = OLD.revision + 1 WHERE id = NEW.id; END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('jobs',2);
COMMIT;
PRAGMA user_version = 4;
