from __future__ import annotations

import pytest
from packaging.requirements import Requirement

from reconciler.training_service.jobs import images as frameworks
from reconciler.training_service.jobs.archives import Needs
from reconciler.training_service.jobs.images import Image, find_image, find_override

VERTEX = "us-docker.pkg.dev/vertex-ai/training/"


def image_of(name: str) -> Image:
    image = find_image(name)
    assert image is not None, name
    return image


def installed(
    name: str, *modules: str, names: tuple[str, ...] = (), required: tuple[str, ...] = ()
) -> list[str]:
    needs = Needs(frozenset(modules), frozenset(names), frozenset(required))
    return [package.requirement for package in image_of(name).needed(needs)]


def every_image() -> list[Image]:
    executors = [
        f"{VERTEX}{key.replace(' ', '-cpu.').replace('.', '-').replace('cpu-', 'cpu.')}:latest"
        for key in frameworks._EXECUTOR_IMAGES
    ]
    return [image_of(name) for name in [*executors, *frameworks._RUNTIMES]]


@pytest.mark.parametrize(
    "uri",
    [
        f"{VERTEX}sklearn-cpu.1-6:latest",
        f"{VERTEX}sklearn-cpu.1-6",
        "europe-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest",
        "asia-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:20250101_0125_RC00",
        f"{VERTEX}sklearn-cpu.1-6@sha256:{'0' * 64}",
        f"{VERTEX}scikit-learn-cpu.1-6:latest",
        "gcr.io/cloud-aiplatform/training/sklearn-cpu.1-6:latest",
        "eu.gcr.io/cloud-aiplatform/training/sklearn-cpu.1-6:latest",
    ],
)
def test_an_image_is_known_under_all_its_addresses(uri: str) -> None:
    image = image_of(uri)
    assert (image.python, image.on_accelerators) == ((3, 10), False)
    assert "scikit-learn==1.6.*" in [package.requirement for package in image.packages]


@pytest.mark.parametrize(
    "name",
    [
        "sklearn-cpu.1-6",
        f"{VERTEX}sklearn-cpu.9-9:latest",
        f"{VERTEX}r-cpu.4-1:latest",
        "us-docker.pkg.dev/vertex-ai/prediction/sklearn-cpu.1-6:latest",
        "evil.example/us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest",
        "3.0",
        "",
    ],
)
def test_what_isn_t_in_the_table_is_unknown(name: str) -> None:
    assert find_image(name) is None


@pytest.mark.parametrize(
    ("name", "python", "gpu"),
    [
        (f"{VERTEX}tf-gpu.2-12.py310:latest", (3, 10), True),
        (f"{VERTEX}tf-cpu.2-9:latest", (3, 7), False),
        (f"{VERTEX}tf-cpu.2-11.py310:latest", (3, 10), False),
        (f"{VERTEX}pytorch-gpu.1-12.py38:latest", (3, 8), True),
        (f"{VERTEX}xgboost-cpu.1-1:latest", (3, 7), False),
        ("2.11", (3, 7), False),
    ],
)
def test_an_image_s_python_and_hardware(name: str, python: tuple[int, int], gpu: bool) -> None:
    image = image_of(name)
    assert (image.python, image.on_accelerators) == (python, gpu)


def test_only_what_a_trainer_mentions_is_installed() -> None:
    assert installed("2.11", "sklearn.linear_model", "json", "os.path") == ["scikit-learn==1.0.*"]
    assert installed("2.11") == []
    assert installed("2.11", "tensorflow.keras") == ["tensorflow==2.11.*"]
    assert installed(f"{VERTEX}pytorch-gpu.2-4.py310:latest", "torch.nn") == ["torch==2.4.*", "numpy<3"]


def test_what_the_package_requires_comes_in_the_image_s_version() -> None:
    assert installed("2.11", required=("xgboost",)) == ["xgboost==1.6.*"]


def test_constraints_are_the_framework_s_versions() -> None:
    constraints = image_of("2.11").constraints()
    assert {"tensorflow==2.11.*", "scikit-learn==1.0.*", "numpy<1.24"} <= {*constraints}
    assert not any(line.startswith(("setuptools", "requests", "gcsfs")) for line in constraints)


def test_what_a_module_comes_with() -> None:
    package = image_of("2.11").package_with("sklearn.svm")
    assert package is not None
    assert package.requirement == "scikit-learn==1.0.*"
    assert image_of("2.11").package_with("trainer.task") is None


def test_pandas_comes_with_what_reads_its_gs_paths() -> None:
    assert installed("2.11", "pandas") == ["pandas<2", "gcsfs"]
    assert installed("2.11", "pandas", names=("read_parquet",)) == ["pandas<2", "gcsfs", "pyarrow"]


def test_pytorch_comes_with_numpy_and_an_image_for_cpus_under_google_s_name() -> None:
    name = f"{VERTEX}pytorch-xla.2-4.py310:latest"
    assert installed(name, "torch") == ["torch==2.4.*", "numpy<3"]
    assert not image_of(name).on_accelerators
    assert installed(name, "lightning") == installed(name, "tensorboardX") == ["gcsfs"]


@pytest.mark.parametrize(
    ("module", "requirement"),
    [
        ("google.cloud", "google-cloud-storage"),
        ("google.cloud.storage", "google-cloud-storage"),
        ("hypertune", "cloudml-hypertune"),
        ("yaml", "pyyaml"),
        ("pkg_resources", "setuptools<81"),
        ("fsspec", "gcsfs"),
    ],
)
def test_other_packages_of_every_image(module: str, requirement: str) -> None:
    assert installed("2.11", module) == [requirement]
    assert installed(f"{VERTEX}sklearn-cpu.1-6:latest", module) == [requirement]


def test_a_module_that_only_begins_alike_asks_for_nothing() -> None:
    assert installed("2.11", "sklearnish", "tensorflow_hub_like", "googlecloud") == []


def test_every_image_s_own_python_has_wheels_of_all_it_holds() -> None:
    images = every_image()
    assert len(images) == len(frameworks._EXECUTOR_IMAGES) + len(frameworks._RUNTIMES)
    for image in images:
        oldest, newest = frameworks.pythons_with_wheels(image.packages)
        assert oldest <= image.python <= newest, image.name


def test_every_requirement_can_be_read_and_every_limit_is_used() -> None:
    requirements = {package.requirement for image in every_image() for package in image.packages}
    assert all(Requirement(requirement).name for requirement in requirements)
    assert requirements >= set(frameworks._WHEELS)
    limited = {
        requirement
        for requirement in requirements
        if requirement.startswith(("tensorflow", "torch==", "scikit"))
    }
    assert limited <= set(frameworks._WHEELS)


def test_an_override_is_found_with_and_without_the_tag() -> None:
    images = {
        "gcr.io/me/mine": {"python": ">=3.11", "requirements": ["numpy==2.0.0"]},
        "gcr.io/me/mine:exact": {"requirements": []},
        "2.11": {"python": "3.12", "requirements": []},
    }
    found = find_override("gcr.io/me/mine:latest", images)
    assert found is not None
    assert (found.python, found.requirements) == (">=3.11", ("numpy==2.0.0",))
    exact = find_override("gcr.io/me/mine:exact", images)
    assert exact is not None
    assert (exact.python, exact.requirements) == ("", ())
    assert find_override("2.11", images) is not None
    assert find_override("gcr.io/me/other", images) is None
