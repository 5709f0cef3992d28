"""Python versions and packages of the cloud's executor images and runtimes.

An image's name is the last part of its URI without the tag: the framework, cpu or gpu, the framework's
version and, for some, the Python ("tf-gpu.2-12.py310"). The name of an AI Platform Training runtime is its
version ("2.11"). Google updates the images within a framework's minor version, so the tables fix the
framework's minor version, and for other packages the range that the framework was made for.

Sources: the pages "Prebuilt containers for custom training" (Vertex AI) and "Runtime version list" (AI
Platform Training); the package index for the Pythons with wheels of each framework.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from reconciler.training_service.http.discovery import schemas_folder
from reconciler.training_service.jobs.archives import Needs, normalised
from reconciler.training_service.state.run_spec import PythonTask

Minor = tuple[int, int]

OLDEST: Minor = (3, 6)
NEWEST: Minor = (3, 99)


@dataclass(frozen=True, slots=True)
class Package:
    """A distribution of an image.

    Attributes:
        requirement: The requirement to install, such as `scikit-learn==1.6.*`.
        modules: Dotted modules; a trainer that imports any of them needs the package.
        names: Functions such as `read_parquet`; a trainer that uses any of them needs the package.
        oldest, newest: The range of Pythons that it has wheels for.
    """

    requirement: str
    modules: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    oldest: Minor = OLDEST
    newest: Minor = NEWEST

    @property
    def distribution(self) -> str:
        """Normalised name."""
        return normalised(re.split(r"[<>=!~;\[ ]", self.requirement, maxsplit=1)[0])

    def needed_by(self, needs: Needs) -> bool:
        """Return True if a trainer with these needs uses the package."""
        return (
            self.distribution in needs.distributions
            or any(_is_in(module, imported) for module in self.modules for imported in needs.modules)
            or any(name in needs.names for name in self.names)
        )


@dataclass(frozen=True, slots=True)
class Image:
    """An executor image or a runtime; `on_accelerators` is True for images made for GPUs."""

    name: str
    python: Minor
    packages: tuple[Package, ...]
    on_accelerators: bool = False

    def needed(self, needs: Needs) -> tuple[Package, ...]:
        """Return the packages that a trainer with these needs uses."""
        return tuple(package for package in self.packages if package.needed_by(needs))

    def constraints(self) -> tuple[str, ...]:
        """Return the versions of the framework and related packages, also for dependencies."""
        return tuple(package.requirement for package in self.packages if package not in _COMMON)

    def package_with(self, module: str) -> Package | None:
        """Return the image's package that contains a module or a submodule, None if it has none."""
        needs = Needs(frozenset({module}))
        return next((package for package in self.packages if package.needed_by(needs)), None)


@dataclass(frozen=True, slots=True)
class Override:
    """The user's replacement for an image: any Python that matches `python`, with these requirements only."""

    python: str
    requirements: tuple[str, ...]


def find_image(name: str) -> Image | None:
    """Return the image of this URI or the runtime of this version; None if the tables don't list it."""
    if name in _RUNTIMES:
        python, requirements = _RUNTIMES[name]
        return Image(name, _minor(python), _packages(requirements.split()))
    match = _URI.fullmatch(name)
    return _executor_image(match["image"]) if match else None


@cache
def known_runtimes() -> Mapping[str, Sequence[str]]:
    """Return the Pythons of each runtime version that AI Platform Training ever had."""
    runtimes: Mapping[str, Sequence[str]] = json.loads((schemas_folder() / "known_values.json").read_bytes())[
        "runtimes"
    ]
    return runtimes


def find_override(name: str, images: Mapping[str, Any]) -> Override | None:
    """Return the entry of the `images` setting for this image: by its full name, else without its tag."""
    entry = images.get(name, images.get(_without_tag(name)))
    if entry is None:
        return None
    return Override(str(entry.get("python", "")), tuple(str(line) for line in entry.get("requirements", ())))


