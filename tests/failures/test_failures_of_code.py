"""Failures of a trainer and of its set-up, each remedied by following the tool's output."""

from __future__ import annotations

import pytest

from tests.failures.stories import GOOD, PYTHON, Place, Story, play
from tests.support.repository import Repository

CODE = "see `reconciler logs {}` and correct the code"
ONCE = """
import os, signal
from pathlib import Path
tried = Path(__file__).with_name("tried")
if not tried.exists():
    tried.touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def _correct(place: Place, job: str) -> None:
    place.code(job, GOOD)


def _broken(code: str):  # type: ignore[no-untyped-def]
    return lambda place, job: place.job(job, code)


def _crash(name: str, code: str, printed: str) -> Story:
    """Return a failure whose remedy is to correct the code."""
    story = Story(name, _broken(code), "", "corrected task.py", _correct, "user-code")
    story.printed = f"JOB failed, user code: {printed}; {CODE.format(story.job)}"
    return story


def _image(
    name: str, requirement: tuple[str, ...], printed: str, *, python: str = PYTHON, remedy: str
) -> Story:
    """Return a failure whose remedy is another entry of the job's image."""
    story = Story(name, lambda place, job: None, "", "corrected the image's entry in reconciler.yaml")
    image = f"example.test/{story.job}:1"

    def breaks(place: Place, job: str) -> None:
        place.image(image, *requirement, python=python)
        place.job(job, image=image)

    story.breaks = breaks
    story.mends = lambda place, job: place.image(image)
    story.printed = (
        f"JOB failed, set-up: {printed.replace('IMAGE', image)}; {remedy}, then run `reconciler apply`"
    )
    story.cause = "set-up"
    return story


ENTRY = 'set the image\'s entry under "images" in reconciler.yaml'
RESOLVE = f'correct the package\'s requirements (another version), or {ENTRY} (another "python")'
UNKNOWN = "The embedded training service doesn't know the image"
FIELD = "job_spec.worker_pool_specs[0].python_package_spec.executor_image_uri"
AS = f'say under images in reconciler.yaml what to run it as: "{{}}": {{{{…}}}} ({FIELD})'

CRASHES = [
    _crash("exception", "raise ValueError('the loss is NaN')", "exit code 1: ValueError: the loss is NaN"),
    _crash(
        "syntax error", "print('a')\ndef f(:\n", "exit code 1: SyntaxError: invalid syntax (task.py, line 2)"
    ),
    _crash("exit code", "import sys; sys.exit(3)", "exit code 3"),
    _crash("words at the exit", "import sys; sys.exit('there is no data')", "exit code 1: there is no data"),
    _crash(
        "unknown argument",
        "import argparse; argparse.ArgumentParser('task.py').parse_args(['--epoch=3'])",
        "exit code 2: task.py: error: unrecognized arguments: --epoch=3",
    ),
    _crash(
        "segmentation fault",
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        "The replica workerpool0-0 was killed by signal 11 (SIGSEGV)",
    ),
]
SET_UPS = [
    _image(
        "package missing in the index",
        ("no-such-package==1",),
        "no-such-package==1 could not be installed: Because no-such-package was not found …"
        " and you require no-such-package==1",
        remedy=RESOLVE,
    ),
    _image(
        "requirements in conflict",
        ("joblib<1", "joblib>=1"),
        "joblib<1, joblib>=1 could not be installed: Because you require joblib<1 and joblib>=1",
        remedy=RESOLVE,
    ),
    _image(
        "Python not here",
        (),
        "IMAGE is to run on Python 3.99; this machine has Python …",
        python="3.99",
        remedy=f"install one with `uv python install`, or {ENTRY}",
    ),
    Story(
        "typo in an image",
        lambda place, job: place.job(job, image="example.test/plian:1"),
        f"failed   submit  JOB: {UNKNOWN} example.test/plian:1: correct its name to example.test/plain:1, or "
        + AS.format("example.test/plian:1"),
        "corrected the name in the manifest",
        lambda place, job: place.edit(job, "plian:1", "plain:1"),
    ),
    Story(
        "image without an entry",
        lambda place, job: place.job(job, image="registry.test/team/forecast:7"),
        f"failed   submit  JOB: {UNKNOWN} registry.test/team/forecast:7: correct its name, or "
        + AS.format("registry.test/team/forecast:7"),
        "said in reconciler.yaml what to run it as",
        lambda place, job: place.image("registry.test/team/forecast:7"),
    ),
]


