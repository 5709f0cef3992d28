"""Run code that `reconciler` staged: the program of a container's command, sent as its text.

Arguments: the archive's gs:// URI, its SHA-256 in hex, the module, the path of a requirements file in the
archive or "", and then the module's own arguments. It needs Python 3.7 and its standard library. Each reason
for which the module can't start is one last line on stderr, and ends the program with 1.
"""

import atexit
import hashlib
import io
import os
import runpy
import shutil
import subprocess
import sys
import tarfile
import tempfile
from typing import NoReturn


def stop(reason: str) -> NoReturn:
    """End the program."""
    sys.exit("reconciler: " + reason)


def read(uri: str, digest: str) -> bytes:
    """Return the archive's bytes."""
    bucket, _, name = uri[len("gs://") :].partition("/")
    mount = os.path.join(os.environ.get("RECONCILER_GCS_DIR", "/gcs"), bucket)
    try:
        with open(os.path.join(mount, name), "rb") as file:
            data = file.read()
    except OSError as error:
        if not os.path.isdir(mount):
            stop(f"{mount} isn't mounted, so the code can't be read; use another machine type")
        stop(f"can't read the code, {uri}: {error.strerror}; submit the job again, which uploads it")
    if hashlib.sha256(data).hexdigest() != digest:
        stop(f"{uri} has changed since the job was submitted; remove that object, and submit the job again")
    return data


def unpack(data: bytes, folder: str) -> None:
    """Write the archive's files below a folder."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            names = member.name.split("/")
            if not member.isfile() or ".." in names or "" in names:
                stop(f"the archive of the code contains {member.name!r}, which is no file of a package")
            content = archive.extractfile(member)
            assert content, "a file has content"
            path = os.path.join(folder, *names)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                shutil.copyfileobj(content, file)
            os.chmod(path, member.mode)


def install(requirements: str, name: str, folder: str) -> None:
    """Install the packages of a requirements file into a folder."""
    if subprocess.call([sys.executable, "-c", "import pip"], stderr=subprocess.DEVNULL):
        stop(f"the image has no pip to install {name}; use an image with pip, or with these packages in it")
    options = "--no-deps --require-hashes --no-input --no-cache-dir --disable-pip-version-check --retries 2"
    pip = [sys.executable, "-m", "pip", "install", *options.split()]
    command = [*pip, "--target", folder, "-r", requirements]
    output = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        for line in process.stdout or ():
            os.write(1, line)
            output.append(line)
    if process.returncode == 0:
        return
    text = b"".join(output)
    if b"DO NOT MATCH THE HASHES" in text:
        stop(f"a package doesn't have its hash in {name}; lock the requirements again")
    if b"Retrying (" in text:
        stop(f"pip can't reach the package index to install {name}; check the job's network")
    stop(f"pip can't install {name}, for the reason above; correct it")


def remove(folder: str, owner: int) -> None:
    """Remove the folder, unless this is a forked child of its owner."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Run the module."""
    uri, digest, module, requirements = sys.argv[1:5]
    data = read(uri, digest)
    try:
        folder = tempfile.mkdtemp(prefix="reconciler-")
        # Not at once after the module: a traceback quotes lines of its files.
        atexit.register(remove, folder, os.getpid())
        code, libraries = os.path.join(folder, "code"), os.path.join(folder, "libraries")
        unpack(data, code)
    except OSError as error:
        stop(f"can't unpack the code: {error}; name a writable folder with room by TMPDIR")
    if requirements:
        install(os.path.join(code, requirements), requirements, libraries)
    sys.path[:1] = [code, libraries]
    # For the programs that the module starts.
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([code, libraries] + ([inherited] if inherited else []))
    del sys.argv[1:5]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
