from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from reconciler.training_service.jobs.archives import builds_with_setuptools, needs, requirements_of
from tests.support.training_service import trainers


def test_imports_are_found_wherever_they_are(tmp_path: Path) -> None:
    archive = trainers.source_distribution(
        tmp_path / "trainer.tar.gz",
        {
            "setup.py": trainers.SETUP,
            "trainer/__init__.py": "",
            "trainer/task.py": """
                import numpy as np, os.path
                from google.cloud import storage
                from . import model
                from .model import Model
                def late():
                    try:
                        import xgboost.sklearn
                    except ImportError:
                        pass
                    return frame.read_parquet("x")
            """,
            "trainer/deep/er/model.py": "from sklearn.svm import *",
        },
    )
    found = needs(archive)
    assert {"numpy", "os.path", "google.cloud", "google.cloud.storage", "xgboost.sklearn"} <= found.modules
    assert "sklearn.svm" in found.modules
    assert not any("model" in module for module in found.modules)
    assert "read_parquet" in found.names


def test_code_for_another_python_is_read_too(tmp_path: Path) -> None:
    source = "import tensorflow as tf, numpy\nfrom pandas.io import gbq\nprint 'two'\n    import yaml\n"
    archive = trainers.source_distribution(tmp_path / "trainer.tar.gz", {"task.py": source})
    assert {"tensorflow", "numpy", "pandas.io", "yaml"} <= needs(archive).modules


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("setup.py", "from setuptools import setup\nWANTED = ['Scikit_Learn>=1.0', 'pandas[gcp]']\nsetup()"),
        ("trainer.egg-info/requires.txt", "Scikit_Learn>=1.0\npandas\n\n[extra]\nother\n"),
        (
            "PKG-INFO",
            "Metadata-Version: 2.1\nName: x\nRequires-Dist: scikit-learn (>=1.0)\nRequires-Dist: pandas\n",
        ),
        (
            "pyproject.toml",
            "[project]\nname = 'x'\ndependencies = ['scikit-learn ~= 1.0', \"pandas; python_version>'3'\"]",
        ),
        ("setup.cfg", "[options]\ninstall_requires =\n  scikit-learn==1.0\n  pandas\n"),
    ],
)
def test_requirements_are_found_without_running_anything(name: str, content: str, tmp_path: Path) -> None:
    archive = trainers.source_distribution(tmp_path / "trainer.tar.gz", {name: content})
    assert {"scikit-learn", "pandas"} <= needs(archive).distributions


def test_wheels_and_zips_are_read(tmp_path: Path) -> None:
    wheel = trainers.wheel(tmp_path / "trainer-0.1-py3-none-any.whl", "import joblib", ["numpy>=1"])
    assert "joblib" in needs(wheel).modules
    assert "numpy" in needs(wheel).distributions
    assert requirements_of(wheel) == ["numpy>=1"]
    assert requirements_of(trainers.wheel(tmp_path / "alone.whl", "import joblib")) == []
    with zipfile.ZipFile(tmp_path / "trainer.zip", "w") as file:
        file.writestr("trainer-0.1/task.py", "import torch")
    assert "torch" in needs(tmp_path / "trainer.zip").modules


@pytest.mark.parametrize(
    "content", [b"", b"no archive", b"PK\x03\x04 half a zip", b"\x1f\x8b\x08 half a gzip"]
)
def test_what_can_t_be_read_needs_nothing(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(content)
    assert needs(tmp_path / "broken").modules == frozenset()
    assert builds_with_setuptools(tmp_path / "broken")


@pytest.mark.parametrize(
    ("pyproject", "setuptools"),
    [
        (None, True),
        ("[project]\nname = 'x'\n", True),
        (
            "[build-system]\nrequires = ['setuptools>=61', 'wheel']\nbuild-backend = 'setuptools.build_meta'",
            True,
        ),
        ("[build-system]\nrequires = ['setuptools']", True),
        (
            "[build-system]\nrequires = ['setuptools', 'cython']\nbuild-backend = 'setuptools.build_meta'",
            False,
        ),
        ("[build-system]\nrequires = ['hatchling']\nbuild-backend = 'hatchling.build'", False),
        ("[build-system]\nrequires = []\nbuild-backend = 'own'\nbackend-path = ['.']", False),
        ("not toml [", True),
    ],
)
def test_the_build_backend_is_read(pyproject: str | None, setuptools: bool, tmp_path: Path) -> None:
    files = {"setup.py": trainers.SETUP, "vendored/pyproject.toml": "[build-system]\nbuild-backend = 'other'"}
    if pyproject is not None:
        files["pyproject.toml"] = pyproject
    archive = trainers.source_distribution(tmp_path / "trainer.tar.gz", files)
    assert builds_with_setuptools(archive) is setuptools
