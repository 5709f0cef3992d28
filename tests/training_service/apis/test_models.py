"""Vertex AI's models over HTTP."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from reconciler.base.listener.message import Request
from reconciler.training_service.application import open_copy
from reconciler.training_service.state.records import number_of
from tests.support.training_service.bodies import VERTEX, model
from tests.support.training_service.served import Answer, Service

MODELS = f"{VERTEX}/models"
PLACE = f"projects/{number_of('demo')}/locations/us-central1"
NOW = "2026-01-02T03:04:05.000000Z"


def upload(service: Service, model_id: str = "census", **more: Any) -> Answer:
    return service.post(f"{MODELS}:upload", {"model": model(**more), "modelId": model_id})


def add_version(service: Service, model_id: str = "census", **more: Any) -> dict[str, Any]:
    """Upload a further version, a second after all that happened before."""
    service.clock.advance(1)
    sent = {"model": model(**more), "parentModel": f"projects/demo/locations/us-central1/models/{model_id}"}
    answer = service.post(f"{MODELS}:upload", sent)
    assert answer.status == 200, answer.content
    response: dict[str, Any] = answer.json["response"]
    return response


def get(service: Service, name: str = "census") -> dict[str, Any]:
    answer = service.get(f"{MODELS}/{name}")
    assert answer.status == 200, answer.content
    found: dict[str, Any] = answer.json
    return found


def merge(service: Service, version: int, *aliases: str) -> Answer:
    return service.post(f"{MODELS}/census@{version}:mergeVersionAliases", {"versionAliases": aliases})


def patch(service: Service, name: str, mask: str, **body: Any) -> Answer:
    return service.call("PATCH", f"{MODELS}/{name}?updateMask={mask}", body)


def aliases(service: Service) -> dict[str, list[str]]:
    """Return the aliases of each version, the newest first."""
    versions = service.get(f"{MODELS}/census:listVersions").json["models"]
    return {version["versionId"]: version.get("versionAliases", []) for version in versions}


def listed(service: Service, query: str = "") -> list[str]:
    answer = service.get(MODELS + query)
    assert answer.status == 200, answer.content
    return [each["name"].rpartition("/")[2] for each in answer.json.get("models", [])]


def fields_of(answer: Answer) -> list[str]:
    """Return the fields that a refusal names."""
    assert (answer.status, answer.json["error"]["status"]) == (400, "INVALID_ARGUMENT"), answer.content
    assert answer.json["error"]["message"].startswith("List of found errors:\t1.Field: ")
    return [each["field"] for each in answer.json["error"]["details"][0]["fieldViolations"]]


def test_first_upload_makes_a_model_with_a_default_version(service: Service) -> None:
    body = model(labels={"team": "risk"}, versionAliases=["golden"], versionDescription="first")
    operation = service.post(f"{MODELS}:upload", {"model": body}).json
    assert operation["done"] is True
    name, version = operation["response"]["model"], operation["response"]["modelVersionId"]
    prefix, _, number = name.rpartition("/")
    assert (prefix, len(number), version) == (f"{PLACE}/models", 19, "1")
    assert operation["name"].startswith(f"{name}/operations/")
    found = service.get(f"/v1/{name}").json
    assert found.pop("etag")
    assert found == body | {
        "name": name,
        "versionId": "1",
        "versionAliases": ["default", "golden"],
        **dict.fromkeys(("createTime", "updateTime", "versionCreateTime", "versionUpdateTime"), NOW),
        "modelSourceInfo": {"sourceType": "CUSTOM"},
    }


def test_upload_with_the_id_of_a_model_is_refused(service: Service) -> None:
    assert upload(service).json["response"]["model"] == f"{PLACE}/models/census"
    refused = upload(service)
    assert (refused.status, refused.json["error"]["status"]) == (409, "ALREADY_EXISTS")
    assert "A model with the id census already exists" in refused.error
    elsewhere = "/v1/projects/demo/locations/elsewhere/models:upload"
    assert service.post(elsewhere, {"model": model(), "modelId": "census"}).status == 200


def test_further_version_is_the_default_one_only_if_asked(service: Service) -> None:
    upload(service)
    assert add_version(service, artifactUri="gs://models/2")["modelVersionId"] == "2"
    assert aliases(service) == {"2": [], "1": ["default"]}
    assert get(service)["artifactUri"] == "gs://models/census"
    assert add_version(service, "census@1", versionAliases=["default"])["modelVersionId"] == "3"
    assert aliases(service) == {"3": ["default"], "2": [], "1": []}
    later = get(service)
    assert (later["createTime"], later["updateTime"], later["versionCreateTime"]) == (
        NOW,
        "2026-01-02T03:04:07.000000Z",
        "2026-01-02T03:04:07.000000Z",
    )


def test_further_version_keeps_the_models_name_and_has_labels_of_its_own(service: Service) -> None:
    upload(service, labels={"team": "risk", "stage": "a"})
    add_version(service, name="other", labels={"stage": "b"})
    second = get(service, "census@2")
    assert (second["displayName"], second["labels"]) == ("census", {"team": "risk", "stage": "b"})
    assert get(service)["labels"] == {"team": "risk", "stage": "a"}


@pytest.mark.parametrize("at", ["@", "%40"])
def test_version_is_found_by_its_id_and_by_its_alias(service: Service, at: str) -> None:
    upload(service)
    add_version(service, versionAliases=["golden"])
    found = {name: get(service, name)["versionId"] for name in ("census", f"census{at}-", f"census{at}1")}
    assert found == dict.fromkeys(found, "1")
    assert get(service, f"census{at}2") == get(service, f"census{at}golden")
    assert get(service, f"census{at}golden")["versionId"] == "2"


@pytest.mark.parametrize("name", ["other", "census@2", "census@golden", "census@0", f"census@{'9' * 30}"])
def test_name_of_no_model_or_version_is_not_found(service: Service, name: str) -> None:
    upload(service)
    answer = service.get(f"{MODELS}/{name}")
    expected = f"The resource projects/demo/locations/us-central1/models/{name} is not found."
    assert (answer.status, answer.error) == (404, f"NOT_FOUND: {expected}")
    assert service.get(f"{MODELS}/{name}:listVersions").status == 404
    assert patch(service, name, "labels").status == 404


@pytest.mark.parametrize(
    "parent",
    [
        "projects/demo/locations/us-central1/models/other",
        "projects/other/locations/us-central1/models/census",
        "projects/demo/locations/elsewhere/models/census",
    ],
)
def test_parent_that_this_place_lacks_is_not_found(service: Service, parent: str) -> None:
    upload(service)
    service.post(
        "/v1/projects/other/locations/us-central1/models:upload", {"model": model(), "modelId": "census"}
    )
    answer = service.post(f"{MODELS}:upload", {"model": model(), "parentModel": parent})
    assert (answer.status, answer.error) == (404, f"NOT_FOUND: The resource {parent} is not found.")


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({}, "model.display_name"),
        ({"model": model("x" * 129)}, "model.display_name"),
        ({"model": model(labels={"Team": "x"})}, "model.labels.Team"),
        ({"model": model(artifactUri="/models/census")}, "model.artifact_uri"),
        ({"model": model(versionAliases=["golden", "7"])}, "model.version_aliases[1]"),
        ({"model": model(versionAliases=["x"])}, "model.version_aliases[0]"),
        ({"model": model(versionAliases=["x" * 129])}, "model.version_aliases[0]"),
        ({"model": model(containerSpec={})}, "model.container_spec.image_uri"),
        ({"model": model(containerSpec={"imageUri": "https://i/j"})}, "model.container_spec.image_uri"),
        ({"model": model(containerSpec={"imageUri": "i", "env": [{}]})}, "model.container_spec.env[0].name"),
        ({"model": model(), "modelId": "1census"}, "model_id"),
        ({"model": model(), "modelId": "Census"}, "model_id"),
        ({"model": model(), "modelId": "c" * 64}, "model_id"),
        ({"model": model(), "parentModel": "census"}, "parent_model"),
    ],
)
def test_upload_tells_what_is_wrong_with_a_model(
    service: Service, request_: dict[str, Any], field: str
) -> None:
    assert fields_of(service.post(f"{MODELS}:upload", request_)) == [field]
    assert listed(service) == []


def test_longest_ids_and_aliases_are_taken(service: Service) -> None:
    longest, alias = "_" + "c" * 62, "g" + "A-" * 63 + "1"
    assert upload(service, longest, versionAliases=[alias]).status == 200
    assert get(service, f"{longest}@{alias}")["versionId"] == "1"


def test_alias_moves_to_the_version_that_gets_it(service: Service) -> None:
    upload(service, versionAliases=["golden"])
    add_version(service)
    changed = merge(service, 2, "golden", "default", "new").json
    assert (changed["versionId"], changed["versionAliases"]) == ("2", ["default", "golden", "new"])
    assert aliases(service) == {"2": ["default", "golden", "new"], "1": []}
    assert merge(service, 2, "-golden", "-never-given").json["versionAliases"] == ["default", "new"]
    assert merge(service, 1, "-new").status == 200
    assert merge(service, 2, "both", "-both", "default", "-default").status == 200
    assert aliases(service) == {"2": ["default", "new"], "1": []}


def test_merge_is_refused_with_what_is_wrong(service: Service) -> None:
    upload(service)
    assert fields_of(merge(service, 1)) == ["version_aliases"]
    assert fields_of(merge(service, 1, "golden", "-7", "Golden")) == [
        "version_aliases[1]",
        "version_aliases[2]",
    ]
    taken = merge(service, 1, "-default")
    assert fields_of(taken) == ["version_aliases"]
    assert "give it to another version instead" in taken.error
    for name in ("census", "census@default"):
        refused = service.post(f"{MODELS}/{name}:mergeVersionAliases", {"versionAliases": ["golden"]})
        assert (refused.status, "write its id, as in" in refused.error) == (400, True)
    assert aliases(service) == {"1": ["default"]}


def test_patch_changes_the_fields_of_its_mask_alone(service: Service) -> None:
    upload(service, description="d", labels={"a": "1"})
    add_version(service, labels={"b": "2"})
    service.clock.advance(1)
    changed = patch(
        service, "census", "display_name,labels", displayName="new", labels={"c": "3"}, description="x"
    )
    assert changed.status == 200, changed.content
    assert changed.json == get(service)
    assert {name: changed.json[name] for name in ("displayName", "description", "labels")} == {
        "displayName": "new",
        "description": "d",
        "labels": {"c": "3"},
    }
    assert (changed.json["createTime"], changed.json["updateTime"]) == (NOW, "2026-01-02T03:04:07.000000Z")
    assert get(service, "census@2")["labels"] == {"b": "2", "c": "3"}
    assert get(service, "census@2")["displayName"] == "new"


def test_patch_of_a_version_changes_it_alone(service: Service) -> None:
    upload(service, labels={"a": "1"})
    add_version(service)
    body = {"versionDescription": "second", "labels": {"b": "2"}}
    changed = patch(service, "census%402", "versionDescription,labels", **body).json
    assert (changed["versionDescription"], changed["labels"]) == ("second", {"a": "1", "b": "2"})
    assert get(service)["labels"] == {"a": "1"}
    assert "versionDescription" not in get(service)
    emptied = patch(service, "census@2", "version_description,labels").json
    assert ("versionDescription" in emptied, emptied["labels"]) == (False, {"a": "1"})


def test_patch_is_refused_with_what_is_wrong(service: Service) -> None:
    upload(service)
    before = get(service)
    assert fields_of(patch(service, "census", "", displayName="x")) == ["update_mask"]
    assert (
        fields_of(patch(service, "census", "artifact_uri,labels.a", artifactUri="gs://x"))
        == ["update_mask"] * 2
    )
    assert fields_of(patch(service, "census", "*")) == ["update_mask"]
    assert fields_of(patch(service, "census", "displayName")) == ["model.display_name"]
    assert fields_of(patch(service, "census", "labels", labels={"A": ""})) == ["model.labels.A"]
    for name, mask, owner in (
        ("census", "version_description,labels", "models/census@VERSION"),
        ("census@1", "description", "models/census"),
    ):
        refused = patch(service, name, mask)
        assert refused.error.startswith("FAILED_PRECONDITION: "), refused.error
        assert refused.error.endswith(f"but of projects/demo/locations/us-central1/{owner}. Patch that.")
    assert get(service) == before


def test_patch_with_the_etag_of_an_earlier_state_is_aborted(service: Service) -> None:
    upload(service)
    before = get(service)["etag"]
    merge(service, 1, "golden")  # aliases are no part of what a patch writes
    assert patch(service, "census", "description", description="a", etag=before).status == 200
    refused = patch(service, "census", "description", description="b", etag=before)
    assert (refused.status, refused.json["error"]["status"]) == (409, "ABORTED")
    assert patch(service, "census", "description", description="b", etag=get(service)["etag"]).status == 200
    assert patch(service, "census", "description", description="c").status == 200


def test_deleted_default_version_leaves_its_alias_to_the_newest(service: Service) -> None:
    upload(service)
    for _ in range(2):
        add_version(service)
    merge(service, 2, "default", "golden")
    operation = service.call("DELETE", f"{MODELS}/census@2:deleteVersion").json
    assert (operation["done"], operation["name"].startswith(f"{PLACE}/operations/")) == (True, True)
    assert aliases(service) == {"3": ["default"], "1": []}
    assert add_version(service)["modelVersionId"] == "4"
    assert service.call("DELETE", f"{MODELS}/census@4:deleteVersion").status == 200
    assert add_version(service)["modelVersionId"] == "5"  # the number of a deleted version isn't used again


def test_only_version_is_deleted_with_its_model_alone(service: Service) -> None:
    upload(service)
    refused = service.call("DELETE", f"{MODELS}/census@1:deleteVersion")
    assert (refused.status, refused.json["error"]["status"]) == (400, "FAILED_PRECONDITION")
    assert "models/census@1 is the only version of its model: delete the model instead." in refused.error
    for name in ("census", "census@default"):
        assert service.call("DELETE", f"{MODELS}/{name}:deleteVersion").status == 400
    assert service.call("DELETE", f"{MODELS}/census@2:deleteVersion").status == 404
    assert aliases(service) == {"1": ["default"]}


def test_model_is_deleted_with_all_versions(service: Service) -> None:
    upload(service)
    add_version(service)
    refused = service.call("DELETE", f"{MODELS}/census@2")
    assert (refused.status, "or call deleteVersion" in refused.error) == (400, True)
    assert service.call("DELETE", f"{MODELS}/census").json["done"] is True
    assert service.call("DELETE", f"{MODELS}/census").status == 404
    assert (service.get(f"{MODELS}/census@1").status, listed(service)) == (404, [])
    assert upload(service).json["response"]["modelVersionId"] == "1"


def test_list_has_the_default_version_of_each_model_newest_first(service: Service) -> None:
    for model_id in ("one", "two"):
        upload(service, model_id)
    service.post("/v1/projects/other/locations/us-central1/models:upload", {"model": model()})
    add_version(service, "one", versionAliases=["default"])
    found = service.get(MODELS).json["models"]
    assert [(each["name"], each["versionId"]) for each in found] == [
        (f"{PLACE}/models/two", "1"),
        (f"{PLACE}/models/one", "2"),
    ]
    by_number = service.get(f"/v1/projects/{number_of('demo')}/locations/us-central1/models").json
    assert by_number["models"] == found
    assert service.get("/v1/projects/demo/locations/nowhere/models").json == {}


def test_versions_are_listed_with_their_ids_in_their_names(service: Service) -> None:
    upload(service)
    add_version(service, labels={"stage": "b"})
    versions = service.get(f"{MODELS}/census:listVersions").json["models"]
    assert [each["name"] for each in versions] == [f"{PLACE}/models/census@{number}" for number in (2, 1)]
    by = service.get(f"{MODELS}/census:listVersions?filter=labels.stage=b&readMask=version_id").json
    assert by == {"models": [{"versionId": "2"}]}
    by = service.get(f"{MODELS}/census:listVersions?orderBy=create_time&readMask=name").json["models"]
    assert [each["name"][-1] for each in by] == ["1", "2"]
    assert service.get(f"{MODELS}/census:listVersions?filter=display_name=census").status == 400


def test_list_is_filtered_as_documented(service: Service) -> None:
    upload(service, "one", name="My model", labels={"team": "risk"})
    upload(service, "two", name="other")
    for text, expected in {
        "model=one": ["one"],
        "model!=one": ["two"],
        'display_name="My model"': ["one"],
        'displayName!="My model"': ["two"],
        "labels.team=risk": ["one"],
        "labels.team:*": ["one"],
        "labels:team": ["one"],
        "NOT labels:team": ["two"],
    }.items():
        assert listed(service, f"?filter={quote(text)}") == expected, text
    for text in ("model:o*", "display_name:other", "labels=team", "version_id=1", "state=x"):
        assert service.get(f"{MODELS}?filter={quote(text)}").status == 400, text


def test_list_is_ordered_as_documented(service: Service) -> None:
    for model_id, name in (("one", "b"), ("two", "a"), ("three", "b")):
        upload(service, model_id, name=name)
        service.clock.advance(1)
    patch(service, "two", "description", description="x")
    for order, expected in {
        "": ["three", "two", "one"],
        "create_time": ["one", "two", "three"],
        "display_name, create_time desc": ["two", "three", "one"],
        "display_name desc,create_time asc": ["one", "three", "two"],
        "updateTime desc": ["two", "three", "one"],
    }.items():
        assert listed(service, f"?orderBy={quote(order)}") == expected, order
        pages, token = [], ""
        for _ in range(3):
            page = service.get(f"{MODELS}?orderBy={quote(order)}&pageSize=1&pageToken={token}").json
            pages += [each["name"].rpartition("/")[2] for each in page["models"]]
            token = page.get("nextPageToken", "")
        assert (pages, token) == (expected, ""), order
    for order in ("labels", "display_name up", "create_time,,", "create_time desc desc"):
        assert service.get(f"{MODELS}?orderBy={quote(order)}").status == 400, order


def test_pages_go_on_though_the_last_model_of_one_is_gone(service: Service) -> None:
    for number in range(4):
        upload(service, f"model-{number}")
    first = service.get(f"{MODELS}?pageSize=2").json
    upload(service, "late")
    service.call("DELETE", f"{MODELS}/model-2")
    token = first["nextPageToken"]
    assert listed(service, f"?pageSize=2&pageToken={token}") == ["model-1", "model-0"]
    for query in (f"{token}&filter=model=x", f"{token}&orderBy=create_time", "x"):
        assert service.get(f"{MODELS}?pageToken={query}").status == 400


@pytest.mark.parametrize(
    ("statement", "name", "columns"),
    [
        ("UPDATE models SET body = '{'", "census", "model_body"),
        ("UPDATE models SET create_time = 'soon', body = '7'", "census", "model_body create_time"),
        ("UPDATE model_versions SET body = '[]' WHERE version_id = 1", "census@1", "version_body"),
        (
            "UPDATE model_versions SET create_time = '' WHERE version_id = 1",
            "census@1",
            "version_create_time",
        ),
    ],
)
def test_unreadable_record_is_told_by_its_name_and_can_be_deleted(
    service: Service, statement: str, name: str, columns: str, caplog: pytest.LogCaptureFixture
) -> None:
    upload(service)
    add_version(service)
    with service.store.database.writing() as connection:
        connection.execute(statement)
    record = f"The record of projects/demo/locations/us-central1/models/{name} can't be read"
    remedy = "Restore state.db from a copy, or delete it."
    expected = f"FAILED_PRECONDITION: {record} in the service's database: {columns}. {remedy}"
    told = [
        service.get(f"{MODELS}/census@1"),
        service.get(MODELS),
        service.get(f"{MODELS}/census:listVersions"),
        patch(service, "census", "labels", labels={"a": "b"}),
        merge(service, 1, "golden"),
    ]
    assert [answer.error for answer in told] == [expected] * 5
    assert not caplog.records
    if name == "census@1":
        assert service.call("DELETE", f"{MODELS}/{name}:deleteVersion").status == 200
        assert aliases(service) == {"2": ["default"]}
    assert service.call("DELETE", f"{MODELS}/census").status == 200
    assert listed(service) == []


def test_model_of_a_stopped_service_is_read_and_not_changed(service: Service) -> None:
    upload(service)
    service.store.database.close()
    (service.home / "service.lock").touch()
    with open_copy(service.home) as application:
        assert application.handle(Request.of("GET", f"{MODELS}/census@1")).status == 200
        refused = application.handle(Request.of("DELETE", f"{MODELS}/census"))
    assert b"isn't running" in refused.content
