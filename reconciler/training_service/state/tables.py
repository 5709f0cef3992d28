"""Tables and indexes of the database, and the statements that bring those of earlier versions up to date."""

from __future__ import annotations

import sqlite3

from reconciler.training_service.state.rows import LABEL_VALUE

SCHEMA_VERSION = 8

TABLES = """
CREATE TABLE IF NOT EXISTS jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    collection TEXT NOT NULL,
    project TEXT NOT NULL,
    project_number TEXT NOT NULL,
    location TEXT NOT NULL,
    job_id TEXT NOT NULL,
    body TEXT NOT NULL,
    head TEXT NOT NULL DEFAULT '',
    images TEXT NOT NULL,
    state TEXT NOT NULL,
    create_time TEXT NOT NULL,
    start_time TEXT NOT NULL,
    end_time TEXT NOT NULL,
    update_time TEXT NOT NULL,
    error_code INTEGER NOT NULL,
    error_message TEXT NOT NULL,
    error_details TEXT NOT NULL DEFAULT '{}',
    etag TEXT NOT NULL,
    gcs_secret TEXT NOT NULL UNIQUE,
    backing TEXT NOT NULL DEFAULT '',
    model TEXT NOT NULL DEFAULT '',
    revision INTEGER NOT NULL DEFAULT 0,
    UNIQUE (collection, project_number, location, job_id)
);
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state);
CREATE TABLE IF NOT EXISTS runs (
    run_id TEXT PRIMARY KEY,
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    trial INTEGER NOT NULL DEFAULT 0,
    UNIQUE (job, number)
);
CREATE TABLE IF NOT EXISTS trials (
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
    error_details TEXT NOT NULL DEFAULT '{}',
    PRIMARY KEY (job, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS buckets (
    name TEXT PRIMARY KEY,
    generation INTEGER NOT NULL,
    created TEXT NOT NULL,
    body TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS objects (
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
CREATE TABLE IF NOT EXISTS announced (
    bucket TEXT NOT NULL,
    name TEXT NOT NULL,
    inode INTEGER NOT NULL,
    md5 TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (bucket, name, inode)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS models (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    project TEXT NOT NULL,
    project_number TEXT NOT NULL,
    location TEXT NOT NULL,
    model_id TEXT NOT NULL,
    body TEXT NOT NULL,
    versions INTEGER NOT NULL,
    create_time TEXT NOT NULL,
    update_time TEXT NOT NULL,
    UNIQUE (project_number, location, model_id)
);
CREATE TABLE IF NOT EXISTS model_versions (
    model INTEGER NOT NULL REFERENCES models (id) ON DELETE CASCADE,
    version_id INTEGER NOT NULL,
    body TEXT NOT NULL,
    pipeline TEXT NOT NULL,
    create_time TEXT NOT NULL,
    update_time TEXT NOT NULL,
    PRIMARY KEY (model, version_id)
);
CREATE TABLE IF NOT EXISTS model_aliases (
    model INTEGER NOT NULL,
    alias TEXT NOT NULL,
    version_id INTEGER NOT NULL,
    PRIMARY KEY (model, alias),
    FOREIGN KEY (model, version_id) REFERENCES model_versions (model, version_id) ON DELETE CASCADE
) WITHOUT ROWID;
"""
"""Tables of the database; those of jobs, runs and trials have the fields of the records.

The head of a job is its name and labels once more, from which it is known when its body can't be read.
`models.versions` is the number of the model's last version: numbers of deleted ones aren't used again.
"""

_INDEXES = (
    "DROP INDEX IF EXISTS jobs_by_label",  # before version 7 it was on the body alone
    f"CREATE INDEX IF NOT EXISTS jobs_by_label ON jobs ({LABEL_VALUE})",
    # A list continues in this index from the end of its last page.
    "CREATE INDEX IF NOT EXISTS jobs_by_place ON jobs (collection, project_number, location, id, revision)",
    # Older versions compare revisions to find changed rows.
    "CREATE TRIGGER IF NOT EXISTS jobs_revised AFTER UPDATE ON jobs WHEN NEW.revision = OLD.revision BEGIN"
    " UPDATE jobs SET revision = OLD.revision + 1 WHERE id = NEW.id; END",
)
# Before version 3 jobs had no trials.
_ADD_TRIALS = ("ALTER TABLE runs ADD COLUMN trial INTEGER NOT NULL DEFAULT 0",)
_ADD_REVISIONS = ("ALTER TABLE jobs ADD COLUMN revision INTEGER NOT NULL DEFAULT 0",)
# Before version 7 a job's name and labels were in its body alone.
_ADD_HEADS = (
    "ALTER TABLE jobs ADD COLUMN head TEXT NOT NULL DEFAULT ''",
    "UPDATE jobs SET head = json_patch('{}', json_object('displayName', json_extract(body, '$.displayName'),"
    " 'labels', json_extract(body, '$.labels'))) WHERE json_valid(body)",
)
# Before version 8 there were no pipelines.
_ADD_PIPELINES = (
    "ALTER TABLE jobs ADD COLUMN backing TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE jobs ADD COLUMN model TEXT NOT NULL DEFAULT ''",
)
# Before version 5 no end had a recorded cause.
_ADD_CAUSES = "ALTER TABLE {} ADD COLUMN error_details TEXT NOT NULL DEFAULT '{{}}'"
# Before version 4 `objects` was WITHOUT ROWID. SQLite stores such a table like an index, where a row of
# over a quarter of a page takes a further page of its own.
_RENAME_OLD_OBJECTS = ("ALTER TABLE objects RENAME TO objects_3",)
_COPY_OLD_OBJECTS = ("INSERT INTO objects SELECT * FROM objects_3", "DROP TABLE objects_3")


def statements(connection: sqlite3.Connection) -> list[str]:
    """Return the statements that bring the existing tables to this version."""
    runs, jobs = (_columns(connection, table) for table in ("runs", "jobs"))
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    objects = version < 4 and _columns(connection, "objects")
    ending = {table: _columns(connection, table) for table in ("jobs", "trials")}
    return [
        *(_ADD_TRIALS if runs and "trial" not in runs else ()),
        *(_ADD_REVISIONS if jobs and "revision" not in jobs else ()),
        *(_ADD_HEADS if jobs and "head" not in jobs else ()),
        *(_ADD_PIPELINES if jobs and "backing" not in jobs else ()),
        *(_ADD_CAUSES.format(name) for name, has in ending.items() if has and "error_details" not in has),
        *(_RENAME_OLD_OBJECTS if objects else ()),
        *filter(str.strip, TABLES.split(";")),
        *(_COPY_OLD_OBJECTS if objects else ()),
        *_INDEXES,
        f"PRAGMA user_version = {SCHEMA_VERSION}",
    ]


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {row["name"] for row in connection.execute(f"PRAGMA table_info({table})")}
