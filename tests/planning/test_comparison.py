"""The description of a change when the earlier job is only partly known."""

from __future__ import annotations

from msgspec.structs import replace

from reconciler.model.job import COMMIT, State
from reconciler.model.plan import DesiredJob, DriftKind
from reconciler.planning.comparison import code_changed
from tests.support.planning import bound_to, only, plan, reason_of, run_of, wanted

JOB = wanted()


def test_reason_omits_rerun_when_run_before_has_no_claim() -> None:
    assert reason_of(only(plan([JOB], [run_of(wanted(content="b"), State.SUCCEEDED)]))) == "1 field changed"


def _set_output(job: DesiredJob, folder: str, *args: str) -> DesiredJob:
    spec = {"args": list(args), "baseOutputDirectory": {"outputUriPrefix": f"gs://acme/{folder}"}}
    return replace(job, packed=spec)


def test_comparison_ignores_output_directory_that_carries_job_name() -> None:
    before = wanted(content="b")
    old, new = _set_output(before, before.job_name, "b"), _set_output(JOB, JOB.job_name, "a")
    runs = [run_of(old, State.FAILED), run_of(old, State.SUCCEEDED, 2, number=2)]
    claims = [bound_to(old, run, attempt) for attempt, run in enumerate(runs, 1)]
    for number in (1, 2):
        change = only(plan([new], runs[:number], claims[:number]))
        assert [field.pointer for field in change.fields] == ["/args/0"]
        assert not change.is_new
        assert change.spec is None
    second = replace(runs[1], spec=_set_output(before, runs[1].job_name, "b").spec)
    change = only(plan([new], [runs[0], second], claims))
    assert [field.pointer for field in change.fields] == ["/args/0"], "it carries the attempt's own name"
    elsewhere = only(plan([_set_output(JOB, "chosen", "a")], runs[:1], claims[:1]))
    assert [field.pointer for field in elsewhere.fields] == [
        "/args/0",
        "/baseOutputDirectory/outputUriPrefix",
    ]


def test_comparison_with_registered_pipeline_shows_what_its_manifest_changed() -> None:
    """The service fills in the model's folder, and never returns its container."""
    model = {"displayName": "census"}
    before = wanted(content="b")
    registered = {"args": ["b"], "modelToUpload": {**model, "artifactUri": "gs://runs/census/model"}}
    run = run_of(replace(before, packed=registered), State.SUCCEEDED, spec=registered)
    desired = replace(
        JOB, packed={"args": ["a"], "modelToUpload": {**model, "containerSpec": {"imageUri": "serve"}}}
    )
    change = only(plan([desired], [run], [bound_to(before, run)]))
    assert [field.pointer for field in change.fields] == ["/args/0"]
    chosen = replace(JOB, packed={"args": ["b"], "modelToUpload": {**model, "artifactUri": "gs://mine"}})
    change = only(plan([chosen], [run], [bound_to(before, run)]))
    assert [field.pointer for field in change.fields] == ["/modelToUpload/artifactUri"]
    labelled = replace(JOB, packed={"args": ["b"], "modelToUpload": {**model, "labels": {"team": "risk"}}})
    change = only(plan([labelled], [run], [bound_to(before, run)]))
    assert [field.pointer for field in change.fields] == ["/modelToUpload/labels"]


def test_changed_field_masks_secret_of_earlier_run() -> None:
    before = wanted(content="b")
    old = _set_output(before, "x", "--password=hunter2", "--rate=1", "--token", "abc")
    run = run_of(old, State.SUCCEEDED)
    change = only(plan([_set_output(JOB, "x", "--password-file=p", "--rate=2")], [run], [bound_to(old, run)]))
    assert [field.before for field in change.fields] == ["--password=***", "--rate=1", "--token", "***"]


def test_change_has_spec_when_job_has_no_earlier_run() -> None:
    assert only(plan([JOB])).spec == JOB.spec
    run = run_of(JOB, State.RUNNING)
    assert only(plan([JOB], [run], [bound_to(JOB, run)])).spec is None


def test_drift_omits_changed_labels_when_job_is_deleted() -> None:
    claim = bound_to(JOB, run_of(JOB, State.RUNNING), labels="0" * 16)
    assert [drift.kind for drift in plan([JOB], [], [claim]).drift] == [DriftKind.DELETED_OUTSIDE]


def test_change_names_earlier_commit_by_label_then_by_claim() -> None:
    before = wanted(content="b")
    run = run_of(before, State.SUCCEEDED)
    labelled = replace(run, labels={**run.labels, COMMIT: "c" * 40})
    claim = bound_to(before, run, commit="d" * 40)
    assert only(plan([JOB], [labelled], [claim])).earlier_commit == "c" * 40
    assert only(plan([JOB], [run], [claim])).earlier_commit == "d" * 40
    assert only(plan([JOB], [run])).earlier_commit == ""
    assert only(plan([JOB])).earlier_commit == ""


def test_code_is_changed_when_digest_differs_from_earlier_run_or_base() -> None:
    before = run_of(wanted(content="b"), State.SUCCEEDED)
    both, spec_only = only(plan([wanted(code="x")], [before])), only(plan([JOB], [before]))
    assert len(both.fields) == 2
    assert code_changed(both)
    assert not code_changed(spec_only)
    assert code_changed(replace(spec_only, code_changed=True))
