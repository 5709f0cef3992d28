"""Every method of the shipped discovery documents: served, with answers and errors as documented.

The `service` fixture checks the answers themselves; here every method gives all kinds of them.
"""

from __future__ import annotations

import errno
import json
from typing import Any

import jsonschema
import pytest

from reconciler.base.listener.message import Request, Response
from reconciler.training_service import application
from reconciler.training_service.http import discovery
from reconciler.training_service.http.message import json_response
from reconciler.training_service.scheduler.supervisor import Supervisor
from tests.support.training_service import contract
from tests.support.training_service.bodies import (
    ML,
    VERTEX,
    custom_job,
    ml_job,
    model,
    pipeline,
    tuning_job,
)
from tests.support.training_service.served import Answer, Service
from tests.support.training_service.supervised import FOR_TWO
from tests.support.waiting import until

OBJECT = "/storage/v1/b/bucket/o"


def served() -> dict[str, discovery.Method]:
    return {route.method.id: route.method for route in discovery.routes()}


def walk_through(service: Service) -> dict[str, Answer]:
    """Call each method once, successfully."""
    answers: dict[str, Answer] = {}
    supervisor = Supervisor(service.store, service.home, storage_url=lambda job: "", machine=FOR_TWO)
    kinds = {"customJobs": custom_job, "hyperparameterTuningJobs": tuning_job, "trainingPipelines": pipeline}
    for kind, make in kinds.items():
        prefix = f"aiplatform.projects.locations.{kind}."
        created = answers[prefix + "create"] = service.post(f"{VERTEX}/{kind}", make())
        name = "/v1/" + created.json["name"]
        answers[prefix + "get"] = service.get(name)
        answers[prefix + "list"] = service.get(f"{VERTEX}/{kind}")
        answers[prefix + "cancel"] = service.post(name + ":cancel")
        until(lambda: not supervisor.tick())  # a pipeline ends after its backing job
        answers[prefix + "delete"] = service.call("DELETE", name)
    models = "aiplatform.projects.locations.models."
    upload = {"model": model(), "modelId": "census"}
    answers[models + "upload"] = service.post(f"{VERTEX}/models:upload", upload)
    name = f"{VERTEX}/models/census"
    service.post(f"{VERTEX}/models:upload", {"model": model(), "parentModel": name.removeprefix("/v1/")})
    answers[models + "get"] = service.get(name)
    answers[models + "list"] = service.get(f"{VERTEX}/models")
    answers[models + "listVersions"] = service.get(f"{name}:listVersions")
    answers[models + "patch"] = service.call("PATCH", f"{name}?updateMask=labels", {"labels": {"a": "b"}})
    answers[models + "mergeVersionAliases"] = service.post(
        f"{name}@1:mergeVersionAliases", {"versionAliases": ["golden"]}
    )
    answers[models + "deleteVersion"] = service.call("DELETE", f"{name}@2:deleteVersion")
    answers[models + "delete"] = service.call("DELETE", name)
    answers["ml.projects.jobs.create"] = service.post(ML, ml_job())
    answers["ml.projects.jobs.get"] = service.get(ML + "/census_1")
    answers["ml.projects.jobs.list"] = service.get(ML)
    answers["ml.projects.jobs.patch"] = service.call(
        "PATCH", ML + "/census_1?updateMask=labels", {"labels": {"a": "b"}}
    )
    answers["ml.projects.jobs.getIamPolicy"] = service.get(ML + "/census_1:getIamPolicy")
    answers["ml.projects.jobs.cancel"] = service.post(ML + "/census_1:cancel")
    answers["storage.buckets.insert"] = service.post("/storage/v1/b?project=p", {"name": "bucket"})
    answers["storage.buckets.get"] = service.get("/storage/v1/b/bucket")
    answers["storage.buckets.getStorageLayout"] = service.get("/storage/v1/b/bucket/storageLayout")
    answers["storage.managedFolders.list"] = service.get("/storage/v1/b/bucket/managedFolders")
    answers["storage.buckets.list"] = service.get("/storage/v1/b?project=p")
    answers["storage.objects.insert"] = service.call(
        "POST", f"/upload{OBJECT}?uploadType=media&name=a", b"data"
    )
    answers["storage.objects.get"] = service.get(f"{OBJECT}/a")
    answers["storage.objects.list"] = service.get(OBJECT)
    answers["storage.objects.patch"] = service.call("PATCH", f"{OBJECT}/a", {"contentType": "a/b"})
    answers["storage.objects.copy"] = service.post(f"{OBJECT}/a/copyTo/b/bucket/o/b")
    answers["storage.objects.rewrite"] = service.post(f"{OBJECT}/a/rewriteTo/b/bucket/o/c")
    answers["storage.objects.move"] = service.post(f"{OBJECT}/a/moveTo/o/d")
    answers["storage.objects.compose"] = service.post(
        f"{OBJECT}/e/compose", {"sourceObjects": [{"name": "b"}]}
    )
    answers["storage.objects.delete"] = service.call("DELETE", f"{OBJECT}/d")
    answers["storage.buckets.getIamPolicy"] = service.get("/storage/v1/b/bucket/iam")
    policy = {"bindings": [{"role": "roles/viewer", "members": ["allUsers"]}]}
    answers["storage.buckets.setIamPolicy"] = service.call("PUT", "/storage/v1/b/bucket/iam", policy)
    answers["storage.buckets.testIamPermissions"] = service.get(
        "/storage/v1/b/bucket/iam/testPermissions?permissions=storage.objects.get"
    )
    service.post("/storage/v1/b?project=p", {"name": "emptied"})
    answers["storage.buckets.delete"] = service.call("DELETE", "/storage/v1/b/emptied")
    answers["iamcredentials.projects.serviceAccounts.generateAccessToken"] = service.post(
        "/v1/projects/-/serviceAccounts/me@example.com:generateAccessToken", {"scope": ["s"]}
    )
    body = {"resourceNames": ["projects/demo"], "filter": 'resource.labels.job_id="census_1"'}
    entry = {"logName": "projects/demo/logs/python", "resource": {"type": "global"}, "textPayload": "text"}
    answers["logging.entries.write"] = service.post("/v2/entries:write", {"entries": [entry]})
    answers["logging.entries.list"] = service.post("/v2/entries:list", body)
    return answers


