"""`publish` in manifests, and the settings of publications."""

from __future__ import annotations

import copy
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack

from reconciler.base.diagnostics import WARNING, Problem
from reconciler.base.errors import InvalidError
from reconciler.manifests.checked_files import CheckedFile
from reconciler.manifests.fast_validate import check_files
from reconciler.manifests.publications import OWN_FOLDERS, PUBLISH, relation_of
from reconciler.manifests.rules import domain_findings
from reconciler.manifests.settings import GOOGLE_LIMITS, Config, Limits, load_config
from reconciler.manifests.validate import validate
from reconciler.model.manifest import Manifest, Publish
from tests.support.manifests import GOOD, write

KINDS = {
    "CustomJob": ["spec", "baseOutputDirectory"],
    "HyperparameterTuningJob": ["spec", "trialJobSpec", "baseOutputDirectory"],
    "Job": ["spec", "trainingInput", "jobDir"],
}
ADDRESS = {"to": "gs://models/census"}
OWN = frozenset({OWN_FOLDERS})
EVERYTHING = OWN | {PUBLISH, "baseOutputDirectory"}


def publishing(kind: str, publish: Any, *, folder: bool = True) -> Any:
    """Return a good manifest that publishes, with an output folder or without."""
    value = copy.deepcopy(GOOD[kind]) | {"publish": publish}
    value.pop("expect", None)
    *above, field = KINDS[kind]
    job = value
    for key in above:
        job = job[key]
    job.pop(field, None)
    if folder:
        job[field] = "gs://runs/census" if kind == "Job" else {"outputUriPrefix": "gs://runs/census"}
    return value


def problems_of(root: Path, value: Any, filled: frozenset[str] = OWN) -> tuple[Problem, ...]:
    write(root, "trainers/census/task.py", "")
    write(root, "jobs/job.yaml", value)
    return validate(root, [root / "jobs"], filled).problems


def manifest_of(publish: Any, kind: str = "HyperparameterTuningJob") -> Manifest:
    """Return the manifest as workers send it: of a file that the fast check accepts."""
    data = json.dumps(publishing(kind, publish)).encode()
    checked = check_files({b"": data}, EVERYTHING)[b""]
    (manifest,) = msgpack.decode(msgpack.encode(checked), type=CheckedFile).manifests
    return manifest


@pytest.mark.parametrize(
    ("publish", "expected"),
    [
        ({}, Publish("", "model")),
        ({"to": "gs://risk-models/census"}, Publish("gs://risk-models/census", "model")),
        ({"to": "gs://risk-models/census/"}, Publish("gs://risk-models/census", "model")),
        ({"to": "gs://b.c/é/..x/ y ", "from": "x/...y/"}, Publish("gs://b.c/é/..x/ y ", "x/...y")),
        ({"from": "model"}, Publish("", "model")),
    ],
)
def test_manifest_has_what_is_written_and_defaults(publish: Any, expected: Publish) -> None:
    assert manifest_of(publish).publish == expected


def test_publish_is_no_part_of_the_identities() -> None:
    value = publishing("HyperparameterTuningJob", {})
    del value["publish"]
    plain = check_files({b"": json.dumps(value).encode()})[b""].manifests[0]
    assert plain.publish is None
    for publish in ({}, ADDRESS, {"from": "export"}):
        assert manifest_of(publish).identities == plain.identities


@pytest.mark.parametrize("kind", KINDS)
def test_run_needs_a_folder_of_its_own(kind: str, tmp_path: Path) -> None:
    value = publishing(kind, ADDRESS)
    assert problems_of(tmp_path, value) == ()
    (problem,) = problems_of(tmp_path, value, frozenset())
    assert (problem.pointer, problem.hint) == ("/publish", 'write "outputs: own" in reconciler.yaml')


