"""`reconciler.yaml`: its defaults, its effects, its limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconciler.base.errors import InvalidError, UsageError
from reconciler.manifests.settings import GOOGLE_LIMITS, Limits, find_root, load_config

PROD = """
source: acme-jobs
environments:
  prod:
    engine: google
    project: acme-ml
    location: us-central1
    stagingBucket: gs://acme-staging/
    limits: {submissions: 3}
    defaults: {timeout: 3600s}
limits: {cancels: 1}
images:
  "2.11": {python: "3.11", requirements: [scikit-learn]}
"""


def test_without_a_file_everything_runs_on_the_embedded_service(tmp_path: Path) -> None:
    config = load_config(tmp_path)
    environment = config.environment(None)
    assert (environment.name, environment.engine) == ("local", "local")
    assert environment.limits == Limits()
    assert config.github is None


def test_a_file_adds_environments_and_local_stays(tmp_path: Path) -> None:
    (tmp_path / "reconciler.yaml").write_text(PROD)
    config = load_config(tmp_path)
    prod = config.environment("prod")
    assert (prod.engine, prod.project, prod.location) == ("google", "acme-ml", "us-central1")
    assert (prod.staging_bucket, prod.claims_bucket) == ("acme-staging", "acme-staging")
    assert prod.limits == Limits(3, 1, GOOGLE_LIMITS.accelerator_hours, 20)
    assert config.environment("local").limits == Limits(cancels=1)
    assert config.source == "acme-jobs"
    assert config.images["2.11"]["requirements"] == ["scikit-learn"]
    with pytest.raises(UsageError, match='no environment "staging"'):
        config.environment("staging")


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("enviroments: {}", 1, "environments"),
        ("environments:\n  prod: {engine: aws}", 2, "google"),
        (PROD.replace("source: acme-jobs\n", ""), 2, "source"),
        (PROD.replace("    project: acme-ml\n", ""), 4, "project"),
        ("- a\n- b", 1, "mapping"),
        ("images: {a: {python: 3.10, requirements: []}}", 1, '"3.10"'),
        (
            'images:\n  "2.11": {python: "3.10", requirements: []}\n'
            '  --privileged: {python: "3.10", requirements: []}',
            3,
            "IMAGE:TAG",
        ),
        ('images:\n  a: {python: "3.10", requirements: [six, numpy=1]}', 2, 'write "numpy==1"'),
        (
            'images:\n  a: {python: "3.10", requirements: [six, --extra-index-url https://me:pw@x.test]}',
            2,
            "PIP_EXTRA_INDEX_URL=…",
        ),
        ("a: [", 1, ""),
        ("---\n{}\n---\n{}\n", 4, "second document"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, text: str, line: int, said: str) -> None:
    (tmp_path / "reconciler.yaml").write_text(text)
    with pytest.raises(InvalidError) as caught:
        load_config(tmp_path)
    problem = caught.value.problems[0]
    assert problem.path == "reconciler.yaml"
    assert problem.line == line
    assert said in problem.message + problem.hint


@pytest.mark.parametrize(
    "line", ["six", "a[b]==1", "a>=1,!=2", "a<=1", "a @ https://x.test/a?b=c", "./a=1.whl"]
)
def test_an_image_requires_what_pip_takes(tmp_path: Path, line: str) -> None:
    text = f'images: {{a: {{python: "3.11", requirements: ["{line}"]}}}}'
    (tmp_path / "reconciler.yaml").write_text(text)
    assert load_config(tmp_path).images["a"]["requirements"] == [line]


@pytest.mark.parametrize("python", ["3.11", ">=3.11", ">=3.11,<3.14", "~=3.12"])
def test_an_image_runs_on_a_version_or_on_a_range(tmp_path: Path, python: str) -> None:
    text = f'images: {{"a/b:1": {{python: "{python}", requirements: []}}}}'
    (tmp_path / "reconciler.yaml").write_text(text)
    assert load_config(tmp_path).images["a/b:1"]["python"] == python


@pytest.mark.parametrize(
    "settings",
    [
        "{engine: local, location: us-central1-a}",
        "{engine: local, defaults: {region: us-central1-a}}",
        "{engine: local, location: northamerica-northeast1-b}",
    ],
)
def test_zone_is_refused_where_a_region_is_wanted(tmp_path: Path, settings: str) -> None:
    (tmp_path / "reconciler.yaml").write_text(f"environments:\n  local: {settings}\n")
    with pytest.raises(InvalidError) as caught:
        load_config(tmp_path)
    (problem,) = caught.value.problems
    assert problem.message.endswith('" is not a region, but a zone')


@pytest.mark.parametrize("python", ["", "3", "4.0", ">=", "3.11,", ">=3.11 or 3.12", "python3.11", "x3.11"])
def test_what_is_no_version_of_python_is_told(tmp_path: Path, python: str) -> None:
    text = f'images: {{"a/b:1": {{python: "{python}", requirements: []}}}}'
    (tmp_path / "reconciler.yaml").write_text(text)
    with pytest.raises(InvalidError) as caught:
        load_config(tmp_path)
    assert '"3.11"' in caught.value.problems[0].hint


def test_the_root_is_the_nearest_folder_upwards(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    assert find_root(deep) == deep
    (tmp_path / ".git").mkdir()
    assert find_root(deep) == tmp_path
    (tmp_path / "a" / "reconciler.yaml").write_text("{}")
    assert find_root(deep) == tmp_path / "a"


GOOGLE = """
source: acme-jobs
environments:
  staging: {engine: google, project: acme-ml, location: us-central1, stagingBucket: acme}
  production: {engine: google, project: %s, location: %s, stagingBucket: acme%s}
