"""Rarely used clients from the wheelhouse: a folder for PYTHONPATH, without an installer."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

# The dependencies of the clients that the test environment lacks.
PACKAGES = {
    *("aiohappyeyeballs", "aiohttp", "aiosignal", "decorator", "frozenlist", "fsspec", "gcsfs"),
    *("google_auth_oauthlib", "multidict", "oauthlib", "propcache", "pyarrow", "requests_oauthlib", "yarl"),
    *("google_cloud_appengine_logging", "google_cloud_audit_log", "google_cloud_logging"),
    *("google_cloud_storage_control", "pandas", "python_dateutil", "six"),
}


def unpack(wheelhouse: Path, folder: Path) -> Path:
    """Unpack gcsfs, pandas, pyarrow, google-cloud-logging and their dependencies into the folder."""
    for wheel in wheelhouse.glob("*.whl"):
        if wheel.name.partition("-")[0] in PACKAGES:
            ZipFile(wheel).extractall(folder)
    return folder
