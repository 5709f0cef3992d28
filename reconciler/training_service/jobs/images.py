"""Python versions and packages of the cloud's executor images and runtimes.

An image's name is the last part of its URI without the tag: the framework, cpu or gpu, the framework's
version and, for some, the Python ("tf-gpu.2-12.py310"). The name of an AI Platform Training runtime is its
version ("2.11"). Google updates the images within a framework's minor version, so the tables fix the
framework's minor version, and for other packages the range that the framework was made for.

Sources: the pages "Prebuilt containers for custom training" (Vertex AI) and "Runtime version list" (AI
Platform Training); the package index for the Pythons with wheels of each framework.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from reconciler.training_service.jobs.archives import Needs, normalised

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


def find_override(name: str, images: Mapping[str, Any]) -> Override | None:
    """Return the entry of the `images` setting for this image: by its full name, else without its tag."""
    entry = images.get(name, images.get(_without_tag(name)))
    if entry is None:
        return None
    return Override(str(entry.get("python", "")), tuple(str(line) for line in entry.get("requirements", ())))


def pythons_with_wheels(packages: Iterable[Package]) -> tuple[Minor, Minor]:
    """Return the oldest and the newest Python with wheels of all these packages."""
    held = tuple(packages)
    return max([OLDEST, *(p.oldest for p in held)]), min([NEWEST, *(p.newest for p in held)])


def how_to_override(name: str) -> str:
    """Return an example of the `images` setting for an image that the tables don't list."""
    return override_entry(name, "3.11", ["scikit-learn==1.6.1"])


def override_entry(name: str, python: str, requirements: Iterable[str]) -> str:
    """Return an entry of the `images` setting, as YAML."""
    listed = ", ".join(f'"{requirement}"' for requirement in requirements)
    return f'images: {{"{name}": {{python: "{python}", requirements: [{listed}]}}}}'


def _is_in(module: str, imported: str) -> bool:
    return imported == module or imported.startswith(f"{module}.")


def _without_tag(name: str) -> str:
    return re.sub(r"(?<=/)([^/:@]+)[:@][^/]*$", r"\1", name)