"""


@pytest.mark.parametrize(
    ("text", "place", "message", "hint"),
    [
        (
            GOOGLE % ("acme-ml", "us-central1", ""),
            (5, 3),
            '"staging" and "production" share the project "acme-ml" and the location "us-central1"',
            '"instance: production"',
        ),
        (
            GOOGLE % ("acme-ml", "us-central1", ", claimsBucket: other"),
            (5, 3),
            '"staging" and "production" share',
            '"instance: production"',
        ),
        (
            (GOOGLE % ("acme-ml", "us-central1", ", instance: blue")).replace(
                "Bucket: acme}", "Bucket: acme, instance: blue}"
            ),
            (5, 3),
            'and the instance "blue"',
            'another "instance" for "production"',
        ),
        (
            "environments:\n  dev: {engine: local}",
            (2, 3),
            '"local" and "dev" share the project "local" and the location "local"',
            '"project: local-dev", in the environment that is new: the other one keeps the claims',
        ),
        (
            "environments:\n  dev: {engine: local, project: dev-jobs, location: local}\n"
            "  local: {project: dev-jobs}",
            (3, 3),
            '"dev" and "local" share the project "dev-jobs"',
            '"project: local-dev", in the environment that is new',
        ),
        (
            "environments:\n  dev: {engine: local, project: jobs-1, location: us-east1}\n"
            "  test: {engine: local, project: jobs-1, location: us-east1}",
            (3, 3),
            '"dev" and "test" share the project "jobs-1" and the location "us-east1"',
            '"project: local-test"',
        ),
        (
            'environments:\n  local: {defaults: {baseOutputDirectory: "gs://models/out"}}\n'
            "  dev:\n    engine: local\n    project: dev-jobs\n    defaults:\n"
            "      baseOutputDirectory: gs://models/out/",
            (7, 28),
            '"local" and "dev" share this folder',
            "gs://models/out/dev",
        ),
        (
            'environments:\n  local: {defaults: {baseOutputDirectory: "gs://models/out"}}\n'
            "  dev:\n    engine: local\n    location: us-east1\n    defaults:\n"
            "      baseOutputDirectory: gs://models/out",
            (7, 28),
            '"local" and "dev" share this folder',
            "gs://models/out/dev",
        ),
    ],
)
def test_environments_that_share_their_claims_or_folder_are_refused_with_the_remedy(
    tmp_path: Path, text: str, place: tuple[int, int], message: str, hint: str
) -> None:
    (tmp_path / "reconciler.yaml").write_text(text)
    with pytest.raises(InvalidError) as caught:
        load_config(tmp_path)
    (problem,) = caught.value.problems
    assert (problem.line, problem.column) == place
    assert message in problem.message
    assert hint in problem.hint


@pytest.mark.parametrize(
    "text",
    [
        GOOGLE % ("acme-ml", "us-central1", ", instance: production"),
        GOOGLE % ("acme-ml", "us-east1", ""),
        GOOGLE % ("acme-two", "us-central1", ""),
        "environments:\n  dev: {engine: local, project: local-dev}\n  local: {}",
        "environments:\n  dev: {engine: local, location: us-east1}",
        "environments:\n  dev: {engine: local, project: jobs-1, location: us-east1}\n"
        "  test: {engine: local, project: jobs-1}",
    ],
)
def test_environments_with_claims_of_their_own_are_accepted(tmp_path: Path, text: str) -> None:
    (tmp_path / "reconciler.yaml").write_text(text)
    load_config(tmp_path)


@pytest.mark.parametrize(
    ("project", "folders", "is_shared"),
    [
        ("acme-two", ("gs://out/models/", "gs://out/models"), True),
        ("acme-two", ("gs://out/models", "gs://out/production"), False),
        ("acme-ml, instance: blue", ("gs://out/models", "gs://out/models"), False),
        ("acme-ml, instance: blue", ("gs://out/models/blue", "gs://out/models"), True),
    ],
)
def test_an_output_folder_that_two_environments_at_google_share_is_a_warning(
    tmp_path: Path, project: str, folders: tuple[str, str], is_shared: bool
) -> None:
    first, second = (f", defaults: {{baseOutputDirectory: {folder}}}" for folder in folders)
    text = GOOGLE.replace("stagingBucket: acme}", f"stagingBucket: acme{first}}}", 1)
    (tmp_path / "reconciler.yaml").write_text(text % (project, "us-central1", second))
    warnings = load_config(tmp_path).warnings
    assert [problem.pointer for problem in warnings] == (
        ["/environments/production/defaults/baseOutputDirectory"] if is_shared else []
    )
    assert all('"staging" and "production" share this folder' in problem.message for problem in warnings)
    assert all("such as gs://out/models/production" in problem.hint for problem in warnings)


@pytest.mark.parametrize("engine", ["engine: local, ", ""])
def test_instance_is_refused_on_the_training_service(tmp_path: Path, engine: str) -> None:
    (tmp_path / "reconciler.yaml").write_text(f"environments: {{local: {{{engine}instance: blue}}}}")
    with pytest.raises(InvalidError) as caught:
        load_config(tmp_path)
    (problem,) = caught.value.problems
    assert problem.pointer == "/environments/local/instance"
    assert '"project"' in problem.hint


def test_an_environment_with_the_same_project_is_told_whatever_its_location(tmp_path: Path) -> None:
    (tmp_path / "reconciler.yaml").write_text(
        "environments:\n  dev: {engine: local, location: us-east1}\n  test: {engine: local, project: test-1}"
    )
    config = load_config(tmp_path)
    sharing = {name: config.sharing(config.environment(name)) for name in ("local", "dev", "test")}
    assert sharing == {"local": "dev", "dev": "local", "test": ""}


def test_output_folder_of_the_defaults_contains_the_instance(tmp_path: Path) -> None:
    text = GOOGLE % (
        "acme-ml",
        "us-central1",
        ', instance: blue, defaults: {baseOutputDirectory: "gs://out/models/"}',
    )
    (tmp_path / "reconciler.yaml").write_text(text)
    config = load_config(tmp_path)
    assert config.environment("production").defaults["baseOutputDirectory"] == "gs://out/models/blue"
    assert config.neighbours(config.environment("production")) == {""}
    assert config.neighbours(config.environment("staging")) == {"blue"}
    assert config.neighbours(config.environment("local")) == frozenset()
