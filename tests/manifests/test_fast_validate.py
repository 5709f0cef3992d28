"""The quick check of a file against the full check: it never accepts more, and its results are the same."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import msgpack
from msgspec.structs import replace

from reconciler.manifests.checked_files import CheckedFile, digest_of
from reconciler.manifests.diagnose import DiagnosedFile, diagnose
from reconciler.manifests.fast_validate import check_files
from reconciler.manifests.files import ManifestFile
from reconciler.manifests.packages import PackageFolder
from reconciler.manifests.publications import OWN_FOLDERS, PUBLISH
from reconciler.manifests.settings import load_config
from reconciler.model.expectation import Expectation
from reconciler.model.manifest import Manifest
from reconciler.model.naming import identities, label_of
from tests.expected_problems import CASES
from tests.support.manifests import GOOD, PIPELINE, TUNING_PIPELINE, with_inputs_in_snake_case
from tests.support.yaml_styles import written
from tests.support.yaml_texts import BOMBS, PIECES

JOBS = Path(__file__).parents[2] / "jobs"
FILLED = frozenset({"region", "timeout"})
PUBLISHABLE = frozenset({OWN_FOLDERS, PUBLISH, "baseOutputDirectory"})
WRITTEN = [*GOOD.values(), *map(with_inputs_in_snake_case, (PIPELINE, TUNING_PIPELINE))]
"""Good manifests, some with keys in snake_case."""
NO_FILE = ManifestFile("jobs/job.yaml", "/repository/jobs/job.yaml", 0)


def known_file(data: bytes, filled: frozenset[str] = frozenset()) -> CheckedFile | None:
    """Return the quick check's result for a file's bytes."""
    return check_files({digest_of(data): data}, filled).get(digest_of(data))


def looked_at_closely(data: bytes, filled: frozenset[str]) -> DiagnosedFile:
    """Return the full check's result for a file, without packages: they depend on other files."""

    def folder_of(file: ManifestFile, written: str) -> PackageFolder:
        return PackageFolder(Path(file.real), written, Path("/repository"))

    found = diagnose(NO_FILE, data, filled, folder_of)
    for job in found.jobs:
        job.package = None
    found.check(Path("/repository"))
    return found


def named(manifest: Manifest) -> tuple[str, ...]:
    """Return the identities that a manifest's job gets without package."""
    return tuple((each, label_of(each)) for each in identities(manifest, manifest.spec, ""))


def compare(data: bytes, filled: frozenset[str] = frozenset()) -> bool:
    """Check the law for a file; return True if the quick check accepts it."""
    quick = known_file(data, filled)
    if quick is None:
        return False
    close = looked_at_closely(data, filled)
    assert close.problems == []
    assert all(job.is_valid for job in close.jobs)
    assert quick.warnings == tuple(replace(warning, path="") for warning in close.warnings)
    assert (quick.size, quick.aliased, quick.digest) == (len(data), close.aliased, digest_of(data))
    assert len(quick.manifests) == len(close.jobs)
    for manifest, job in zip(quick.manifests, close.jobs, strict=True):
        expected = job.manifest
        # Compare the text too: 1, 1.0 and true are equal in Python.
        for name in Manifest.__struct_fields__:
            assert repr(getattr(manifest, name)) == repr(getattr(expected, name)), name
        assert manifest.identities == (() if manifest.written else named(expected))
        assert manifest.base_name == job.base_name
    return True


def parts(value: Any) -> list[tuple[Any, Any]]:
    """Return every container in a value with each of its keys."""
    found = []
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        found.append((value, key))
        if isinstance(part, dict | list):
            found += parts(part)
    return found


ODD_VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        1.0,
        1.5,
        "1",
        "01",
        "",
        " ",
        "3600s",
        "3600s\n",
        "x" * 70,
        [],
        {},
        [None],
    ),
    *(
        2**53,
        -(2**53),
        2**31,
        1e300,
        "9" * 19,
        "gs://b/o",
        "é",
        "\u2028",
        "no",
        "n1-standard-4",
        "../trainers",
    ),
    *("ml.googleapis.com/v1", "CustomJob", "AIza" + "0aB" * 12, "--password=hunter2Xy9Zq"),
]


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data())
def test_what_is_known_has_no_problem_and_means_the_same(data: st.DataObject) -> None:
    """Check good manifests with values exchanged or removed, in several spellings."""
    value = copy.deepcopy(data.draw(st.sampled_from(WRITTEN)))
    if data.draw(st.booleans()):
        value["publish"] = data.draw(st.sampled_from([{}, {"to": "gs://models/census/"}, {"from": "export"}]))
    for _ in range(data.draw(st.integers(0, 2))):
        container, key = data.draw(st.sampled_from(parts(value)))
        if data.draw(st.booleans()):
            container[key] = data.draw(st.sampled_from(ODD_VALUES))
        else:
            del container[key]
    compare(
        data.draw(written(value)).encode(), data.draw(st.sampled_from([frozenset(), FILLED, PUBLISHABLE]))
    )


