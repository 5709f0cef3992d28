"""Addresses of publications that other manifests or places of the environment take part in."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconciler.base.errors import InvalidError
from reconciler.manifests.settings import Config, load_config
from reconciler.manifests.validate import validate
from reconciler.model.manifest import AIPLATFORM_V1, Manifest, Publish
from reconciler.model.tracking import COMMITTED
from reconciler.operations.load_desired import Desired, load_desired
from reconciler.operations.plan import request_body
from reconciler.operations.publication_rules import publication_problems
from reconciler.training_service.http.auth import job_access

JOB = """\
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {{name: {name}}}
publish: {publish}
spec:
  workerPoolSpecs:
    - machineSpec: {{machineType: n1-standard-4}}
      replicaCount: 1
      containerSpec: {{imageUri: "example.com/trainer:1", args: [{args}]}}
  baseOutputDirectory: {{outputUriPrefix: gs://runs/{name}}}
"""


def job(root: Path, name: str, publish: str, args: str = "", file: str = "") -> None:
    path = root / f"jobs/{file or name}.yaml"
    path.parent.mkdir(exist_ok=True)
    text = JOB.format(name=name, publish=publish, args=args)
    path.write_text(f"{path.read_text()}---\n{text}" if path.exists() else text)


def settings(root: Path, text: str = "") -> Config:
    (root / "reconciler.yaml").write_text(f"outputs: own\n{text}")
    return load_config(root)


def load(root: Path, config: Config, environment: str | None = None) -> Desired:
    return load_desired(config, config.environment(environment), [root / "jobs"], index=COMMITTED)


def test_jobs_have_their_address_in_the_environment(tmp_path: Path) -> None:
    config = settings(
        tmp_path,
        "environments:\n  local: {defaults: {publish: gs://models/}}\n"
        "  dev: {engine: local, project: local-dev, defaults: {publish: gs://models/dev}}\n",
    )
    job(tmp_path, "census-income", "{from: export}")
    job(tmp_path, "wine", "{to: gs://wines/red/}")
    for environment, address in (
        ("local", "gs://models/census-income"),
        ("dev", "gs://models/dev/census-income"),
    ):
        jobs = load(tmp_path, config, environment).jobs
        assert [each.publish for each in jobs] == [
            Publish(address, "export"),
            Publish("gs://wines/red", "model"),
        ]


def test_publication_is_no_part_of_name_and_request(tmp_path: Path) -> None:
    config = settings(tmp_path, "environments: {local: {defaults: {publish: gs://publications}}}")
    job(tmp_path, "census", "{}")
    desired = load(tmp_path, config)
    (published,) = desired.jobs
    body = request_body(published, desired, "staging", published.job_name, {})
    text = (tmp_path / "jobs/census.yaml").read_text().replace("publish: {}\n", "")
    (tmp_path / "jobs/census.yaml").write_text(text)
    desired = load(tmp_path, config)
    (plain,) = desired.jobs
    assert (plain.publish, published.publish) == (None, Publish("gs://publications/census"))
    assert (plain.job_name, plain.identity) == (published.job_name, published.identity)
    assert request_body(plain, desired, "staging", plain.job_name, {}) == body


def test_trainer_reaches_bucket_of_its_publication_only_if_it_names_it(tmp_path: Path) -> None:
    config = settings(tmp_path, "environments: {local: {defaults: {publish: gs://published-by-default}}}")
    job(tmp_path, "census", "{to: gs://published-here/census}")
    job(tmp_path, "iris", "{}")
    job(tmp_path, "wine", "{to: gs://published-here/wine}", args="--out=gs://published-here/x")
    desired = load(tmp_path, config)
    reached = {}
    for each in desired.jobs:
        labels = {"reconciler-source": config.source}
        access = job_access(request_body(each, desired, "staging", each.job_name, labels), [])
        assert access.bucket("runs")
        reached[each.manifest.name] = [
            name for name in ("published-here", "published-by-default") if access.bucket(name)
        ]
    assert reached == {"census": [], "iris": [], "wine": ["published-here"]}


def test_commands_refuse_the_addresses_that_validate_refuses(tmp_path: Path) -> None:
    config = settings(tmp_path)
    job(tmp_path, "census", "{to: gs://models/census}")
    job(tmp_path, "wine", "{to: gs://models/census/wine}")
    with pytest.raises(InvalidError) as caught:
        load(tmp_path, config)
    (problem,) = caught.value.problems
    assert (problem.path, problem.line, problem.column, problem.pointer) == (
        "jobs/wine.yaml",
        4,
        15,
        "/publish/to",
    )
    assert '"census" (jobs/census.yaml, line 1)' in problem.message


def test_place_of_a_file_that_has_changed_since_is_its_job(tmp_path: Path) -> None:
    config = settings(tmp_path)
    job(tmp_path, "census", "{to: gs://models/census}")
    job(tmp_path, "wine", "{to: gs://models/census}")
    manifests = validate(tmp_path, [tmp_path / "jobs"], config.environment(None).filled).manifests
    for content in ("[", "\n\n" + (tmp_path / "jobs/wine.yaml").read_text(), None):
        (tmp_path / "jobs/wine.yaml").unlink()
        if content is not None:
            (tmp_path / "jobs/wine.yaml").write_text(content)
        (problem,) = publication_problems(tmp_path, manifests, config, config.environment(None)).errors
        assert (problem.path, problem.line, problem.column) == ("jobs/wine.yaml", 1, 1)


def test_default_place_in_a_bucket_of_outputs_is_one_warning(tmp_path: Path) -> None:
    config = settings(
        tmp_path, "environments:\n  local:\n    defaults:\n      publish: gs://runs/published\n"
    )
    for number in range(3):
        job(tmp_path, f"census-{number}", "{}")
    manifests = validate(tmp_path, [tmp_path / "jobs"], config.environment(None).filled).manifests
    found = publication_problems(tmp_path, manifests, config, config.environment(None))
    (warning,) = found.warnings
    assert (found.errors, found.refused) == ([], frozenset())
    assert (warning.path, warning.line, warning.column) == ("reconciler.yaml", 5, 16)
    assert not load(tmp_path, config).warnings


PLACES = st.lists(st.sampled_from(["a", "ab", "b"]), max_size=3).map(
    lambda names: "/".join(["gs://bbb", *names])
)
ADDRESSES = PLACES.filter(lambda place: place != "gs://bbb")


def overlap(place: str, other: str) -> bool:
    return f"{place}/".startswith(f"{other}/") or f"{other}/".startswith(f"{place}/")


@given(st.lists(st.tuples(PLACES | st.just(""), ADDRESSES | st.just("")), max_size=5), PLACES | st.just(""))
def test_some_address_is_refused_exactly_when_two_places_overlap(
    jobs: list[tuple[str, str]], default: str
) -> None:
    root = Path("/nowhere")
    config = load_config(root)
    local = config.environment(None)
    manifests = [
        Manifest(
            AIPLATFORM_V1,
            "CustomJob",
            f"job-{number}",
            {"baseOutputDirectory": {"outputUriPrefix": f"{folder}/"}} if folder else {},
            path=f"jobs/{number}.yaml",
            publish=Publish(address) if address else None,
        )
        for number, (folder, address) in enumerate(jobs)
    ]
    given = {"baseOutputDirectory": default} if default else {}
    found = publication_problems(root, manifests, config, replace(local, defaults=given))
    folders = [folder for folder, _ in jobs if folder] + [default] * bool(default)
    refused = set()
    for number, (_, address) in enumerate(jobs):
        if not address:
            continue
        before = [other for _, other in jobs[:number] if other]
        others = [other for place, (_, other) in enumerate(jobs) if other and place != number]
        if (
            any(overlap(address, folder) for folder in folders)
            or address in before
            or any(address.startswith(f"{other}/") for other in others)
        ):
            refused.add(f"jobs/{number}.yaml")
    assert {problem.path for problem in found.errors} == refused
    assert found.refused == {f"job_{Path(path).stem}" for path in refused}


def test_many_mistakes_in_one_file_take_no_time_each(tmp_path: Path) -> None:
    config = settings(tmp_path)
    texts = [JOB.format(name=f"census-{n}", publish="{to: gs://models/census}", args="") for n in range(900)]
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/all.yaml").write_text("---\n".join(texts))
    manifests = validate(tmp_path, [tmp_path / "jobs"], config.environment(None).filled).manifests
    assert len(manifests) == 900
    begun = time.monotonic()
    errors, warnings, refused = publication_problems(tmp_path, manifests, config, config.environment(None))
    assert time.monotonic() - begun < 30
    assert (len(errors), warnings, len(refused)) == (101, [], 899)
    assert errors[-1].message == "799 more problems in this file"


def test_ten_thousand_addresses_are_compared_at_once() -> None:
    root = Path("/nowhere")
    config = load_config(root)
    manifests = [
        Manifest(
            AIPLATFORM_V1,
            "CustomJob",
            f"job-{number}",
            {"baseOutputDirectory": {"outputUriPrefix": f"gs://runs/{number % 7}/{number}"}},
            publish=Publish(f"gs://models/{number % 7}/{number}"),
        )
        for number in range(10_000)
    ]
    begun = time.monotonic()
    found = publication_problems(root, manifests, config, config.environment(None))
    assert (found.errors, found.warnings) == ([], [])
    assert time.monotonic() - begun < 5