_URI = re.compile(
    r"(?:[a-z]+-docker\.pkg\.dev/vertex-ai/training|(?:[a-z]+\.)?gcr\.io/cloud-aiplatform/training)"
    r"/(?P<image>[a-z0-9.-]+)(?::[\w.-]+|@sha256:[0-9a-f]{64})?"
)
_IMAGE = re.compile(
    r"(?P<framework>tf|pytorch|sklearn|scikit-learn|xgboost)-(?P<hardware>cpu|gpu)\.(?P<version>\d+-\d+)"
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


# Packages of every image, in any version that supports the Python.
_COMMON = (
    Package("cloudml-hypertune", ("hypertune",)),
    # pandas reads gs:// paths with it. Newer versions ask Google for the bucket's type, despite an emulator.
    Package("gcsfs<2025.10", ("gcsfs", "fsspec", "pandas", "dask")),
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
}

# The oldest and the newest Python with wheels, for packages with such limits.
_WHEELS = {
    "numpy<1.20": "3.6 3.9",
    "numpy<1.24": "3.7 3.11",
    "numpy<2": "3.8 3.12",
    "pandas<1.3": "3.6 3.9",
    "pandas<2": "3.7 3.11",
    "scipy<1.6": "3.6 3.9",
    "scipy<1.11": "3.7 3.11",
    "scikit-learn==0.20.*": "3.6 3.7",
    "scikit-learn==0.22.*": "3.6 3.8",
    "scikit-learn==0.23.*": "3.6 3.8",
    "scikit-learn==0.24.*": "3.6 3.9",
    "scikit-learn==1.0.*": "3.7 3.10",
    "scikit-learn==1.2.*": "3.8 3.11",
    "scikit-learn==1.3.*": "3.8 3.12",
    "scikit-learn==1.5.*": "3.9 3.13",
    "scikit-learn==1.6.*": "3.9 3.13",
    "tensorflow==1.15.*": "3.6 3.7",
    "tensorflow==2.1.*": "3.6 3.7",
    "tensorflow==2.2.*": "3.6 3.8",
    "tensorflow==2.3.*": "3.6 3.8",
    "tensorflow==2.4.*": "3.6 3.8",
    "tensorflow==2.5.*": "3.6 3.9",
    "tensorflow==2.6.*": "3.6 3.9",
    "tensorflow==2.7.*": "3.7 3.9",
    "tensorflow==2.8.*": "3.7 3.10",
    "tensorflow==2.9.*": "3.7 3.10",
    "tensorflow==2.10.*": "3.7 3.10",
    "tensorflow==2.11.*": "3.7 3.10",
    "tensorflow==2.12.*": "3.8 3.11",
    "tensorflow==2.13.*": "3.8 3.11",
    "tensorflow==2.14.*": "3.9 3.11",
    "tensorflow==2.15.*": "3.9 3.11",
    "tensorflow==2.16.*": "3.9 3.12",
    "tensorflow==2.17.*": "3.9 3.12",
    "torch==1.4.*": "3.6 3.8",
    "torch==1.6.*": "3.6 3.8",
    "torch==1.7.*": "3.6 3.9",
    "torch==1.9.*": "3.6 3.9",
    "torch==1.10.*": "3.6 3.9",
    "torch==1.11.*": "3.7 3.10",
    "torch==1.12.*": "3.7 3.10",
    "torch==1.13.*": "3.7 3.11",
    "torch==2.0.*": "3.8 3.11",
    "torch==2.1.*": "3.8 3.11",
    "torch==2.2.*": "3.8 3.12",
    "torch==2.3.*": "3.8 3.12",
    "torch==2.4.*": "3.8 3.12",
    "xgboost==1.7.*": "3.8 3.99",
    "xgboost==2.1.*": "3.8 3.99",
}

# Versions of common packages that the frameworks of each year were made for.
_2020 = "numpy<1.20 pandas<1.3 scipy<1.6"
_2022 = "numpy<1.24 pandas<2 scipy<1.11"
_2023 = "numpy<2 pandas<3 scipy<2"
_2024 = "numpy<3 pandas<3 scipy<2"

# Framework and version: Python, packages.
# TensorFlow up to 2.11 needs a limit for protobuf: its own requirement allows incompatible newer versions.
_EXECUTOR_IMAGES = {
    "tf 1.15": ("3.7", f"tensorflow==1.15.* protobuf<3.21 {_2020}"),
    "tf 2.1": ("3.7", f"tensorflow==2.1.* protobuf<3.21 {_2020}"),
    "tf 2.2": ("3.7", f"tensorflow==2.2.* protobuf<3.21 {_2020}"),
    "tf 2.3": ("3.7", f"tensorflow==2.3.* protobuf<3.21 {_2020}"),
    "tf 2.4": ("3.7", f"tensorflow==2.4.* protobuf<3.21 {_2020}"),
    "tf 2.5": ("3.7", f"tensorflow==2.5.* protobuf<3.21 {_2020}"),
    "tf 2.6": ("3.7", f"tensorflow==2.6.* protobuf<3.21 {_2020}"),
    "tf 2.7": ("3.7", f"tensorflow==2.7.* protobuf<3.21 {_2022}"),
    "tf 2.8": ("3.7", f"tensorflow==2.8.* protobuf<3.21 {_2022}"),
    "tf 2.9": ("3.7", f"tensorflow==2.9.* protobuf<3.21 {_2022}"),
    "tf 2.10": ("3.7", f"tensorflow==2.10.* protobuf<3.21 {_2022}"),
    "tf 2.11": ("3.7", f"tensorflow==2.11.* protobuf<3.21 {_2022}"),
    "tf 2.12": ("3.10", f"tensorflow==2.12.* {_2023}"),
    "tf 2.13": ("3.10", f"tensorflow==2.13.* {_2023}"),
    "tf 2.14": ("3.10", f"tensorflow==2.14.* {_2023}"),
    "tf 2.15": ("3.10", f"tensorflow==2.15.* {_2023}"),
    "tf 2.16": ("3.10", f"tensorflow==2.16.* {_2023}"),
    "tf 2.17": ("3.10", f"tensorflow==2.17.* {_2023}"),
    "pytorch 1.4": ("3.7", f"torch==1.4.* torchvision==0.5.* {_2020}"),
    "pytorch 1.6": ("3.7", f"torch==1.6.* torchvision==0.7.* {_2020}"),
    "pytorch 1.7": ("3.7", f"torch==1.7.* torchvision==0.8.* torchaudio==0.7.* {_2020}"),
    "pytorch 1.9": ("3.7", f"torch==1.9.* torchvision==0.10.* torchaudio==0.9.* {_2022}"),
    "pytorch 1.10": ("3.7", f"torch==1.10.* torchvision==0.11.* torchaudio==0.10.* {_2022}"),
    "pytorch 1.11": ("3.7", f"torch==1.11.* torchvision==0.12.* torchaudio==0.11.* {_2022}"),
    "pytorch 1.12": ("3.7", f"torch==1.12.* torchvision==0.13.* torchaudio==0.12.* {_2022}"),
    "pytorch 1.13": ("3.10", f"torch==1.13.* torchvision==0.14.* torchaudio==0.13.* {_2023}"),
    "pytorch 2.0": ("3.10", f"torch==2.0.* torchvision==0.15.* torchaudio==2.0.* {_2023}"),
    "pytorch 2.1": ("3.10", f"torch==2.1.* torchvision==0.16.* torchaudio==2.1.* {_2023}"),
    "pytorch 2.2": ("3.10", f"torch==2.2.* torchvision==0.17.* torchaudio==2.2.* {_2023}"),
    "pytorch 2.3": ("3.10", f"torch==2.3.* torchvision==0.18.* torchaudio==2.3.* {_2023}"),
    "pytorch 2.4": ("3.10", f"torch==2.4.* torchvision==0.19.* torchaudio==2.4.* {_2024}"),
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
    "1.15": ("3.7", f"tensorflow==1.15.* protobuf<3.21 scikit-learn==0.20.* xgboost==0.90 {_2020}"),
    "2.1": ("3.7", f"tensorflow==2.1.* protobuf<3.21 scikit-learn==0.22.* xgboost==0.90 {_2020}"),
    "2.2": ("3.7", f"tensorflow==2.2.* protobuf<3.21 scikit-learn==0.23.* xgboost==1.1.* {_2020}"),
    "2.3": ("3.7", f"tensorflow==2.3.* protobuf<3.21 scikit-learn==0.23.* xgboost==1.2.* {_2020}"),
    "2.4": ("3.7", f"tensorflow==2.4.* protobuf<3.21 scikit-learn==0.24.* xgboost==1.3.* {_2020}"),
    "2.5": ("3.7", f"tensorflow==2.5.* protobuf<3.21 scikit-learn==0.24.* xgboost==1.4.* {_2020}"),
    "2.6": ("3.7", f"tensorflow==2.6.* protobuf<3.21 scikit-learn==0.24.* xgboost==1.4.* {_2020}"),
    "2.7": ("3.7", f"tensorflow==2.7.* protobuf<3.21 scikit-learn==1.0.* xgboost==1.4.* {_2022}"),
    "2.8": ("3.7", f"tensorflow==2.8.* protobuf<3.21 scikit-learn==1.0.* xgboost==1.5.* {_2022}"),
    "2.9": ("3.7", f"tensorflow==2.9.* protobuf<3.21 scikit-learn==1.0.* xgboost==1.6.* {_2022}"),
    "2.10": ("3.7", f"tensorflow==2.10.* protobuf<3.21 scikit-learn==1.0.* xgboost==1.6.* {_2022}"),
    "2.11": ("3.7", f"tensorflow==2.11.* protobuf<3.21 scikit-learn==1.0.* xgboost==1.6.* {_2022}"),
}
