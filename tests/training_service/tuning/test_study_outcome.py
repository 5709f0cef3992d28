"""What a tuning job comes to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconciler.training_service.state.records import JobState
from reconciler.training_service.state.trial_records import TrialRecord, TrialState
from reconciler.training_service.tuning.resources import ending_of_job, ending_of_study, has_failed
from tests.support.training_service.studies import study, trial, vertex_job

STATES = {
    "s": TrialState.SUCCEEDED,
    "f": TrialState.FAILED,
    "r": TrialState.RUNNING,
    "q": TrialState.QUEUED,
    "t": TrialState.STOPPING,
    "c": TrialState.CANCELLED,
}


def trials(text: str) -> list[TrialRecord]:
    """One trial for each letter."""
    return [
        trial(number, [0.5], STATES[letter], message="It broke." if letter == "f" else "")
        for number, letter in enumerate(text, 1)
    ]


@pytest.mark.parametrize(
    ("text", "max_failed", "exhausted", "state"),
    [
        ("", None, False, None),
        ("ssss", None, False, None),  # one of five is still to be started
        ("sssss", None, False, "SUCCEEDED"),
        ("ssssr", None, False, None),
        ("ssss", None, True, "SUCCEEDED"),
        ("sssr", None, True, None),
        ("ssst", None, True, None),
        ("ssf", None, True, "SUCCEEDED"),
        ("ff", None, False, None),
        ("fff", None, False, "FAILED"),
        ("fffrq", None, False, "FAILED"),
        ("fsff", None, False, None),  # one shows that the trainer can
        ("fsfff", None, False, "SUCCEEDED"),
        ("ff", None, True, "FAILED"),
        ("f", 1, False, "FAILED"),
        ("sfr", 2, False, None),
        ("sffr", 2, False, "FAILED"),
        ("fff", 4, False, None),
        ("fffff", 9, False, "FAILED"),
        ("ffffs", 9, False, "SUCCEEDED"),
        # What is left when a job has failed is cancelled, or succeeds before it is: the job has failed.
        ("fffc", None, False, "FAILED"),
        ("cfff", None, False, "FAILED"),
        ("fffs", None, False, "FAILED"),
        ("fffcs", None, False, "FAILED"),
        ("sfc", 1, False, "FAILED"),
    ],
)
def test_how_a_study_ends(text: str, max_failed: int | None, exhausted: bool, state: str | None) -> None:
    found = study(max_trials=5, max_failed=max_failed)
    ending = ending_of_study(found, trials(text), exhausted=exhausted)
    assert (ending.state if ending else None) == state


def test_the_first_trials_are_those_that_ended_first() -> None:
    first, *others = trials("sfff")  # of five
    late = [replace(first, end_time="9"), *(replace(each, end_time=str(each.number)) for each in others)]
    assert ending_of_study(study(), late, exhausted=False)
    early = [replace(first, end_time="1"), *late[1:]]
    assert ending_of_study(study(), early, exhausted=False) is None


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("", "CANCELLED"),
        ("ssr", "CANCELLED"),
        ("sssss", "SUCCEEDED"),
        ("ssssc", "CANCELLED"),
        ("fff", "FAILED"),
    ],
)
def test_a_cancelled_job_ends_as_such_unless_it_had_come_to_its_end(text: str, state: str) -> None:
    job = replace(vertex_job({}), state=JobState.CANCELLING, error_message="Enough.")
    ending = ending_of_job(job, study(max_trials=5), trials(text), exhausted=False)
    assert ending
    assert ending.state == state
    assert state != "CANCELLED" or ending.message == "Enough."


def test_the_error_names_a_trial_and_what_was_wrong_with_it() -> None:
    ending = ending_of_study(study(max_failed=2), trials("sff"), exhausted=False)
    assert ending
    assert ending.code == 3
    assert ending.message == "2 of 3 trials failed, and the job fails with 2. Trial 3: It broke."
    ending = ending_of_study(study(), trials("fff"), exhausted=False)
    assert ending
    assert ending.message == "3 of 3 trials failed. Trial 3: It broke."


def test_a_trial_without_a_metric_has_failed_on_vertex_ai_only() -> None:
    silent = [replace(each, final=None, measurements=()) for each in trials("sss")]
    vertex, ml = study(metric_needed=True), study()
    assert [has_failed(each, silent[0]) for each in (vertex, ml)] == [True, False]
    ending = ending_of_study(vertex, silent, exhausted=False)
    assert ending
    assert ending.state == "FAILED"
    assert "without reporting accuracy." in ending.message
    assert ending_of_study(ml, silent, exhausted=False) is None
