"""The trainer's own packaging, as it was for AI Platform Training."""

from setuptools import find_packages, setup

setup(
    name="digits-tuned-trainer",
    version="0.1",
    packages=find_packages(),
    install_requires=["cloudml-hypertune", "google-cloud-storage", "joblib", "scikit-learn"],
    description="Recognizes hand-written digits, with values that are tuned",
)
