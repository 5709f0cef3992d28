"""Warnings: equal ones together, acknowledged ones counted, and only those that are shown looked up."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from reconciler.base.warning_kinds import WarningKind
from reconciler.cli import run
from reconciler.manifests import places

MANIFEST = """\
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {{name: {name}}}
spec:
  workerPoolSpecs:
    - machineSpec: {{machineType: {machine}}}
      replicaCount: 1
      containerSpec:
        imageUri: {image}
"""
PINNED = "gcr.io/tide/fit@sha256:" + "0" * 64


class Printed:
    """What `validate` prints, with the arguments that follow, and its exit code."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str, code: int = 0) -> str:
        assert run(["validate", *arguments]) == code
        return self._capsys.readouterr().out


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    return Printed(capsys)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "reconciler.yaml").write_text("source: tide\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job(root: Path, name: str, *, machine: str = "n1-standard-4", image: str = PINNED) -> None:
    text = MANIFEST.format(name=name, machine=machine, image=image)
    (root / f"jobs/{name}.yaml").write_text(text)


def by_tag(root: Path, number: int) -> None:
    for index in range(number):
        job(root, f"job-{index:03}", image=f"gcr.io/tide/fit:{index}")


def acknowledge(root: Path, *kinds: str) -> None:
    listed = ", ".join(f"{kind}: ignore" for kind in kinds)
    (root / "reconciler.yaml").write_text(f"source: tide\nwarnings: {{{listed}}}\n")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return a list that gets each file that is read again for a place."""
    paths: list[Path] = []
    read_one = places.read_one

    def read(file: Path, path: str) -> Any:
        paths.append(file)
        return read_one(file, path)

    monkeypatch.setattr(places, "read_one", read)
    return paths


# --- Together -------------------------------------------------------------------------------------------


def test_equal_warnings_of_many_files_are_one_with_a_count_and_the_first_places(
    root: Path, printed: Printed
) -> None:
    by_tag(root, 120)
    assert printed().splitlines() == [
        "jobs/job-000.yaml:9:19: warning: a tag can mean another image tomorrow, and the job's name stays "
        "the same (/spec/workerPoolSpecs/0/containerSpec/imageUri) [imageTag]",
        "    120 of these in 120 files, also at jobs/job-001.yaml:9:19, jobs/job-002.yaml:9:19, …",
        "    pin it by its digest: gcr.io/tide/fit@sha256:…, which docker push prints",
        "",
        "To acknowledge warnings of a kind, write in reconciler.yaml: warnings: {imageTag: ignore}",
        "120 files valid; 120 warnings in 120 files.",
    ]


def test_text_looks_up_the_places_that_it_shows_and_no_other(
    root: Path, printed: Printed, reads: list[Path]
) -> None:
    by_tag(root, 250)  # more than one process reads
    job(root, "one-more", machine="n1-standart-4")
    assert "one-more.yaml:6:34" in printed()
    assert [path.name for path in reads] == [*(f"job-00{n}.yaml" for n in range(3)), "one-more.yaml"]
    reads.clear()
    printed("--verbose")
    assert len(reads) == 251


def test_verbose_and_json_list_all_warnings_with_their_places(root: Path, printed: Printed) -> None:
    by_tag(root, 30)
    assert len(re.findall(r"^jobs/job-0..\.yaml:9:19: warning: ", printed("--verbose"), re.MULTILINE)) == 30
    problems = json.loads(printed("--format", "json"))["problems"]
    assert [(problem["path"], problem["line"], problem["column"]) for problem in problems] == [
        (f"jobs/job-{index:03}.yaml", 9, 19) for index in range(30)
    ]
    assert {problem["kind"] for problem in problems} == {"imageTag"}


def test_many_different_warnings_fill_at_most_thirty_lines_with_each_kind_among_them(
    root: Path, printed: Printed
) -> None:
    by_tag(root, 50)
    for index in range(60):
        job(root, f"machine-{index}", machine=f"odd-{index}")
    lines = printed().splitlines()
    assert len(lines) <= 30
    assert "[imageTag]" in lines[0]
    (left,) = [line for line in lines if line.startswith("… and ")]
    shown = sum("[machineType]" in line for line in lines)
    assert shown > 5
    assert left == (f"… and {60 - shown} more warnings, which --verbose shows: machineType {60 - shown}")
    assert lines[-1] == "110 files valid; 110 warnings in 110 files."


def test_annotations_are_one_for_equal_warnings_and_count_the_rest(root: Path, printed: Printed) -> None:
    by_tag(root, 40)
    for index in range(60):
        job(root, f"machine-{index}", machine=f"odd-{index}")
    lines = printed("--format", "github").splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("::warning file=jobs/job-000.yaml,line=9,col=19,")
    assert "[imageTag]%0A40 of these in 40 files" in lines[0]
    assert lines[-1].endswith("::52 more warnings; run `reconciler validate`")


def test_place_of_a_warning_is_in_its_own_document(root: Path, printed: Printed) -> None:
    text = MANIFEST.format(name="a", machine="n1-standart-8", image=PINNED)
    (root / "jobs/a.yaml").write_text(f"{text}---\n# next\n{text.replace('name: a', 'name: b')}")
    shown = printed("--verbose").splitlines()
    assert [line.partition(": ")[0] for line in shown if "[machineType]" in line] == [
        "jobs/a.yaml:6:34",
        "jobs/a.yaml:17:34",
    ]


def test_many_warnings_of_a_document_hide_no_error(root: Path, printed: Printed) -> None:
    words = ", ".join(['"--epochs 5"'] * 1100)
    text = MANIFEST.format(name="a", machine="n1-standard-4", image=f"{PINNED}\n        args: [{words}]")
    pool = (
        text.partition("workerPoolSpecs:\n")[2]
        .partition("        args")[0]
        .replace("n1-standard-4", "cloud_tpu")
    )
    (root / "jobs/a.yaml").write_text(f"{text}{pool}")
    assert "cloud_tpu" in printed(code=3)


# --- Acknowledged ---------------------------------------------------------------------------------------


def test_acknowledged_kind_is_counted_and_no_error_when_strict(root: Path, printed: Printed) -> None:
    by_tag(root, 3)
    printed("--strict", code=3)
    acknowledge(root, "imageTag", "region")
    expected = "reconciler.yaml acknowledges 3 warnings: imageTag 3.\n3 files valid.\n"
    assert printed("--strict") == printed("--format", "github", "--strict") == expected
    output = json.loads(printed("--format", "json", "--strict"))
    assert (output["valid"], output["problems"], output["acknowledged"]) == (True, [], {"imageTag": 3})


def test_other_kinds_stay_warnings(root: Path, printed: Printed) -> None:
    by_tag(root, 2)
    job(root, "other", machine="n1-standart-4")
    acknowledge(root, "imageTag")
    shown = printed("--strict", code=3)
    assert "[machineType]" in shown
    assert "[imageTag]" not in shown
    assert "reconciler.yaml acknowledges 2 warnings: imageTag 2." in shown
    assert shown.endswith("3 files valid; 1 warning in 1 file.\n")


def test_acknowledged_kind_covers_the_settings_too(root: Path, printed: Printed) -> None:
    google = "{engine: google, project: my-project, location: us-centrall1, stagingBucket: my-bucket}"
    settings = f"source: tide-1\nenvironments: {{cloud: {google}}}\n"
    (root / "reconciler.yaml").write_text(settings)
    assert "[region]" in printed("--strict", code=3)
    (root / "reconciler.yaml").write_text(f"{settings}warnings: {{region: ignore}}\n")
    assert "acknowledges 1 warning: region 1." in printed("--strict")


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("imageTags: ignore", 'did you mean "imageTag"?'),
        ("imageTag: error", "ignore"),
        ("imageTag: true", "ignore"),
    ],
)
def test_unknown_kind_and_unknown_word_are_errors_with_what_to_write(
    root: Path, capsys: pytest.CaptureFixture[str], written: str, hint: str
) -> None:
    (root / "reconciler.yaml").write_text(f"source: tide\nwarnings:\n  {written}\n")
    assert run(["validate"]) == 3
    err = capsys.readouterr().err
    assert err.startswith("reconciler.yaml:3:")
    assert hint in err


def test_plan_and_apply_acknowledge_and_name_kinds_as_validate_does(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for index in range(20):
        job(root, f"job-{index}", machine="n1-standart-4")
    assert run(["plan"]) == 0
    err = capsys.readouterr().err
    assert err.count("n1-standart-4 is not a known machine type") == 1
    assert "[machineType]\n    20 of these in 20 files, also at" in err
    assert run(["plan", "--format", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 20
    acknowledge(root, "machineType")
    assert run(["plan"]) == 0
    assert "n1-standart-4" not in capsys.readouterr().err


# --- Kinds ----------------------------------------------------------------------------------------------


def test_kinds_are_camel_case_and_described_in_the_page_that_lists_them() -> None:
    page = (Path(__file__).parents[2] / "docs/warnings.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", page, re.MULTILINE)
    assert rows == [(str(kind), kind.description) for kind in WarningKind]
    assert all(re.fullmatch(r"[a-z]+(?:[A-Z][a-z]+)*", kind) for kind in WarningKind)