@pytest.mark.slow
def test_every_method_of_the_documents_is_served(service: Service) -> None:
    answers = walk_through(service)
    assert {name: answer.status for name, answer in answers.items() if answer.status not in (200, 204)} == {}
    assert set(answers) == set(served()) == service.methods


UNSERVED = {
    f"GET {VERTEX}/trainingPipelines/1/operations": "without operations",
    f"POST {VERTEX}/models/1:export": "in the bucket that its artifactUri names",
    f"GET {VERTEX}/models/1/evaluations": "in the bucket that its artifactUri names",
    f"GET {VERTEX}/models/1/operations/2": "without operations",
    f"POST {VERTEX}/endpoints/1:predict": "load its files to predict",
    f"POST {VERTEX}/batchPredictionJobs": "load its files to predict",
    f"GET {VERTEX}/customJobs/1/operations": "without operations",
    f"GET {VERTEX}/notebookRuntimes": "use Google's for others",
    f"POST {ML.removesuffix('/jobs')}/models": "load its files to predict",
    f"POST {ML.removesuffix('/jobs')}/models/m:predict": "load its files to predict",
    f"POST {ML.removesuffix('/jobs')}/models/m/versions/v:explain": "load its files to predict",
    f"GET {ML.removesuffix('/jobs')}/models/m:getIamPolicy": "load its files to predict",
    f"GET {ML.removesuffix('/jobs')}:getConfig": "serves projects.jobs",
    "PATCH /storage/v1/b/bucket": "created with",
    "PUT /storage/v1/b/bucket/o/a": "Use storage.objects.patch",
    "GET /storage/v1/b/bucket/o/a/acl": "limits nobody",
    "GET /v2/projects/demo/logs": "entries.list",
    "POST /v1/projects/-/serviceAccounts/me@example.com:signBlob": "generateAccessToken",
}


@pytest.mark.slow
@pytest.mark.parametrize(("call", "instead"), UNSERVED.items())
def test_method_that_the_service_lacks_is_not_implemented(service: Service, call: str, instead: str) -> None:
    verb, path = call.split()
    answer = service.call(verb, path, {} if verb != "GET" else None)
    assert (answer.status, answer.json["error"]["status"]) == (501, "UNIMPLEMENTED")
    assert instead in answer.error


def test_every_method_of_the_apis_has_an_answer_for_what_to_use_instead(service: Service) -> None:
    assert service.get("/v1/projects/demo/nothing").status == 404
    lacking = {method for methods in discovery._all_methods().values() for _, method in methods} - {*served()}
    assert len(lacking) > 1000
    assert [method for method in lacking if not method.startswith(tuple(application._INSTEAD))] == []


EXAMPLES = {
    "projectsId": "demo",
    "locationsId": "us-central1",
    "customJobsId": "1",
    "hyperparameterTuningJobsId": "1",
    "trainingPipelinesId": "1",
    "modelsId": "none",
    "jobsId": "none",
    "serviceAccountsId": "me@example.com",
    "bucket": "none",
    "sourceBucket": "none",
    "destinationBucket": "none",
    "object": "none",
    "sourceObject": "none",
    "destinationObject": "none",
}


def requests() -> list[Any]:
    """Return a request for each way to reach a method: verb and path."""
    found = []
    for name in discovery.DOCUMENTS:
        document = discovery.document(name)
        for method in contract._walk(document["resources"]):
            path = f"/{document['servicePath']}{method.get('flatPath') or method['path']}".format(**EXAMPLES)
            path = path.replace("none:deleteVersion", "none@1:deleteVersion")
            found.append(pytest.param(method["httpMethod"], path, id=method["id"]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "path"), requests())