@pytest.mark.parametrize("kind", KINDS)
def test_run_without_folder_needs_one_of_the_manifest_or_the_environment(kind: str, tmp_path: Path) -> None:
    value = publishing(kind, ADDRESS, folder=False)
    (problem,) = problems_of(tmp_path, value)
    assert (problem.pointer, problem.message) == ("/publish", "the run has no output folder to publish from")
    assert KINDS[kind][-1] in problem.hint
    # A default folder always has the job's name.
    assert problems_of(tmp_path, value, frozenset({"baseOutputDirectory"})) == ()


@pytest.mark.parametrize("kind", KINDS)
def test_address_comes_from_the_manifest_or_the_environment(kind: str, tmp_path: Path) -> None:
    value = publishing(kind, {})
    assert problems_of(tmp_path, value, OWN | {PUBLISH}) == ()
    (problem,) = problems_of(tmp_path, value)
    assert problem.message == "neither the manifest nor the environment has an address"
    assert '"to: gs://BUCKET/FOLDER"' in problem.hint
    assert '"publish: gs://BUCKET" under "defaults"' in problem.hint


def test_every_reason_is_told_at_once(tmp_path: Path) -> None:
    value = publishing("HyperparameterTuningJob", {})
    value["spec"]["studySpec"]["metrics"].append({"metricId": "auc", "goal": "MAXIMIZE"})
    messages = [problem.message for problem in problems_of(tmp_path, value, frozenset())]
    assert len(messages) == 3
    assert sum("2 metrics" in message for message in messages) == 1


@pytest.mark.parametrize("kind", ["HyperparameterTuningJob", "Job"])
def test_study_with_one_metric_is_accepted(kind: str, tmp_path: Path) -> None:
    assert problems_of(tmp_path, publishing(kind, ADDRESS)) == ()


@pytest.mark.parametrize("length", [512, 513])
@pytest.mark.parametrize("letter", ["m", "é", "模"])
@pytest.mark.parametrize("name", ["to", "from"])
def test_longest_name_has_512_bytes(name: str, letter: str, length: int, tmp_path: Path) -> None:
    start = "gs://models/" if name == "to" else ""
    count, rest = divmod(length - len(start), len(letter.encode()))
    text = start + letter * count + "x" * rest
    assert len(text.encode()) == length
    problems = problems_of(tmp_path, publishing("CustomJob", {**ADDRESS, name: text}))
    assert [problem.pointer for problem in problems] == [f"/publish/{name}"] * (length > 512)