def entry_digest(entry: Mapping[str, Any]) -> str:
    """Return 16 hex digits of a hash of an entry's `python` and `requirements`."""
    content = [str(entry.get("python", "")), *(str(line) for line in entry.get("requirements", ()))]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def requirements_of(task: PythonTask) -> tuple[str, ...]:
    """Return the requirements of a task's image, or of the user's replacement for it."""
    if task.override is not None:
        return tuple(task.override["requirements"])
    image = find_image(task.image)
    return tuple(package.requirement for package in image.packages) if image else ()


def pythons_with_wheels(packages: Iterable[Package]) -> tuple[Minor, Minor]:
    """Return the oldest and the newest Python with wheels of all these packages."""
    held = tuple(packages)
    return max([OLDEST, *(p.oldest for p in held)]), min([NEWEST, *(p.newest for p in held)])


def unknown_image(name: str, images: Mapping[str, Any], *, is_runtime: bool) -> tuple[str, str] | None:
    """Return that the service doesn't know an executor image or a runtime version, and the remedy.

    None for one that the tables list, or the `images` setting.
    """
    if find_override(name, images) or find_image(name):
        return None
    remedy = f"say under images in reconciler.yaml what to run it as: {how_to_override(name)}"
    if is_runtime:
        return f"The embedded training service doesn't know the runtime version {name}", remedy
    from difflib import get_close_matches  # only needed for messages

    similar = "".join(f" to {other}" for other in get_close_matches(name, images, 1))
    return (
        f"The embedded training service doesn't know the image {name}",
        f"correct its name{similar}, or {remedy}",
    )


def how_to_override(name: str) -> str:
    """Return an example of an entry for an image that the tables don't list."""
    return override_entry(name, "3.11", ["scikit-learn==1.6.1"])


def override_entry(name: str, python: str, requirements: Iterable[str]) -> str:
    """Return an entry under the `images` setting, as YAML."""
    listed = ", ".join(f'"{requirement}"' for requirement in requirements)
    return f'"{name}": {{python: "{python}", requirements: [{listed}]}}'


def _is_in(module: str, imported: str) -> bool:
    return imported == module or imported.startswith(f"{module}.")


def _without_tag(name: str) -> str:
    return re.sub(r"(?<=/)([^/:@]+)[:@][^/]*$", r"\1", name)


_URI = re.compile(
    r"(?:[a-z]+-docker\.pkg\.dev/vertex-ai/training"
    r"|(?:[a-z]+\.)?gcr\.io/(?:cloud-aiplatform|cloud-ml-public)/training)"
    r"/(?P<image>[a-z0-9.-]+)(?::[\w.-]+|@sha256:[0-9a-f]{64})?"
)
_IMAGE = re.compile(
    # Google names its images of PyTorch 2 for CPUs "xla".
    r"(?P<framework>tf|pytorch|sklearn|scikit-learn|xgboost)-(?P<hardware>cpu|gpu|xla)\.(?P<version>\d+-\d+)"
    r"(?:\.py(?P<major>\d)(?P<minor>\d+))?"
)


def _executor_image(name: str) -> Image | None:
    match = _IMAGE.fullmatch(name)
    if match is None:
        return None
    framework = {"scikit-learn": "sklearn"}.get(match["framework"], match["framework"])
    entry = _EXECUTOR_IMAGES.get(f"{framework} {match['version'].replace('-', '.')}")
    if entry is None:
        return None
    python = _minor(entry[0]) if match["minor"] is None else (int(match["major"]), int(match["minor"]))
    return Image(name, python, _packages(entry[1].split()), match["hardware"] == "gpu")


def _minor(text: str) -> Minor:
    major, minor = text.split(".")
    return int(major), int(minor)


def _packages(requirements: Iterable[str]) -> tuple[Package, ...]:
    return (*(_package(requirement) for requirement in requirements), *_COMMON)


def _package(requirement: str) -> Package:
    name = Package(requirement).distribution
    oldest, newest = _WHEELS.get(requirement, "3.6 3.99").split()
    return Package(requirement, _MODULES.get(name, (name,)), (), _minor(oldest), _minor(newest))