def _free(place: Place, job: str) -> None:
    """Free disk space, so that writes succeed from now on."""
    disk = place.root.parent / "disk"
    disk.unlink()
    disk.touch()


def _fill(place: Place, job: str) -> None:
    disk = place.root.parent / "disk"
    disk.symlink_to("/dev/full")
    place.job(job, f"open({str(disk)!r}, 'w', buffering=1).write('weights\\n')\n")


OTHERS = [
    Story(
        "module that isn't installed",
        _broken("import joblib"),
        "JOB failed, user code: exit code 1: ModuleNotFoundError: No module named 'joblib'; "
        "list joblib in trainers/module-that-isn-t-installed/requirements.txt, or correct the import",
        "listed joblib in the code's requirements.txt",
        lambda place, job: place.repository.write(f"trainers/{job}/requirements.txt", "joblib\n"),
        "user-code",
    ),
    Story(
        "full disk",
        _fill,
        "JOB failed, resources: exit code 1: OSError: [Errno 28] No space left on device; "
        "free or add disk space, then run it again with `reconciler rerun full-disk`",
        "freed disk space, ran the command",
        _free,
        "resources",
    ),
    Story(
        "killed by hand",
        lambda place, job: place.job(job, ONCE.replace("__file__", repr(str(place.root.parent / "x")))),
        "JOB failed, resources: The replica workerpool0-0 was killed by signal 9 (SIGKILL): out of memory, "
        'or killed by hand; give it a larger "machineType" in spec.workerPoolSpecs, '
        "or run it again with `reconciler rerun killed-by-hand`",
        "ran the command",
        cause="resources",
    ),
    Story(
        "time limit",
        lambda place, job: (
            place.job(job, "import time; time.sleep(2)"),
            place.edit(job, "spec:\n", "spec:\n  scheduling: {timeout: 1s}\n"),
        ),
        "JOB was cancelled by its time limit; "
        'raise "timeout" under spec.scheduling, or correct the code if it hung',
        "raised scheduling.timeout",
        lambda place, job: place.edit(job, "timeout: 1s", "timeout: 600s"),
        "cancelled",
    ),
    Story(
        "hang",
        lambda place, job: (
            place.job(job, "import threading; threading.Event().wait()"),
            place.edit(job, "spec:\n", "spec:\n  scheduling: {timeout: 1s}\n"),
        ),
        "JOB was cancelled by its time limit; "
        'raise "timeout" under spec.scheduling, or correct the code if it hung',
        "corrected task.py",
        _correct,
        "cancelled",
    ),
]
METRIC = """
import hypertune
hypertune.HyperTune().report_hyperparameter_tuning_metric("accuracy", 0.5)
"""


def _reports(place: Place, job: str) -> None:
    place.code(job, METRIC)
    place.repository.write(f"trainers/{job}/requirements.txt", "cloudml-hypertune\n")


TUNING = [
    Story(
        "all trials fail",
        lambda place, job: place.tuned(job, "raise ValueError('the loss is NaN')"),
        f"JOB failed, user code: exit code 1: ValueError: the loss is NaN; {CODE.format('all-trials-fail')}",
        "corrected task.py",
        _reports,
        "user-code",
    ),
    Story(
        "no trial reports its metric",
        lambda place, job: place.tuned(job, GOOD),
        "JOB failed, user code: 2 of 2 trials failed. "
        "Trial 2: The trial has ended without reporting accuracy; "
        "let the code report it: hypertune.HyperTune().report_hyperparameter_tuning_metric("
        'hyperparameter_metric_tag="accuracy", metric_value=…), of the distribution cloudml-hypertune',
        "corrected task.py",
        _reports,
        "user-code",
    ),
]


@pytest.mark.parametrize(
    "stories", [CRASHES, SET_UPS, OTHERS, TUNING], ids=["crashes", "set-ups", "others", "tuning"]
)
def test_a_failure_is_remedied_by_what_is_printed(repository: Repository, stories: list[Story]) -> None:
    play(Place(repository), *stories)