@pytest.mark.parametrize("unit", ["m", "/", "../", "é", "a/", "gs://", "[", "\\u0007"])
@pytest.mark.parametrize("name", ["to", "from"])
def test_long_text_is_refused_soon_and_not_repeated(name: str, unit: str, tmp_path: Path) -> None:
    value = json.dumps(publishing("CustomJob", {**ADDRESS, name: "@"}))
    begun = time.monotonic()
    problems = problems_of(tmp_path, value.replace("@", "gs://models/" + unit * (60_000 // len(unit))))
    assert problems
    assert all(len(problem.message) < 1000 for problem in problems)
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("value", [None, 7, True, "x", [], [{}], {"to": 7}, {"to": None}, {"from": ["x"]}])
def test_rules_accept_any_shape(value: Any) -> None:
    for filled in (frozenset[str](), EVERYTHING):
        list(domain_findings({"publish": value, "spec": value}, filled))
        list(domain_findings({"publish": value, "spec": {"studySpec": value, "trialJobSpec": value}}, filled))


SEGMENTS = st.sampled_from(
    ["a", "ab", "a.b", "..", ".", "", "x y", "é", "*", "#", "a?", "[b]", "\x7f", "..a"]
)


@given(st.lists(SEGMENTS, max_size=4), st.booleans())
def test_address_is_accepted_exactly_when_each_of_its_parts_is_one(parts: list[str], slash: bool) -> None:
    text = "/".join(["gs://models", *parts]) + "/" * slash
    data = json.dumps(publishing("HyperparameterTuningJob", {"to": text})).encode()
    found = check_files({b"": data}, EVERYTHING).get(b"")
    if parts and parts[-1] == "" and not slash:
        parts, slash = parts[:-1], True
    is_good = bool(parts) and not {"", ".", "..", "*", "#", "a?", "[b]", "\x7f"} & {*parts}
    assert (found is not None) == is_good
    if found:
        assert found.manifests[0].publish == Publish("/".join(["gs://models", *parts]))


@pytest.mark.parametrize(
    ("address", "folder", "relation"),
    [
        ("gs://a/b", "gs://a/b", "is"),
        ("gs://a/b/c", "gs://a/b", "lies in"),
        ("gs://a/b", "gs://a", "lies in"),
        ("gs://a", "gs://a/b", "contains"),
        ("gs://a/bc", "gs://a/b", ""),
        ("gs://a/b", "gs://a/bc", ""),
        ("gs://ab/b", "gs://a", ""),
    ],
)
def test_relation_compares_whole_names(address: str, folder: str, relation: str) -> None:
    assert relation_of(address, folder) == relation


# --- Settings -------------------------------------------------------------------------------------------

GOOGLE = """\
source: risk-training-7f3a
environments:
  staging:
    {{engine: google, project: acme-two, location: us-central1, stagingBucket: code{staging}}}
  production:
    {{engine: google, project: acme-ml, location: us-central1, stagingBucket: code{production}}}
"""


def loaded(root: Path, text: str) -> Config:
    (root / "reconciler.yaml").write_text(text)
    return load_config(root)


def refused(root: Path, text: str) -> list[Problem]:
    with pytest.raises(InvalidError) as caught:
        loaded(root, text)
    return [*caught.value.problems]


def google(**settings: str) -> str:
    given = {"staging": "", "production": ""} | {name: f", {text}" for name, text in settings.items()}
    return GOOGLE.format(**given)


@pytest.mark.parametrize(
    ("settings", "publish"),
    [
        ("defaults: {publish: gs://risk-models}", "gs://risk-models"),
        ("defaults: {publish: gs://risk-models/}", "gs://risk-models"),
        ("defaults: {publish: gs://risk-models/a/}, instance: blue", "gs://risk-models/a/blue"),
        ("instance: blue", ""),
    ],
)
def test_default_address_is_no_default_of_jobs(settings: str, publish: str, tmp_path: Path) -> None:
    environment = loaded(tmp_path, google(production=settings)).environment("production")
    assert environment.publish == publish
    assert environment.defaults == {"region": "us-central1"}
    assert (PUBLISH in environment.filled) == bool(publish)


def test_environment_resolves_the_address_with_the_name_as_written(tmp_path: Path) -> None:
    settings = "defaults: {publish: gs://risk-models/a}"
    environment = loaded(tmp_path, google(production=settings)).environment("production")
    written = Publish("gs://models/census", "export")
    for publish, expected in [
        (None, None),
        (written, written),
        (Publish(source="export"), Publish("gs://risk-models/a/census-income", "export")),
    ]:
        assert environment.published(Manifest("v1", "Job", "census-income", {}, publish=publish)) == expected


@pytest.mark.parametrize(("outputs", "is_own"), [("own", True), ("shared", False)])
def test_environment_gives_own_folders_by_its_setting_alone(
    outputs: str, is_own: bool, tmp_path: Path
) -> None:
    assert (OWN_FOLDERS in loaded(tmp_path, f"outputs: {outputs}").environment(None).filled) == is_own


def test_limit_of_publications_is_for_google_unless_written(tmp_path: Path) -> None:
    assert (GOOGLE_LIMITS.publications, Limits().publications) == (20, None)
    config = loaded(tmp_path, google(production="limits: {publications: 3}"))
    found = {name: environment.limits.publications for name, environment in config.environments.items()}
    assert found == {"local": None, "staging": 20, "production": 3}
    config = loaded(tmp_path, google(production="limits: {publications: null}"))
    assert config.environment("production").limits.publications is None
    config = loaded(tmp_path, "limits: {publications: 7}")
    assert config.environment(None).limits.publications == 7


@pytest.mark.parametrize(
    ("places", "is_shared"),
    [
        (("gs://models/", "gs://models"), True),
        (("gs://models/a", "gs://models/b"), False),
        (("gs://models", "gs://models, instance: x"), False),
        (("gs://models/x", "gs://models, instance: x"), True),
    ],
)
def test_place_that_two_environments_at_google_publish_to_is_refused(
    places: tuple[str, str], is_shared: bool, tmp_path: Path
) -> None:
    first, second = (
        "defaults: {publish: " + (place.replace(",", "},") if "," in place else f"{place}}}")
        for place in places
    )
    text = google(staging=first, production=second)
    if not is_shared:
        loaded(tmp_path, text)
        return
    (problem,) = refused(tmp_path, text)
    assert problem.pointer == "/environments/production/defaults/publish"
    assert '"staging" and "production" publish to this place' in problem.message
    assert problem.hint.startswith("write another place, such as gs://models/")


def test_place_that_two_environments_of_the_embedded_service_publish_to_is_refused(tmp_path: Path) -> None:
    text = """\
environments:
  local: {defaults: {publish: gs://models}}
  dev: {engine: local, project: local-dev, defaults: {publish: gs://models/}}
"""
    (problem,) = refused(tmp_path, text)
    assert (problem.line, problem.pointer) == (3, "/environments/dev/defaults/publish")


def test_buckets_of_the_embedded_service_are_others_than_those_of_google(tmp_path: Path) -> None:
    text = google(production="defaults: {publish: gs://models}")
    loaded(tmp_path, text + "  local: {defaults: {publish: gs://models}}\n")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("defaults: {publish: gs://code/models}", 'the staging bucket of the environment "staging"'),
        (
            "claimsBucket: gs://claims/, defaults: {publish: gs://claims}",
            'the bucket of the claims of the environment "production"',
        ),
        ("defaults: {publish: gs://risk, baseOutputDirectory: gs://risk/}", 'this is "baseOutputDirectory"'),
        (
            "defaults: {publish: gs://risk/a, baseOutputDirectory: gs://risk}",
            'this lies in "baseOutputDirectory"',
        ),
        (
            "defaults: {publish: gs://risk, baseOutputDirectory: gs://risk/a}",
            'this contains "baseOutputDirectory"',
        ),
    ],
)
def test_place_of_publications_that_something_else_uses_is_refused(
    settings: str, message: str, tmp_path: Path
) -> None:
    (problem,) = refused(tmp_path, google(production=settings))
    assert problem.pointer == "/environments/production/defaults/publish"
    assert message in problem.message
    assert "no training job writes to" in problem.hint


@pytest.mark.parametrize(
    "place", ["models", "gs://Models", "gs://risk/../x", "gs://models//a", "gs://models/*", '""']
)
def test_place_of_publications_is_a_bucket_or_a_folder(place: str, tmp_path: Path) -> None:
    (problem,) = refused(tmp_path, google(production=f"defaults: {{publish: {place}}}"))
    assert problem.pointer == "/environments/production/defaults/publish"
    assert problem.hint == 'write "gs://BUCKET", or "gs://BUCKET/FOLDER"'


@pytest.mark.parametrize("value", ["7", "[a]", "{a: 1}", "null"])
def test_place_of_another_type_is_one_problem(value: str, tmp_path: Path) -> None:
    problems = refused(tmp_path, google(production=f"defaults: {{publish: {value}}}"))
    assert [(p.pointer, p.level == WARNING) for p in problems] == [
        ("/environments/production/defaults/publish", False)
    ]
