"""The description of a change when the earlier job is only partly known."""

from __future__ import annotations

from msgspec.structs import replace

from reconciler.model.job import COMMIT, State
from reconciler.model.plan import DesiredJob, DriftKind
from reconciler.planning.comparison import code_changed
from tests.support.planning import bound_to, only, plan, reason_of, run_of, wanted

JOB = wanted()


def test_without_a_claim_nothing_is_said_of_rerun_where_something_else_changed() -> None:
    assert reason_of(only(plan([JOB], [run_of(wanted(content="b"), State.SUCCEEDED)]))) == "1 field changed"


def _at(job: DesiredJob, folder: str, *args: str) -> DesiredJob:
    spec = {"args": list(args), "baseOutputDirectory": {"outputUriPrefix": f"gs://acme/{folder}"}}
    return replace(job, packed=spec)


def test_output_directories_that_carry_the_jobs_name_are_no_change() -> None:
    before = wanted(content="b")
    old, new = _at(before, before.job_name, "b"), _at(JOB, JOB.job_name, "a")
    runs = [run_of(old, State.FAILED), run_of(old, State.SUCCEEDED, 2, number=2)]
    claims = [bound_to(old, run, attempt) for attempt, run in enumerate(runs, 1)]
    for number in (1, 2):
        change = only(plan([new], runs[:number], claims[:number]))
        assert [field.pointer for field in change.fields] == ["/args/0"]
        assert not change.is_new
        assert change.spec is None
    elsewhere = only(plan([_at(JOB, "chosen", "a")], runs[:1], claims[:1]))
    assert [field.pointer for field in elsewhere.fields] == [
        "/args/0",
        "/baseOutputDirectory/outputUriPrefix",
    ]


def test_a_secret_of_the_run_before_is_not_shown() -> None:
    before = wanted(content="b")
    old = _at(before, "x", "--password=hunter2", "--rate=1", "--token", "abc")
    run = run_of(old, State.SUCCEEDED)
    change = only(plan([_at(JOB, "x", "--password-file=p", "--rate=2")], [run], [bound_to(old, run)]))
    assert [field.before for field in change.fields] == ["--password=***", "--rate=1", "--token", "***"]


def test_a_job_without_an_earlier_run_is_new_and_has_its_spec() -> None:
    assert only(plan([JOB])).spec == JOB.spec
    run = run_of(JOB, State.RUNNING)
    assert only(plan([JOB], [run], [bound_to(JOB, run)])).spec is None


def test_a_job_that_is_gone_is_not_modified() -> None:
    claim = bound_to(JOB, run_of(JOB, State.RUNNING), labels="0" * 16)
    assert [drift.kind for drift in plan([JOB], [], [claim]).drift] == [DriftKind.DELETED_OUTSIDE]


def test_a_changed_job_names_the_commit_of_the_earlier_run_by_its_label_or_else_its_claim() -> None:
    before = wanted(content="b")
    run = run_of(before, State.SUCCEEDED)
    labelled = replace(run, labels={**run.labels, COMMIT: "c" * 40})
    claim = bound_to(before, run, commit="d" * 40)
    assert only(plan([JOB], [labelled], [claim])).earlier_commit == "c" * 40
    assert only(plan([JOB], [run], [claim])).earlier_commit == "d" * 40
    assert only(plan([JOB], [run])).earlier_commit == ""
    assert only(plan([JOB])).earlier_commit == ""


def test_the_code_changed_where_its_digest_did_since_the_earlier_run_or_the_base() -> None:
    before = run_of(wanted(content="b"), State.SUCCEEDED)
    both, spec_only = only(plan([wanted(code="x")], [before])), only(plan([JOB], [before]))
    assert len(both.fields) == 2
    assert code_changed(both)
    assert not code_changed(spec_only)
    assert code_changed(replace(spec_only, code_changed=True))
