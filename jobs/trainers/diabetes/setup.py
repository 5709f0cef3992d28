"""The trainer's own packaging."""

from setuptools import find_packages, setup

setup(
    name="diabetes-trainer",
    version="0.1",
    packages=find_packages(),
    install_requires=["cloudml-hypertune", "google-cloud-storage", "joblib", "scikit-learn"],
    description="Foretells how diabetes progresses",
)
