"""The cause of a job's end: its class, its words and the next step, from the service's error."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from reconciler.model import cause
from reconciler.model.cause import CauseClass, cause_of, error_info, is_failed_set_up, marked_info
from reconciler.model.claim import by_apply
from reconciler.model.job import ErrorInfo, State
from reconciler.model.manifest import TRAINING_PIPELINE
from reconciler.output.wording.cause import (
    brief_cause,
    cause_message,
    cause_remedy,
    cause_short,
    cause_text,
)
from reconciler.training_service.state import records
from tests.support.planning import run_of, wanted

RUN = run_of(wanted("churn-model"), State.FAILED)
TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "task.py", line 3, in <module>\n    main()\n'
    "ValueError: the loss is NaN\nsee the hint"
)
EXIT = "The replica workerpool0-0 exited with a non-zero status of 1. Termination reason: Error."


@pytest.mark.parametrize("state", [state for state in State if state not in (State.FAILED, State.CANCELLED)])
def test_cause_is_missing_unless_run_failed_or_was_cancelled(state: State) -> None:
    assert cause_of(replace(RUN, state=state, error="boom")) is None


def test_cause_of_failed_trainer_has_exit_code_and_last_line_of_traceback() -> None:
    found = cause_of(replace(RUN, error=f"{EXIT}\n{TRACEBACK}", error_code=3), "churn-model")
    assert found is not None
    assert (found.class_, cause_message(found)) == (
        CauseClass.USER_CODE,
        "exit code 1: ValueError: the loss is NaN",
    )
    assert cause_remedy(found) == "see `reconciler logs churn-model` and correct the code"
    assert cause_short(found) == f"user code: exit code 1; {cause_remedy(found)}"
    assert cause_text(found) == f"user code: {cause_message(found)}; {cause_remedy(found)}"


@pytest.mark.parametrize("reason", cause._CAUSES)
def test_remedy_on_runner_omits_commands_that_need_ended_machine(reason: str) -> None:
    about = ErrorInfo(reason, {"class": "set-up"})
    found = cause_of(replace(RUN, info=about, on_runner=True), "churn-model")
    assert found is not None
    for gone in ("reconciler logs", "reconciler apply", "reconciler rerun", "serve", "uv python", "{"):
        assert gone not in cause_remedy(found)


@pytest.mark.parametrize(
    ("error", "code", "class_", "words"),
    [
        (EXIT.replace(" 1.", " 137."), 3, "resources", "killed"),
        (
            "The replica master 0 ran out-of-memory and exited with a status of 9(SIGKILL)",
            3,
            "resources",
            "memory",
        ),
        ("Replicas low on memory: workerpool0.", 8, "resources", "memory"),
        (
            "The following quota metrics exceed quota limits: custom_model_training_cpus",
            8,
            "resources",
            "quota",
        ),
        ("Resources are insufficient in region: us-central1.", 8, "resources", "machine"),
        (
            "The replica exited with a non-zero status of 128. Termination reason: StartError.",
            3,
            "set-up",
            "image",
        ),
        ("Failed to pull image us-docker.pkg.dev/acme/train:1", 5, "set-up", "image"),
        ("The service account doesn't have permission to read the bucket", 7, "set-up", "permission"),
        ("Internal error occurred for the current attempt.", 13, "service", "service"),
        (EXIT, 3, "user-code", "exit code 1"),
        ("", 3, "user-code", "code"),
        ("", 4, "resources", "time limit"),
        ("", 8, "resources", "machine"),
        ("", 0, "service", "service"),
        ("what nobody knows", 99, "service", "service"),
    ],
)
def test_cause_on_google_follows_from_message_then_from_code(
    error: str, code: int, class_: str, words: str
) -> None:
    found = cause_of(replace(RUN, error=error, error_code=code))
    assert found is not None
    assert (str(found.class_), words in brief_cause(found)) == (class_, True), found


PIPELINE = replace(RUN, kind=TRAINING_PIPELINE)
NO_MODEL = 'There are no files under "gs://acme/census/model" to copy.'


@pytest.mark.fault(74)
@pytest.mark.parametrize("code", [0, 3, 5, 7, 9])
@pytest.mark.parametrize("error", [NO_MODEL, EXIT, "the image isn't found"])
def test_pipeline_with_succeeded_training_failed_at_its_model(error: str, code: int) -> None:
    trained = {"state": "JOB_STATE_SUCCEEDED"}
    found = cause_of(replace(PIPELINE, error=error, error_code=code, backing_body=trained))
    assert found is not None
    assert (found.class_, brief_cause(found)) == (CauseClass.MODEL, "the model could not be registered")
    assert "correct modelToUpload, modelId or parentModel, or" in cause_remedy(found)
    assert cause_message(found) == f"the model could not be registered: {error}"
    assert "correct the code" not in cause_text(found) + cause_short(found)


def test_pipeline_with_failed_training_has_the_cause_of_its_training() -> None:
    failed = {"state": "JOB_STATE_FAILED"}
    for backing in ({}, failed):
        found = cause_of(replace(PIPELINE, error=EXIT, error_code=3, backing_body=backing))
        assert found is not None
        assert brief_cause(found) == "exit code 1"
    found = cause_of(replace(PIPELINE, error="", error_code=3, backing_body=failed))
    assert found is not None
    assert found.class_ is CauseClass.USER_CODE


@pytest.mark.parametrize("code", [0, 3, 5, 9])
def test_pipeline_of_listing_with_unknown_words_may_have_failed_at_either_step(code: int) -> None:
    found = cause_of(replace(PIPELINE, error=NO_MODEL, error_code=code), "census")
    assert found is not None
    assert brief_cause(found) == "its training failed, or its model could not be registered"
    assert cause_remedy(found) == "`reconciler show census` says which"


EMBEDDED = ErrorInfo("NON_ZERO_EXIT", {"class": "user-code", "exitCode": "1"})
FRAMES = 'Traceback (most recent call last):\n  File "/a/task.py", line 3, in <module>\n    main()\n'


@pytest.mark.parametrize(
    ("printed", "class_", "message", "remedy"),
    [
        ("no data", "user-code", "no data", "correct the code"),
        ("warning\ntask.py: error: no --epochs\n\n", "user-code", "task.py: error: no --epochs", "the code"),
        ("    raise e\nx.Forbidden: 403\n: more", "user-code", "x.Forbidden: 403", "correct the code"),
        (f"{FRAMES}ModuleNotFoundError: No module named 'a'", "user-code", "named 'a'", "requirements.txt"),
        (f"{FRAMES}OSError: [Errno 28] No space left: 'm'", "resources", "[Errno 28]", "disk space"),
        (f"{FRAMES}numpy.core._ArrayMemoryError: 7 GiB", "resources", "7 GiB", 'larger "machineType"'),
        (f"{FRAMES}ValueError: MemoryError", "user-code", "ValueError: MemoryError", "correct the code"),
        (
            f'{FRAMES}  File "/a/b.py", line 7\n    x(\n     ^\nSyntaxError: never closed',
            "user-code",
            "SyntaxError: never closed (b.py, line 7)",
            "correct the code",
        ),
    ],
)
def test_last_line_of_trainer_is_message_and_decides_remedy(
    printed: str, class_: str, message: str, remedy: str
) -> None:
    found = cause_of(replace(RUN, error=f"{EXIT}\n{printed}", info=EMBEDDED))
    assert found is not None
    assert (str(found.class_), cause_message(found).startswith("exit code 1: ")) == (class_, True)
    assert cause_message(found).endswith(message) or message in cause_message(found)
    assert remedy in cause_remedy(found)


def test_cause_text_drops_full_stop_before_remedy() -> None:
    info = ErrorInfo("ENDED_BY_SIGNAL", {"class": "user-code"})
    found = cause_of(replace(RUN, error="It was killed by signal 11 (SIGSEGV).", info=info))
    assert found is not None
    assert "(SIGSEGV); see " in cause_text(found)


def test_output_of_trainer_does_not_decide_cause_on_google() -> None:
    printed = f"{EXIT}\nTraceback (most recent call last):\n  x\nMemoryError: out of memory, quota, pip"
    found = cause_of(replace(RUN, error=printed, error_code=3))
    assert found is not None
    assert (found.class_, brief_cause(found)) == (CauseClass.USER_CODE, "exit code 1")
    in_one_line = f"{EXIT} Traceback (most recent call last): [...] pip install: no space left on device"
    found = cause_of(replace(RUN, error=in_one_line))
    assert found is not None
    assert brief_cause(found) == "exit code 1"


@pytest.mark.parametrize(("word", "class_"), [("EXPIRED", "resources"), ("PARTIALLY_SUCCEEDED", "user-code")])
def test_states_of_vertex_ai_alone_have_causes(word: str, class_: str) -> None:
    found = cause_of(replace(RUN, service_state=f"JOB_STATE_{word}"))
    assert found is not None
    assert found.class_ == class_


def test_cause_of_cancelled_run_names_suspend_and_rerun_or_time_limit() -> None:
    found = cause_of(replace(RUN, state=State.CANCELLED, error="CANCELED", error_code=1), "churn-model")
    assert found is not None
    assert cause_text(found) == (
        'cancelled on request; set "suspend: true" to leave it stopped, '
        "or run it again with `reconciler rerun churn-model`"
    )
    late = "The job was cancelled: it ran for longer than scheduling.timeout."
    found = cause_of(replace(RUN, state=State.CANCELLED, error=late))
    assert found is not None
    assert cause_text(found) == (
        'cancelled by its time limit; raise "timeout" under spec.scheduling, or correct the code if it hung'
    )


def test_cause_of_cancel_by_apply_names_no_rerun() -> None:
    found = cause_of(replace(RUN, state=State.CANCELLED, cancelled=by_apply("superseded by census_1")))
    assert found is not None
    again = "; `reconciler apply` submits it again once a manifest wants it"
    assert cause_text(found) == by_apply("superseded by census_1") + again


def test_every_reason_of_embedded_service_has_words_class_and_remedy() -> None:
    assert records.DOMAIN == cause.DOMAIN
    for reason, class_ in records._CLASS_OF.items():
        status = records.error_status(3, "It failed.", records.details_of(reason, exitCode="3"))
        info = error_info(status["details"])
        assert info == ErrorInfo(reason, {"class": class_, "exitCode": "3"})
        state = State.CANCELLED if class_ == "cancelled" else State.FAILED
        found = cause_of(replace(RUN, state=state, error="It failed.", info=info))
        assert found is not None
        assert found.class_ == class_, reason
        assert reason in cause._CAUSES
        assert not re.search(r"[{}]", cause_text(found)), reason
        assert is_failed_set_up(replace(RUN, info=info)) == (class_ == "set-up")


def test_unknown_reason_of_newer_service_keeps_its_class() -> None:
    found = cause_of(replace(RUN, error="Odd.", info=ErrorInfo("MOON_FULL", {"class": "resources"})))
    assert found is not None
    assert (found.class_, brief_cause(found), cause_message(found)) == ("resources", "moon full", "Odd.")
    found = cause_of(replace(RUN, info=ErrorInfo("MOON_FULL", {"class": "stars"})))
    assert found is not None
    assert found.class_ is CauseClass.SERVICE


@pytest.mark.parametrize(
    "details",
    [
        None,
        "x",
        [1],
        [{}],
        [{"domain": "googleapis.com", "reason": "A", "metadata": {}}],
        [{"domain": cause.DOMAIN, "reason": 1, "metadata": {}}],
        [{"domain": cause.DOMAIN, "reason": "A"}],
    ],
)
def test_details_of_other_services_give_no_error_info(details: object) -> None:
    assert error_info(details) is None


def test_similar_message_is_not_parsed_as_mark() -> None:
    assert marked_info("Set-up failed (X; image=a; entry=0a): m")[0] == ErrorInfo(
        "X", {"class": "set-up", "image": "a", "entry": "0a"}
    )
    for text in ("a Set-up failed (X): m", "Set-up failed (x): m", "Set-up failed"):
        assert marked_info(text) == (None, text)


def test_cause_of_failed_set_up_has_last_line_of_installer() -> None:
    info = ErrorInfo("PACKAGES_NOT_RESOLVED", {"class": "set-up"})
    found = cause_of(replace(RUN, error="No solution:\n  a\n  cause: no pandas==9\n", info=info))
    assert found is not None
    assert cause_message(found) == "No solution: … cause: no pandas==9"