@pytest.mark.slow
@settings(max_examples=120)
@given(data=st.data())
def test_no_text_makes_the_quick_look_say_more_than_the_close_one(data: st.DataObject) -> None:
    text = json.dumps(data.draw(st.sampled_from(WRITTEN)), indent=1)
    for piece in data.draw(st.lists(st.sampled_from(PIECES) | st.text(max_size=4), min_size=1, max_size=3)):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + piece + text[at + data.draw(st.integers(0, 3)) :]
    compare(text.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize("case", sorted(path.name for path in CASES.iterdir() if path.is_dir()))
def test_files_with_mistakes_are_known_only_where_others_make_the_mistake(case: str) -> None:
    for file in (CASES / case).rglob("*.y*ml"):
        compare(file.read_bytes())


@pytest.mark.slow
def test_bombs_are_not_known() -> None:
    assert not [name for name, (text, _) in BOMBS.items() if known_file(text.encode())]


def test_ordinary_manifests_are_known() -> None:
    """A quick check that accepts no ordinary manifest would be useless."""
    for value in WRITTEN:
        assert compare(json.dumps(value).encode())
    filled = load_config(JOBS.parent).environment(None).filled
    examples = [file for file in JOBS.glob("*.yaml") if compare(file.read_bytes(), filled)]
    assert len(examples) == len([*JOBS.glob("*.yaml")])
    both = b"---\n".join(json.dumps(value).encode() + b"\n" for value in GOOD.values())
    assert compare(both)
    assert known_file(both + b"---\na: 1\n") is None


def test_fields_that_an_environment_fills_may_be_missing_and_only_those() -> None:
    value = copy.deepcopy(GOOD["Job"])
    del value["spec"]["trainingInput"]["region"]
    data = json.dumps(value).encode()
    assert known_file(data) is None
    assert compare(data, FILLED)


def test_metric_is_accepted_only_with_output_folder() -> None:
    value = copy.deepcopy(GOOD["CustomJob"])
    del value["spec"]["baseOutputDirectory"]
    data = json.dumps(value).encode()
    assert known_file(data, FILLED) is None
    assert compare(data, FILLED | {"baseOutputDirectory"})


def test_expectations_keep_order_and_are_no_part_of_identity() -> None:
    value = copy.deepcopy(GOOD["HyperparameterTuningJob"])
    value["spec"]["trialJobSpec"]["baseOutputDirectory"] = {"outputUriPrefix": "gs://my-bucket/tuning"}
    found = {}
    for written_expect in (
        "",
        "expect: {z: {max: 1e-4}, accuracy: {max: 2, min: -1}}",
        "expect: {z: {min: 0}}",
    ):
        value.pop("expect", None)
        data = (json.dumps(value).removesuffix("}") + f", {written_expect}}}").encode()
        assert compare(data)
        record = known_file(data)
        assert record is not None
        (manifest,) = record.manifests
        found[manifest.identities] = [*found.get(manifest.identities, []), manifest.expect]
        assert msgpack.decode(msgpack.encode(manifest), type=Manifest).expect == manifest.expect
    (expectations,) = found.values()
    assert expectations == [
        (),
        (Expectation("z", max=0.0001), Expectation("accuracy", min=-1.0, max=2.0)),
        (Expectation("z", min=0.0),),
    ]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({"min": 0.9, "worse": 0.01}, Expectation("auc", 0.9, None, 0.01, "max")),
        ({"min": 0.9, "worse": 0.01, "goal": "max"}, Expectation("auc", 0.9, None, 0.01, "max")),
        ({"max": 1, "worse": 2}, Expectation("auc", None, 1.0, 2.0, "min")),
        ({"worse": 0, "goal": "min"}, Expectation("auc", None, None, 0.0, "min")),
        ({"min": 0, "max": 1, "worse": 0, "goal": "max"}, Expectation("auc", 0.0, 1.0, 0.0, "max")),
        ({"min": 0.9}, Expectation("auc", 0.9)),
    ],
)
def test_goal_follows_from_the_only_bound(bounds: dict[str, Any], expected: Expectation) -> None:
    value = copy.deepcopy(GOOD["CustomJob"])
    value |= {"publish": {"to": "gs://risk-models/census"}, "expect": {"auc": bounds}}
    value["spec"]["baseOutputDirectory"] = {"outputUriPrefix": "gs://my-bucket/census"}
    record = known_file(json.dumps(value).encode(), FILLED | {OWN_FOLDERS})
    assert record is not None
    (manifest,) = record.manifests
    assert manifest.expect == (expected,)


def test_few_bytes_that_stand_for_much_text_are_not_known() -> None:
    value = copy.deepcopy(GOOD["HyperparameterTuningJob"])
    container = value["spec"]["trialJobSpec"]["workerPoolSpecs"][0]["containerSpec"]
    container["args"] = ["ARGUMENTS"]
    text = json.dumps(value)
    assert compare(text.replace('"ARGUMENTS"', '&a "xyz", *a').encode())
    much = '&a "' + "x" * 60_000 + '"' + ", *a" * 20
    assert known_file(text.replace('"ARGUMENTS"', much).encode()) is None


@example([b"", b"no manifest", json.dumps(GOOD["Job"]).encode()])
@given(st.lists(st.sampled_from([json.dumps(value).encode() for value in GOOD.values()] + [b"a: [", b"{}"])))
@settings(max_examples=20)
def test_many_files_at_once_are_known_as_each_for_itself(contents: list[bytes]) -> None:
    found = check_files({digest_of(data): data for data in contents})
    assert [found.get(digest_of(data)) for data in contents] == [known_file(data) for data in contents]
