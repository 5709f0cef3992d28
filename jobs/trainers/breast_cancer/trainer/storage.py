"""Uploads to Cloud Storage."""

from google.cloud import storage


def upload(name, folder):
    """Copy the file `name` below the `gs://` URI `folder`; return the object's URI."""
    uri = folder.rstrip("/") + "/" + name
    bucket, _, path = uri[len("gs://") :].partition("/")
    storage.Client().bucket(bucket).blob(path).upload_from_filename(name)
    return uri