_WRITERS = ("torch.utils.tensorboard", "tensorboardX")

# Packages of every image, in any version that supports the Python.
_COMMON = (
    Package("cloudml-hypertune", ("hypertune",)),
    # These read and write gs:// paths with it.
    Package(
        "gcsfs",
        ("gcsfs", "fsspec", "pandas", "dask", "lightning", "pytorch_lightning", "tensorboard", *_WRITERS),
    ),
    Package("google-cloud-aiplatform", ("google.cloud.aiplatform",)),
    Package("google-cloud-bigquery", ("google.cloud.bigquery",)),
    Package("google-cloud-logging", ("google.cloud.logging",)),
    Package("google-cloud-storage", ("google.cloud",)),
    Package("joblib", ("joblib",)),
    Package("matplotlib", ("matplotlib",)),
    Package("pyarrow", ("pyarrow",), ("read_parquet", "to_parquet", "read_feather", "to_feather")),
    Package("pyyaml", ("yaml",)),
    Package("requests", ("requests",)),
    Package("seaborn", ("seaborn",)),
    Package("setuptools<81", ("pkg_resources",)),  # version 81 removed pkg_resources
    Package("six", ("six",)),
    Package("tables", ("tables",), ("read_hdf", "to_hdf")),
)

_MODULES = {
    "scikit-learn": ("sklearn",),
    "tensorflow": ("tensorflow", "tensorboard", "keras"),
    "protobuf": ("google.protobuf",),
    "numpy": ("numpy", "torch"),  # without it PyTorch warns, and `Tensor.numpy` fails
}

# The oldest and the newest Python with wheels: the requirements with these limits.
_LIMITS = {
    "3.6 3.7": "scikit-learn==0.20.* tensorflow==1.15.* tensorflow==2.1.*",
    "3.6 3.8": "scikit-learn==0.22.* scikit-learn==0.23.* tensorflow==2.2.* tensorflow==2.3.*"
    " tensorflow==2.4.* torch==1.4.* torch==1.6.*",
    "3.6 3.9": "numpy<1.20 pandas<1.3 scipy<1.6 scikit-learn==0.24.* tensorflow==2.5.* tensorflow==2.6.*"
    " torch==1.7.* torch==1.9.* torch==1.10.*",
    "3.7 3.9": "tensorflow==2.7.*",
    "3.7 3.10": "scikit-learn==1.0.* tensorflow==2.8.* tensorflow==2.9.* tensorflow==2.10.*"
    " tensorflow==2.11.* torch==1.11.* torch==1.12.*",
    "3.7 3.11": "numpy<1.24 pandas<2 scipy<1.11 torch==1.13.*",
    "3.8 3.11": "scikit-learn==1.2.* tensorflow==2.12.* tensorflow==2.13.* torch==2.0.* torch==2.1.*",
    "3.8 3.12": "numpy<2 scikit-learn==1.3.* torch==2.2.* torch==2.3.* torch==2.4.*",
    "3.8 3.99": "xgboost==1.7.* xgboost==2.1.*",
    "3.9 3.11": "tensorflow==2.14.* tensorflow==2.15.*",
    "3.9 3.12": "tensorflow==2.16.* tensorflow==2.17.*",
    "3.9 3.13": "scikit-learn==1.5.* scikit-learn==1.6.*",
}
_WHEELS = {
    requirement: pythons for pythons, requirements in _LIMITS.items() for requirement in requirements.split()
}

# Versions of common packages that the frameworks of each year were made for.
_2020 = "numpy<1.20 pandas<1.3 scipy<1.6"
_2022 = "numpy<1.24 pandas<2 scipy<1.11"
_2023 = "numpy<2 pandas<3 scipy<2"
_2024 = "numpy<3 pandas<3 scipy<2"