def test_every_method_gives_its_errors_as_documented(service: Service, verb: str, path: str) -> None:
    sent = None if verb in ("GET", "DELETE") else {"no such field": 1}
    answers = {
        "no token": service.call(verb, path, sent, token=""),
        "a web page": service.call(verb, path, sent, {"Origin": "http://x"}),
        "unknown parameter": service.call(verb, path + "?colour=red", sent),
        "wrong parameter": service.call(verb, path + "?prettyPrint=maybe", sent),
        "unknown field": service.call(verb, path, sent),
        "no JSON": service.call(verb, path, b"{" if sent else None),
        "unknown form": service.call(verb, path + "?alt=proto", sent),
        "no such method": service.call("TRACE", path, sent),
    }
    statuses = {what: answer.status for what, answer in answers.items()}
    asked = 404 if sent is None else 400
    lists = ("customJobs", "TuningJobs", "trainingPipelines", "/models", "/projects/demo/jobs", "/b")
    empty_list = path.endswith(lists) and verb == "GET"
    moved = path.endswith("/moveTo/o/none")  # takes no message
    assert statuses == {
        "no token": 401,
        "a web page": 403,
        "unknown parameter": 400,
        "wrong parameter": 400,
        "unknown field": 200 if empty_list else 404 if moved else asked,
        "no JSON": 200 if empty_list else 404 if moved else asked,
        "unknown form": 400,
        "no such method": 404,
    }


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "path"), requests())
def test_a_full_disk_is_told_as_such(
    service: Service, verb: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(request: Request) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(
        "reconciler.training_service.http.discovery.match", lambda *_: full(Request("GET", "/"))
    )
    answer = service.call(verb, path, None if verb in ("GET", "DELETE") else {})
    assert (answer.status, answer.json["error"]["status"]) == (503, "UNAVAILABLE")


def test_a_bug_is_told_without_its_traceback(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("reconciler.training_service.http.discovery.match", lambda *_: 1 / 0)
    answer = service.get(ML)
    assert answer.error == "INTERNAL: Internal error encountered."
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    "path", [ML, f"{VERTEX}/customJobs", f"{VERTEX}/trainingPipelines", "/_service/images"]
)
def test_a_full_database_is_told_and_leaves_nothing_half_done(service: Service, path: str) -> None:
    bodies = {
        ML: ml_job,
        f"{VERTEX}/customJobs": custom_job,
        f"{VERTEX}/trainingPipelines": pipeline,
        "/_service/images": lambda labels: {},
    }
    verb = "PUT" if path == "/_service/images" else "POST"
    large = {"labels": {f"k{number}": "x" * 60 for number in range(60)}}
    body = bodies[path](**large) | (
        {f"i{n}": {"python": "x" * 99} for n in range(99)} if verb == "PUT" else {}
    )
    with service.store.database.reading() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
    refused = service.call(verb, path, body)
    assert (refused.status, refused.json["error"]["status"]) == (503, "UNAVAILABLE")
    assert "full" in refused.error
    assert (service.store.is_busy(), service.store.setting("images")) == (False, None)
    assert service.call(verb, path, body).status == 200  # on a new connection, there is room


def answered(body: Any, status: int = 200, path: str = ML + "/a", verb: str = "GET") -> None:
    contract.check(Request.of(verb, path), json_response(body, status))


def test_the_check_itself_finds_what_is_wrong() -> None:
    good = {"jobId": "a", "state": "QUEUED", "createTime": "2026-01-02T03:04:05Z"}
    answered(good)
    wrong: list[Any] = [
        good | {"colour": "red"},
        good | {"state": "STARTING"},
        good | {"createTime": "yesterday"},
        good | {"createTime": "2026-01-02T03:04:05"},
        good | {"jobPosition": 1},
        good | {"trainingInput": {"workerCount": 1}},
        [],
    ]
    for body in wrong:
        with pytest.raises(jsonschema.ValidationError):
            answered(body)
    status = {"code": 404, "message": "m", "status": "NOT_FOUND"}
    answered({"error": status}, 404)
    bad: list[dict[str, Any]] = [
        {"code": 400},
        {"message": ""},
        {"status": "OK"},
        {"extra": 1},
        {"details": [{}]},
    ]
    for change in bad:
        with pytest.raises(jsonschema.ValidationError):
            answered({"error": status | change}, 404)
    with pytest.raises(jsonschema.ValidationError):
        answered({"error": status}, 404, OBJECT)  # an error of storage has a list of errors, too
    with pytest.raises(AssertionError):
        contract.check(
            Request.of("GET", ML), Response(200, (("Content-Type", "text/html"),), json.dumps({}).encode())
        )