def _tensorflow(version: str, others: str = "") -> tuple[str, str]:
    """Return the Python and the packages of an image with this TensorFlow and other frameworks."""
    if _minor(version) >= (2, 12):
        return "3.10", f"tensorflow=={version}.* {others} {_2023}"
    # Its own requirement allows newer versions of protobuf, which it can't work with.
    limited = f"tensorflow=={version}.* protobuf<3.21 {others}"
    return "3.7", f"{limited} {_2020 if _minor(version) < (2, 7) else _2022}"


def _pytorch(version: str) -> tuple[str, str]:
    """Return the Python and the packages of an image with this PyTorch."""
    major, minor = _minor(version)
    # Each PyTorch has its own torchvision and, from 1.7 on, torchaudio, which count differently.
    requirements = f"torch=={version}.* torchvision==0.{minor + (1 if major == 1 else 15)}.*"
    if (major, minor) >= (1, 7):
        requirements += f" torchaudio=={f'0.{minor}' if major == 1 else version}.*"
    if (major, minor) < (1, 13):
        return "3.7", f"{requirements} {_2020 if minor < 9 else _2022}"
    return "3.10", f"{requirements} {_2023 if (major, minor) < (2, 4) else _2024}"


# Framework and version: Python, packages.
_EXECUTOR_IMAGES = {
    **{
        f"tf {version}": _tensorflow(version)
        for version in ("1.15", *(f"2.{minor}" for minor in range(1, 18)))
    },
    **{
        f"pytorch {version}": _pytorch(version)
        for version in ("1.4", "1.6", "1.7", *(f"1.{n}" for n in range(9, 14)), *(f"2.{n}" for n in range(5)))
    },
    "sklearn 0.23": ("3.7", f"scikit-learn==0.23.* {_2020}"),
    "sklearn 1.0": ("3.7", f"scikit-learn==1.0.* xgboost==1.4.* {_2022}"),
    "sklearn 1.2": ("3.10", f"scikit-learn==1.2.* {_2023}"),
    "sklearn 1.3": ("3.10", f"scikit-learn==1.3.* {_2023}"),
    "sklearn 1.5": ("3.10", f"scikit-learn==1.5.* {_2024}"),
    "sklearn 1.6": ("3.10", f"scikit-learn==1.6.* xgboost==2.1.* {_2024}"),
    "xgboost 1.1": ("3.7", f"xgboost==1.1.* scikit-learn==0.23.* {_2020}"),
    "xgboost 1.6": ("3.7", f"xgboost==1.6.* scikit-learn==1.0.* {_2022}"),
    "xgboost 1.7": ("3.10", f"xgboost==1.7.* scikit-learn==1.2.* {_2023}"),
    "xgboost 2.1": ("3.10", f"xgboost==2.1.* scikit-learn==1.6.* {_2024}"),
}

_RUNTIMES = {
    "1.15": _tensorflow("1.15", "scikit-learn==0.20.* xgboost==0.90"),
    "2.1": _tensorflow("2.1", "scikit-learn==0.22.* xgboost==0.90"),
    "2.2": _tensorflow("2.2", "scikit-learn==0.23.* xgboost==1.1.*"),
    "2.3": _tensorflow("2.3", "scikit-learn==0.23.* xgboost==1.2.*"),
    "2.4": _tensorflow("2.4", "scikit-learn==0.24.* xgboost==1.3.*"),
    "2.5": _tensorflow("2.5", "scikit-learn==0.24.* xgboost==1.4.*"),
    "2.6": _tensorflow("2.6", "scikit-learn==0.24.* xgboost==1.4.*"),
    "2.7": _tensorflow("2.7", "scikit-learn==1.0.* xgboost==1.4.*"),
    "2.8": _tensorflow("2.8", "scikit-learn==1.0.* xgboost==1.5.*"),
    "2.9": _tensorflow("2.9", "scikit-learn==1.0.* xgboost==1.6.*"),
    "2.10": _tensorflow("2.10", "scikit-learn==1.0.* xgboost==1.6.*"),
    "2.11": _tensorflow("2.11", "scikit-learn==1.0.* xgboost==1.6.*"),
}
