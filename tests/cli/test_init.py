"""`reconciler init`: a complete set-up, tried as a new user would, that overwrites no file."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from reconciler.base.errors import ReconcilerError
from reconciler.cli import run
from reconciler.manifests import schemas
from reconciler.manifests.settings import Environment, from_document, load_config
from reconciler.manifests.validate import check_document
from reconciler.setup import files as texts
from reconciler.setup.files import (
    APPLY_WORKFLOW,
    EXAMPLE,
    NO_SHA,
    PLAN_WORKFLOW,
    README,
    Existing,
    File,
    ReconcilerAction,
    Setup,
    files_of,
    github_repository,
    is_plain_branch,
    source_id,
)
from reconciler.setup.next_steps import PROVIDER_VARIABLE, pool_id
from tests.support.act import PIN, TOOL, Actions
from tests.support.github_server import GitHubServer
from tests.support.identity_condition import GENUINE, allows
from tests.support.repository import Repository, Result
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow

SHA = "3d3c42e5aac5ba805825da76410c181273ba90b1"
ACTION = ("--action", f"acme/reconciler@{SHA}")
GOOGLE = (
    *("--engine", "google", "--project", "acme-ml", "--location", "europe-west4"),
    *("--staging-bucket", "gs://acme-staging/"),
)
SUBMITTER = "reconciler-submitter@acme-ml.iam.gserviceaccount.com"
TRAINER = "reconciler-trainer@acme-ml.iam.gserviceaccount.com"
WRITTEN = [
    ".gitattributes",
    ".github/workflows/reconciler-apply.yml",
    ".github/workflows/reconciler-plan.yml",
    ".pre-commit-config.yaml",
    ".vscode/config.schema.json",
    ".vscode/extensions.json",
    ".vscode/manifest.schema.json",
    ".vscode/settings.json",
    "README.md",
    "jobs/iris.yaml",
    "jobs/trainers/iris/requirements.in",
    "jobs/trainers/iris/requirements.lock",
    "jobs/trainers/iris/train.py",
    "reconciler.yaml",
]


class Empty(Repository):
    """A repository that contains no file and only git's own folder."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.root = root
        self.hold = root.parent / "hold"
        self.git("init", "--quiet", "--initial-branch=main")

    def here(self, *arguments: str) -> Result:
        """Run `reconciler …` in this process, faster than in a new process."""
        out, err = StringIO(), StringIO()
        with chdir(self.root), redirect_stdout(out), redirect_stderr(err):
            code = run(list(arguments))
        return Result(code, out.getvalue(), err.getvalue())

    def init(self, *arguments: str) -> Result:
        """Run `reconciler init`, and check that it succeeds."""
        done = self.here("init", *arguments)
        assert (done.code, done.err) == (0, "")
        return done

    def steps(self, *arguments: str) -> str:
        """Return the steps on GitHub and, for such an environment, in Google Cloud; write no file."""
        before = self.files()
        parts = [self.here("init", "--steps", place, *arguments) for place in ("google", "github")]
        assert self.files() == before
        assert parts[1].code == 0
        return "\n".join(part.out for part in parts)

    def files(self) -> dict[str, bytes | str]:
        """Return the contents of the work tree's files, and the targets of its links."""
        found = {}
        for path in self.root.rglob("*"):
            name = path.relative_to(self.root).as_posix()
            if name.split("/")[0] != ".git":
                found[name] = self._content(path)
        return found

    @staticmethod
    def _content(path: Path) -> bytes | str:
        if path.is_symlink():
            return f"-> {path.readlink()}"
        return path.read_bytes() if path.is_file() else "folder" if path.is_dir() else "other"

    def text(self, path: str) -> str:
        return (self.root / path).read_text()


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Empty]:
    made = Empty(tmp_path / "Risk Models")
    yield made
    made.stop()


def verbs(done: Result) -> dict[str, str]:
    """Return the verb that the command prints for each file."""
    found = re.findall(r"^  (wrote|kept|renewed|filled in) +(\S+)$", done.out, re.MULTILINE)
    return {path: verb for verb, path in found}


@pytest.mark.usefixtures("wheelhouse")
def test_a_new_user_gets_from_nothing_to_a_trained_model(empty: Empty) -> None:
    assert verbs(empty.run("init")) == dict.fromkeys(WRITTEN, "wrote")
    commands = re.findall(r"^\$ reconciler ([\w -]+?) *(?:#.*)?$", empty.text("README.md"), re.MULTILINE)
    assert commands == ["plan", "apply --wait", "logs iris"]
    strict = empty.run("validate", "--strict")
    assert (strict.code, strict.out) == (0, "1 file valid.\n")
    plan, applied, log = (empty.run(*command.split()) for command in commands)
    assert "+ submit iris_" in plan.out
    assert applied.code == 0, applied.err
    assert "SUCCEEDED" in applied.out
    assert "accuracy 0.9" in log.out
    (metrics,) = (empty.home / "gcs" / "models").glob("iris_*/model/metrics.json")
    # Fisher's flowers, by cross-validation: forests get 94 to 97 of 100 right.
    assert json.loads(metrics.read_text())["accuracy"] == pytest.approx(0.96, abs=0.03)
    assert empty.run("plan", "--detailed-exitcode").code == 0

    shown = empty.git("status", "--porcelain", "--untracked-files=all").splitlines()
    assert shown == [f"?? {path}" for path in WRITTEN]


def test_the_printed_commands_commit_all_of_it_and_nothing_else(empty: Empty) -> None:
    empty.write("notes.txt", "mine")
    (command,) = re.findall("^  commit the set-up: +(.*)$", empty.init().out, re.MULTILINE)
    empty.git("config", "user.name", "Ada")
    empty.git("config", "user.email", "ada@example.com")
    subprocess.run(["sh", "-euc", command], cwd=empty.root, check=True, capture_output=True)
    assert empty.git("ls-tree", "-r", "--name-only", "HEAD").splitlines() == WRITTEN
    assert empty.git("status", "--porcelain") == "?? notes.txt"


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), GOOGLE, (*GOOGLE, *ACTION)], ids=["local", "google", "with action"])
def test_a_second_time_all_is_kept_and_the_steps_are_told_again(empty: Empty, flags: tuple[str, ...]) -> None:
    first = empty.init(*flags)
    before = empty.files()
    second = empty.init(*flags)
    assert verbs(second) == dict.fromkeys(verbs(first), "kept")
    assert empty.files() == before
    assert second.out.partition("Next:")[2] == first.out.partition("Next:")[2] != ""
    assert set(verbs(empty.init()).values()) == {"kept"}


def added(done: Result) -> list[str]:
    """Return the paths that the steps pass to `git add`."""
    lines = re.findall("^  commit the set-up: .*git add (.*) && git commit", done.out, re.MULTILINE)
    return shlex.split(lines[0]) if lines else []


def test_what_is_left_to_commit_is_what_git_has_not_got(empty: Empty) -> None:
    """Check files of every earlier run of `init`."""
    empty.init()
    empty.git("add", "jobs", "README.md")
    empty.git("commit", "--quiet", "--message=half")
    empty.write("jobs/mine.yaml", "# not of the set-up\n")
    empty.write("jobs/iris.yaml", empty.text("jobs/iris.yaml") + "# mine\n")
    empty.write(".gitignore", ".vscode/\n")
    left = [".gitattributes", ".github", ".pre-commit-config.yaml"]
    done = empty.init()
    assert added(done) == [*left, "jobs/iris.yaml", "reconciler.yaml"]
    empty.git("add", *added(done))
    assert added(empty.init()) == added(done), "what is staged isn't committed"
    empty.git("commit", "--quiet", "--message=all")
    assert empty.git("status", "--porcelain").splitlines() == ["?? .gitignore", "?? jobs/mine.yaml"]
    done = empty.init()
    assert added(done) == []
    assert "git commit" not in done.out


def test_a_repository_within_a_repository_of_git_commits_its_own_files(empty: Empty) -> None:
    below = empty.root / "models"
    below.mkdir()
    (below / "reconciler.yaml").write_text("source: risk-training-7f3a\n")
    empty.write("jobs/else.yaml", "# of somebody else")
    done = Empty.here(_at(empty, below), "init")
    names = sorted({path.split("/")[0] for path in WRITTEN})
    assert added(done) == names
    assert added(Empty.here(_at(empty, below), "init")) == names


def test_links_are_committed_where_they_lead(empty: Empty) -> None:
    (empty.root / "config").mkdir()
    (empty.root / ".vscode").symlink_to("config")
    empty.git("add", *added(empty.init()))
    assert "config/settings.json" in empty.git("diff", "--cached", "--name-only").splitlines()


def test_what_is_there_is_kept_byte_for_byte(empty: Empty) -> None:
    own = {path: f"# mine: {path}\r\n" for path in WRITTEN if path != "reconciler.yaml"}
    own["reconciler.yaml"] = "source: risk-training-7f3a # mine\n"
    for path, text in own.items():
        (empty.root / path).parent.mkdir(parents=True, exist_ok=True)
        (empty.root / path).write_bytes(text.encode())
    done = empty.init()
    assert set(verbs(done).values()) == {"kept"}
    assert {path: text for path, text in empty.files().items() if text != "folder"} == {
        path: text.encode() for path, text in own.items()
    }
    for path in (".gitattributes", ".pre-commit-config.yaml", ".vscode/settings.json"):
        assert f"{path} already exists and was left unchanged. Add to it:" in done.out
    assert "* text=auto eol=lf" in done.out
    assert "reconciler.yaml was there" not in done.out


def test_files_that_hold_it_already_need_nothing(empty: Empty) -> None:
    empty.write(".gitattributes", "*.py text eol=lf\n")
    empty.write(".pre-commit-config.yaml", "repos:\n- repo: x\n  hooks: [{id: reconciler-validate}]\n")
    empty.write(".vscode/settings.json", '{"yaml.schemas": {".vscode/manifest.schema.json": "jobs/**"}}')
    assert "was there" not in empty.init().out


def test_own_jobs_get_no_example_beside_them(empty: Empty) -> None:
    empty.write("jobs/census.yaml", "# mine\n")
    empty.write("readme.rst", "mine")
    assert verbs(empty.init()).keys() == {p for p in WRITTEN if not p.startswith(("jobs/", "README"))}
    assert sorted(path.name for path in (empty.root / "jobs").iterdir()) == ["census.yaml"]


# An environment in Google Cloud


def given_to_the_action(repository: Empty, path: str) -> dict[str, Any]:
    """Return the inputs of the single step in a workflow's single job."""
    (job,) = yaml.safe_load(repository.text(path))["jobs"].values()
    (step,) = job["steps"]
    given: dict[str, Any] = step["with"]
    return given


@pytest.mark.slow
def test_the_environment_in_google_cloud_can_be_read(empty: Empty) -> None:
    empty.init(*GOOGLE)
    config = load_config(empty.root)
    prod = config.environment("production")
    assert (prod.engine, prod.project, prod.location) == ("google", "acme-ml", "europe-west4")
    assert (prod.staging_bucket, prod.claims_bucket) == ("acme-staging", "acme-staging-claims")
    assert (prod.submitter, prod.defaults["serviceAccount"]) == (SUBMITTER, TRAINER)
    assert config.environment("local").engine == "local"
    assert empty.run("validate").code == 0
    rendered = empty.run("render", "iris", "--env", "production").json
    spec = rendered["body"]["jobSpec"] if "body" in rendered else rendered["jobSpec"]
    assert spec["serviceAccount"] == TRAINER
    assert spec["baseOutputDirectory"]["outputUriPrefix"].startswith("gs://acme-staging/output/iris_")
    with_apply, with_plan = (given_to_the_action(empty, path) for path in (APPLY_WORKFLOW, PLAN_WORKFLOW))
    assert (with_apply["environment"], with_apply["service-account"]) == ("production", SUBMITTER)
    assert with_plan == {"environment": "production"}


def test_names_and_buckets_are_as_they_are_given(empty: Empty) -> None:
    empty.init(*GOOGLE, "--env", "trial", "--claims-bucket", "123")
    trial = load_config(empty.root).environment("trial")
    assert (trial.staging_bucket, trial.claims_bucket) == ("acme-staging", "123")
    for path in (APPLY_WORKFLOW, PLAN_WORKFLOW):
        assert given_to_the_action(empty, path)["environment"] == "trial"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--project", "Acme"], "--project"),
        (["--project", 'acme-ml"\n    limits: {submissions: null}\n    #'], "--project"),
        (["--location", "us central"], "--location"),
        (["--staging-bucket", "UPPER"], "--staging-bucket"),
        (["--staging-bucket", ""], "--staging-bucket"),
        (["--claims-bucket", "a/b"], "--claims-bucket"),
        (["--claims-bucket", "my-project"], ""),
        (["--env", "Prod"], "--env"),
        (["--env", "local"], '--env: "local" can\'t be the name'),
        (["--env", "no"], "--env"),
        (["--action", "acme/reconciler@v1"], "--action"),
        (["--action", f"acme/..@{SHA}"], "--action"),
        (["--action", f"acme/reconciler@{SHA}\n"], "--action"),
        (["--claims"], "--engine"),
    ],
)
def test_a_wrong_flag_is_named_before_anything_is_written(empty: Empty, flags: list[str], named: str) -> None:
    done = empty.here("init", *GOOGLE, *flags)
    if not named:
        assert load_config(empty.root).environment("production").claims_bucket == flags[1]
        return
    assert (done.code, done.out) == (64, "")
    assert named in done.err.splitlines()[0]
    assert empty.files() == {}


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--project", "acme-ml"], "--project needs --engine google"),
        (["--engine", "local", "--claims-bucket", "b"], "--claims-bucket needs --engine google"),
        (["--engine", "google"], "--project, --location, --staging-bucket"),
        (["--claims", "--action", "a/b@c"], "--claims can't be combined with --action"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(empty: Empty, flags: list[str], named: str) -> None:
    done = empty.here("init", *flags)
    assert done.code == 64
    assert named in done.err
    assert empty.files() == {}


def test_an_environment_to_add_to_ones_own_settings_is_shown(empty: Empty) -> None:
    own = empty.write("reconciler.yaml", "source: risk-training-7f3a\nimages: {}\n")
    done = empty.init("-q", *GOOGLE)
    shown = done.out.partition("Add to it:")[2]
    assert own.read_text() == "source: risk-training-7f3a\nimages: {}\n"
    added = yaml.safe_load(shown)
    assert added["source"] == "risk-training-7f3a"
    assert from_document(empty.root, added).environment("production").project == "acme-ml"
    own.write_text("images: {}\n" + shown.replace("\n    ", "\n"))
    assert load_config(empty.root).environment("production").project == "acme-ml"
    assert "Add to it" not in empty.init("-q", *GOOGLE).out


def test_second_environment_with_the_same_project_and_location_is_shown_with_an_instance(
    empty: Empty,
) -> None:
    empty.init(*GOOGLE)
    done = empty.init("-q", *GOOGLE, "--env", "trial")
    shown = done.out.partition("Add to it:")[2].partition("\n    environments:\n")[2].partition("\n\n")[0]
    settings = empty.root / "reconciler.yaml"
    entry = shown.replace("\n    ", "\n").removeprefix("    ")
    settings.write_text(settings.read_text().replace("environments:\n", f"environments:\n{entry}\n", 1))
    config = load_config(empty.root)
    assert config.environment("trial").instance == "trial"
    assert config.environment("production").instance == ""
    assert empty.run("validate").code == 0
    assert "Add to it" not in empty.init("-q", *GOOGLE, "--env", "trial").out


def test_second_environment_in_another_location_is_shown_without_an_instance(empty: Empty) -> None:
    empty.init(*GOOGLE)
    shown = empty.init("-q", *GOOGLE, "--env", "trial", "--location", "us-central1").out
    assert "trial:" in shown
    assert "instance:" not in shown


def test_an_environment_that_is_there_is_not_another_one(empty: Empty) -> None:
    empty.init(*GOOGLE)
    before = empty.files()
    done = empty.here("init", *GOOGLE, "--project", "other-ml")
    assert (done.code, empty.files()) == (64, before)
    assert 'another environment "production"' in done.err


def test_what_is_written_down_counts_where_no_flag_says_otherwise(empty: Empty) -> None:
    empty.init()
    assert "gcloud" not in empty.steps()
    added = texts.environment(a_google("trial"))
    empty.write(
        "reconciler.yaml", empty.text("reconciler.yaml").replace("\n# What the local", f"{added}\n# The")
    )
    (empty.root / APPLY_WORKFLOW).unlink()
    assert "reconciler init --steps google --env trial" in empty.init().out
    assert "gcloud services enable" in empty.steps()
    assert given_to_the_action(empty, APPLY_WORKFLOW)["environment"] == "trial"
    assert "--steps google" not in empty.init("--engine", "local").out


@pytest.mark.slow
def test_workflows_of_another_environment_are_told_and_can_be_replaced(empty: Empty) -> None:
    both = [APPLY_WORKFLOW, PLAN_WORKFLOW]
    empty.init(*ACTION)
    assert "is for the environment" not in empty.init().out
    for quiet in ((), ("-q",)):
        done = empty.init(*quiet, *GOOGLE)
        for path in both:
            assert f'{path} is for the environment "local", and was left unchanged.' in done.out
        again = f"remove these files and run the same `reconciler init` again, with {ACTION[0]} "
        assert f'For "production", {again}' in done.out
        assert f"with {' '.join(ACTION)}:\n" in done.out
    (command,) = re.findall("^    rm (.*)$", done.out, re.MULTILINE)
    assert command.split() == both
    for path in both:
        (empty.root / path).unlink()
    assert "is for the environment" not in empty.init(*GOOGLE, *ACTION).out
    assert given_to_the_action(empty, APPLY_WORKFLOW)["environment"] == "production"
    other = empty.init(*GOOGLE, *ACTION, "--env", "trial").out
    assert f'{PLAN_WORKFLOW} is for the environment "production"' in other
    assert "run the same `reconciler init` again:\n" in other


@pytest.mark.parametrize("named", ["${{ matrix.environment }}", "'production'"])
def test_workflows_that_may_be_for_it_are_not_told(empty: Empty, named: str) -> None:
    empty.init(*GOOGLE)
    for path in (APPLY_WORKFLOW, PLAN_WORKFLOW):
        text = empty.text(path).replace("environment: production", f"environment: {named}")
        empty.write(path, text.replace("    steps:", "    environment: deploys\n    steps:"))
    assert "is for the environment" not in empty.init(*GOOGLE).out


@pytest.mark.parametrize("remote", [None, "https://gitlab.com/acme/models.git"])
def test_what_needs_the_name_on_github_waits_for_the_remote(empty: Empty, remote: str | None) -> None:
    """A pool named after no repository would block its name: it is taken for 30 days after deletion."""
    if remote:
        empty.git("remote", "add", "origin", remote)
    empty.init(*GOOGLE)
    told = empty.steps()
    assert "reconciler-name" not in told
    assert "workload-identity-pools" not in told
    assert PROVIDER_VARIABLE not in told
    (again,) = re.findall(r"^git remote add origin .*\n(.*)$", told, re.MULTILINE)
    assert again == "reconciler init --steps google --env production"
    empty.git("config", "remote.origin.url", "https://github.com/acme/models")
    told = empty.here(*again.split()[1:]).out + empty.steps()
    assert "workload-identity-pools create reconciler-models" in told
    assert f"gh variable set {PROVIDER_VARIABLE} --repo acme/models" in told
    assert "git remote add" not in told


def a_google(name: str) -> Environment:
    defaults = {"serviceAccount": TRAINER}
    place = ("acme-ml", "europe-west4", "acme-staging", "acme-claims")
    return Environment(name, "google", *place, defaults=defaults, submitter=SUBMITTER)


def test_settings_that_are_not_valid_stop_it(empty: Empty) -> None:
    empty.write("reconciler.yaml", "sauce: x\n")
    done = empty.here("init")
    assert done.code == 3
    assert "reconciler.yaml:1:1" in done.err
    assert list(empty.files()) == ["reconciler.yaml"]


# Steps for a person


STUB = """#!{python}
import json, pathlib, sys
answers = {answers!r}
text = sys.stdin.read() if "--input" in sys.argv else ""
called = [pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]
with open({log!r}, "a") as log:
    log.write(json.dumps([called, text]) + "\\n")
print(next((answer for word, answer in answers.items() if word in sys.argv), ""))
"""


def done_by_a_shell(told: str, folder: Path, provider: str = "") -> list[tuple[list[str], str]]:
    """Return the commands that a shell runs for the steps, each with its standard input.

    Args:
        provider: The value of the repository's variable; "" for none.
    """
    programs, log = folder / "programs", folder / "log"
    programs.mkdir()
    named = '.variables[] | select(.name == "RECONCILER_IDENTITY_PROVIDER") | .value'
    answers = {"describe": "4711", ".id": "1296269", ".owner.id": "583231", named: provider}
    for name in ("gcloud", "gh", "git", "reconciler", "pre-commit"):
        stub = programs / name
        stub.write_text(STUB.format(python=sys.executable, answers=answers, log=str(log)))
        stub.chmod(0o755)
    (folder / ".github").mkdir(exist_ok=True)
    environ = {"PATH": f"{programs}:/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", "-eu", "-c", told], cwd=folder, env=environ, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [(called, text) for called, text in map(json.loads, log.read_text().splitlines())]


def option(command: list[str], name: str) -> str:
    (value,) = [word.removeprefix(f"{name}=") for word in command if word.startswith(f"{name}=")]
    return value


@pytest.mark.slow
def test_the_steps_run_in_a_shell_as_they_are_printed(empty: Empty, tmp_path: Path) -> None:
    empty.git("remote", "add", "origin", "git@github.com:ORG/MODELS.git")
    empty.init(*GOOGLE, *ACTION)
    folder = tmp_path / "shell"
    folder.mkdir()
    commands = done_by_a_shell(empty.steps(), folder)
    called = [" ".join(command[:4]) for command, _ in commands]
    assert [call for call in called if "services enable" in call] == [
        "gcloud services enable aiplatform.googleapis.com"
    ]
    assert "gcloud storage buckets create" in called
    assert ["reconciler", "init", "--claims", "--env", "production"] in [command for command, _ in commands]
    assert len({json.dumps(command) for command, _ in commands}) == len(commands)
    assert not [word for command, _ in commands for word in command if "MEMBER" in word or "$" in word]

    (provider,) = [command for command, _ in commands if "create-oidc" in command]
    condition = option(provider, "--attribute-condition")
    assert allows(condition, GENUINE)
    assert not allows(condition, GENUINE | {"repository_id": "1"})
    (variable,) = [command for command, _ in commands if command[1] == "variable"]
    pool = option(provider, "--workload-identity-pool")
    assert variable[-1] == f"projects/4711/locations/global/workloadIdentityPools/{pool}/providers/github"
    (actor,) = [command for command, _ in commands if "--role=roles/iam.workloadIdentityUser" in command]
    assert actor[4] == SUBMITTER
    assert option(actor, "--member").endswith(
        f"/4711/locations/global/workloadIdentityPools/{pool}/subject/1296269"
    )

    (ruleset,) = [json.loads(text) for command, text in commands if "repos/ORG/MODELS/rulesets" in command]
    (checks,) = [rule["parameters"] for rule in ruleset["rules"] if "parameters" in rule]
    assert [check["context"] for check in checks["required_status_checks"]] == ["reconciler plan"]
    plan = yaml.safe_load(empty.text(PLAN_WORKFLOW))
    assert [job["name"] for job in plan["jobs"].values()] == ["reconciler plan"]
    owners = (folder / ".github" / "CODEOWNERS").read_text().splitlines()
    assert owners == ["/.github/ @ORG/TEAM", "/jobs/ @ORG/TEAM", "/reconciler.yaml @ORG/TEAM"]


OLD_PROVIDER = "projects/4711/locations/global/workloadIdentityPools/reconciler-old-name/providers/github"


@pytest.mark.slow
def test_steps_after_a_rename_update_the_provider_that_exists(empty: Empty, tmp_path: Path) -> None:
    empty.git("remote", "add", "origin", "git@github.com:ORG/MODELS.git")
    empty.git("symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/trunk")
    empty.init(*GOOGLE, *ACTION)
    folder = tmp_path / "shell"
    folder.mkdir()
    commands = [command for command, _ in done_by_a_shell(empty.steps(), folder, OLD_PROVIDER)]
    assert not [command for command in commands if "create-oidc" in command]
    assert not [
        command for command in commands if command[2] == "workload-identity-pools" and "create" in command
    ]
    (update,) = [command for command in commands if "update-oidc" in command]
    assert update[:6] == [
        "gcloud",
        "iam",
        "workload-identity-pools",
        "providers",
        "update-oidc",
        OLD_PROVIDER,
    ]
    condition = option(update, "--attribute-condition")
    workflow = "ORG/MODELS/.github/workflows/reconciler-apply.yml@refs/heads/trunk"
    renamed = GENUINE | {"ref": "refs/heads/trunk", "workflow_ref": workflow}
    assert allows(condition, renamed)
    assert not allows(condition, GENUINE)
    (actor,) = [command for command in commands if "--role=roles/iam.workloadIdentityUser" in command]
    assert option(actor, "--member").endswith("/reconciler-old-name/subject/1296269")
    (variable,) = [command for command in commands if command[1] == "variable"]
    assert variable[-1] == OLD_PROVIDER


@pytest.mark.slow
def test_steps_for_another_project_create_its_own_provider(empty: Empty, tmp_path: Path) -> None:
    empty.git("remote", "add", "origin", "git@github.com:ORG/MODELS.git")
    empty.init(*GOOGLE, *ACTION)
    folder = tmp_path / "shell"
    folder.mkdir()
    elsewhere = OLD_PROVIDER.replace("4711", "4712")
    commands = [command for command, _ in done_by_a_shell(empty.steps(), folder, elsewhere)]
    assert [command for command in commands if "create-oidc" in command]
    assert not [command for command in commands if "update-oidc" in command]


def test_publications_bucket_lets_submitter_replace_current_json_alone_and_trainer_write_nothing(
    empty: Empty,
) -> None:
    empty.init(*GOOGLE)
    assert "current.json" not in empty.steps()
    before, after = empty.text("reconciler.yaml").split("      timeout: ")
    empty.write("reconciler.yaml", f"{before}      publish: gs://published/a\n      timeout: {after}")
    grants = [line for line in empty.steps().splitlines() if "add-iam-policy-binding gs://published " in line]
    assert all(f"--member=serviceAccount:{SUBMITTER}" in line for line in grants)
    assert [line.split("--role=roles/storage.")[1] for line in grants] == [
        "objectViewer --condition=None",
        "objectCreator --condition=None",
        "objectUser --condition='^#^title=reconciler-current"
        '#expression=resource.name.endsWith("/current.json")\'',
    ]


def test_claims_get_a_bucket_that_trainers_cannot_write_to(empty: Empty) -> None:
    empty.init(*GOOGLE)
    grants = [line for line in empty.steps().splitlines() if "add-iam-policy-binding" in line]
    of_trainer = [line for line in grants if f"--member=serviceAccount:{TRAINER}" in line]
    assert [line.split()[4] for line in of_trainer] == ["gs://acme-staging"]
    other = Empty(empty.root.parent / "same")
    other.init(*GOOGLE, "--claims-bucket", "acme-staging")
    assert f"--member=serviceAccount:{TRAINER}" not in other.steps()
    assert "the claims need a bucket of their own" in other.steps()


def test_a_project_of_a_domain_has_its_accounts_there(empty: Empty) -> None:
    empty.init(*GOOGLE, "--project", "example.com:acme-ml")
    account = load_config(empty.root).environment("production").submitter
    assert account == "reconciler-submitter@acme-ml.example.com.iam.gserviceaccount.com"


@pytest.mark.parametrize(
    ("url", "repository"),
    [
        ("https://github.com/acme/models", "acme/models"),
        ("https://github.com/acme/models.git", "acme/models"),
        ("https://github.com/acme/models/", "acme/models"),
        ("git@github.com:acme/risk.models.git", "acme/risk.models"),
        ("ssh://git@github.com/acme/models.git", "acme/models"),
        ("https://gitlab.com/acme/models.git", None),
        ("https://github.com.evil.example/acme/models", None),
        ("https://user:token@github.com/acme/models", None),
        ("https://github.com/acme/models;reboot", None),
        ("https://github.com/acme/$(reboot)", None),
        ("https://github.com/-acme/models", None),
        ("https://github.com/acme/..", None),
        ("https://github.com/acme/...git", None),
        ("git@github.com:acme/models\n::error::x", None),
        ("git@github.com:acme/\x1b]0;x\x07", None),
        ("../acme/models", None),
        ("", None),
    ],
)
def test_a_remote_is_a_repository_on_github_or_unknown(url: str, repository: str | None) -> None:
    assert github_repository(url) == repository


@pytest.mark.fault(45)
def test_a_hostile_remote_and_branch_are_inert(empty: Empty) -> None:
    empty.git("remote", "add", "origin", "https://github.com/acme/$(touch pwned)\x1b[31m")
    head = empty.root / ".git" / "refs" / "remotes" / "origin"
    head.mkdir(parents=True)
    (head / "HEAD").write_text("ref: refs/remotes/origin/a'$(touch$IFS'pwned')]\n")
    told = empty.init(*GOOGLE).out + empty.steps()
    assert "repos/OWNER/NAME" in told
    assert "touch" not in told + "".join(map(str, empty.files().values()))
    assert "\x1b" not in told


def test_the_branch_is_the_remotes_default_one(empty: Empty) -> None:
    empty.git("remote", "add", "origin", "https://github.com/acme/models")
    empty.git("symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/trunk")
    empty.init(*GOOGLE)
    assert yaml.load(empty.text(APPLY_WORKFLOW), yaml.BaseLoader)["on"]["push"]["branches"] == ["trunk"]
    assert "assertion.ref == 'refs/heads/trunk'" in empty.steps()


@pytest.mark.parametrize(
    ("branches", "here", "expected"),
    [
        ((), "trunk", "trunk"),
        ((), "master", "master"),
        ((), "feature/$(touch x)", "main"),
        (("main",), "set-up", "main"),
        (("master",), "set-up", "master"),
        (("main", "master"), "master", "master"),
        (("main", "master"), "set-up", "main"),
        (("refs/remotes/origin/main",), "set-up", "main"),
        (("trunk",), "set-up", "set-up"),
    ],
)
def test_without_the_remotes_default_the_branch_is_one_that_exists(
    empty: Empty, branches: tuple[str, ...], here: str, expected: str
) -> None:
    commit = empty.git("commit-tree", empty.git("mktree"), "-m", "x") if branches else ""
    for branch in branches:
        empty.git("update-ref", branch if branch.startswith("refs/") else f"refs/heads/{branch}", commit)
    (empty.root / ".git" / "HEAD").write_text(f"ref: refs/heads/{here}\n")
    empty.init(*GOOGLE)
    branch = yaml.load(empty.text(APPLY_WORKFLOW), yaml.BaseLoader)["on"]["push"]["branches"]
    assert branch == [expected]


def test_a_token_in_the_remote_is_not_told(empty: Empty) -> None:
    empty.git("remote", "add", "origin", "https://x:ghp_0123456789@github.com/acme/models")
    assert "ghp_" not in empty.init().out + empty.steps()


# The GitHub action


@pytest.mark.slow
def test_the_action_is_filled_in_later_and_nothing_else_changes(empty: Empty) -> None:
    empty.init()
    assert "reconciler init --action OWNER/REPO@SHA" in empty.steps()
    for path in (APPLY_WORKFLOW, PLAN_WORKFLOW):
        assert f"@{NO_SHA}" in empty.text(path)
        empty.write(path, empty.text(path).replace("ubuntu-latest", "ubuntu-24.04"))
    done = empty.init(*ACTION)
    assert {path for path, verb in verbs(done).items() if verb == "filled in"} == {
        APPLY_WORKFLOW,
        PLAN_WORKFLOW,
    }
    assert "OWNER/REPO" not in done.out + empty.steps()
    for path in (APPLY_WORKFLOW, PLAN_WORKFLOW):
        text = empty.text(path)
        assert "uses: acme/reconciler/.github/actions/" in text
        assert f"@{SHA}" in text
        assert "ubuntu-24.04" in text
        assert not re.search("FILL IN|OWNER|0000", text)
    assert "init --action" not in empty.init().out + empty.steps()


@pytest.mark.parametrize("flags", [(), GOOGLE], ids=["local", "google"])
def test_its_workflows_run(repository: Repository, tmp_path: Path, flags: tuple[str, ...]) -> None:
    suspended = "{suspend: true}"
    repository.job("first", reconcile=suspended)
    assert repository.run("init", "--action", f"{TOOL}@{PIN}").code == 0
    plan, apply = ((repository.root / path).read_text() for path in (PLAN_WORKFLOW, APPLY_WORKFLOW))
    if flags:  # with a workflow that applies to the environments of this repository
        other = Empty(tmp_path / "other")
        other.init(*flags, "--action", f"{TOOL}@{PIN}")
        plan, apply = (
            other.text(path).replace("environment: production", "environment: local")
            for path in (PLAN_WORKFLOW, APPLY_WORKFLOW)
        )
        apply = apply.replace("${{ vars.RECONCILER_IDENTITY_PROVIDER }}", "projects/1/p/providers/github")
    with GitHubServer().running() as server:
        github = Actions(tmp_path / "github", server, repository)
        sha = github.commit(repository)
        applied = github.push(apply)
        assert applied.jobs == {"apply": "success"}, applied.log
        assert server.statuses[sha][-1]["context"] == "reconciler"
        assert (f"identity of {SUBMITTER}" in applied.log) == bool(flags)
        repository.git("checkout", "--quiet", "-b", "feature")
        repository.job("second", reconcile=suspended)
        github.commit(repository)
        planned = github.pull_request(plan, "feature")
        assert planned.jobs == {"reconciler plan": "success"}, planned.log
        assert "second" in planned.summary


def test_a_variable_that_is_not_set_is_named(empty: Empty, tmp_path: Path) -> None:
    """Without the check, the run would go on without the identity."""
    assert empty.init(*GOOGLE, "--action", f"{TOOL}@{PIN}").code == 0
    with GitHubServer().running() as server:
        github = Actions(tmp_path / "github", server, empty)
        github.commit(empty)
        applied = github.push(empty.text(APPLY_WORKFLOW))
        assert applied.jobs == {"apply": "failure"}
        assert f"variable that it is read from, {PROVIDER_VARIABLE} in" in applied.log
        assert not server.requests


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ACTION], ids=["local", "action"])
def test_pre_commit_takes_the_hook(empty: Empty, tmp_path: Path, flags: tuple[str, ...]) -> None:
    pytest.importorskip("pre_commit")
    root = Path(__file__).resolve().parents[2]

    def pre_commit(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environ = {**os.environ, "PRE_COMMIT_HOME": str(tmp_path / "cache"), "PATH": path}
        command = [sys.executable, "-m", "pre_commit", *arguments]
        return subprocess.run(command, cwd=empty.root, env=environ, capture_output=True, text=True)

    empty.init(*flags)
    checked = pre_commit("validate-config", ".pre-commit-config.yaml")
    assert checked.returncode == 0, checked.stdout
    (hook,) = yaml.safe_load(empty.text(".pre-commit-config.yaml"))["repos"][0]["hooks"]
    assert hook["id"] == "reconciler-validate"
    if flags:
        manifest = root / ".pre-commit-hooks.yaml"
        assert pre_commit("validate-manifest", manifest).returncode == 0
        (shipped,) = yaml.safe_load(manifest.read_text())
        assert shipped["id"] == "reconciler-validate"
        assert shipped["always_run"]
        assert not {"files", "types"} & shipped.keys()
        return
    empty.git("add", "--all")
    assert pre_commit("run").returncode == 0
    empty.git("commit", "-q", "-m", "set-up")
    # A mistake that another file than a manifest makes: a trainer that is gone, and the settings.
    settings = empty.text("reconciler.yaml")
    empty.git("rm", "-q", "-r", "jobs/trainers")
    assert "trainers/iris" in pre_commit("run").stdout
    empty.git("reset", "-q", "--hard")
    empty.write("reconciler.yaml", f"{settings}\nsauce: x\n")
    empty.git("add", "--all")
    assert "sauce" in pre_commit("run").stdout
    empty.git("reset", "-q", "--hard")
    empty.write("jobs/iris.yaml", empty.text("jobs/iris.yaml").replace("replicaCount", "replicaCuont"))
    empty.git("add", "--all")
    found = pre_commit("run")
    assert found.returncode == 1
    assert 'did you mean "replicaCount"?' in found.stdout


# Editor settings


@pytest.mark.slow
def test_the_editors_schemas_are_there_and_accept_what_was_written(empty: Empty) -> None:
    empty.init(*GOOGLE)
    mapped = json.loads(empty.text(".vscode/settings.json"))["yaml.schemas"]
    by_glob = {glob: empty.root / path for path, globs in mapped.items() for glob in globs}
    for glob, path in (("jobs/**/*.yaml", "jobs/iris.yaml"), ("reconciler.yaml", "reconciler.yaml")):
        schema = json.loads(by_glob[glob].read_text())
        Draft202012Validator.check_schema(schema)
        Draft202012Validator(schema).validate(yaml.safe_load(empty.text(path)))
        assert not Draft202012Validator(schema).is_valid({"sauce": "x"})
        (line,) = [line for line in empty.text(path).splitlines() if "$schema=" in line]
        named = (empty.root / path).parent / line.partition("$schema=")[2]
        assert named.resolve() == by_glob[glob].resolve()


@pytest.mark.parametrize("name", ["manifest.schema.json", "config.schema.json"])
def test_schemas_are_the_tools_own_and_renewed_after_an_upgrade(empty: Empty, name: str) -> None:
    empty.init()
    path = f".vscode/{name}"
    written = json.loads(empty.text(path))
    assert written.pop("$comment").startswith(texts.RENEWED)
    assert written == schemas.document(name)
    written_text = empty.text(path)
    empty.write(path, json.dumps({"$comment": f"{texts.RENEWED} 0.0.1.", "type": "object"}))
    assert verbs(empty.init())[path] == "renewed"
    assert empty.text(path) == written_text
    empty.write(path, '{"mine": true}')
    assert verbs(empty.init())[path] == "kept"
    assert empty.text(path) == '{"mine": true}'


# Obstacles at the paths of files


def make_folder(path: Path, _: Path) -> None:
    path.mkdir(parents=True)


def make_file(path: Path, _: Path) -> None:
    path.write_text("mine")


def make_dangling(path: Path, _: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to("nowhere")


def make_link_out(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def make_pipe(path: Path, _: Path) -> None:
    os.mkfifo(path)


def make_link_to_file(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "file")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "path", "told"),
    [
        (make_folder, ".gitattributes", '".gitattributes" is a folder'),
        (make_folder, "reconciler.yaml", ""),
        (make_folder, ".vscode/settings.json", '".vscode/settings.json" is a folder'),
        (make_file, ".vscode", '".vscode" is not a folder'),
        (make_file, "jobs", '"jobs" is not a folder'),
        (make_file, ".github", '".github" is not a folder'),
        (make_dangling, ".pre-commit-config.yaml", "is a link that leads to no file"),
        (make_dangling, ".github/workflows", '".github/workflows" is not a folder'),
        (make_link_out, ".vscode", '".vscode" is a link that leads out of the repository'),
        (make_link_out, ".github", '".github" is a link that leads out of the repository'),
        (make_link_to_file, ".gitattributes", '".gitattributes" is a link, which git doesn\'t follow'),
        (make_pipe, ".gitattributes", '".gitattributes" is not a regular file'),
    ],
)
def test_what_is_in_the_way_is_named_and_nothing_is_written(
    empty: Empty, tmp_path: Path, make: Any, path: str, told: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("not mine")
    make(empty.root / path, outside)
    before = empty.files()
    done = empty.here("init")
    assert done.code in (1, 3)
    assert told in done.err
    assert done.out == ""
    assert empty.files() == before
    assert [(p.name, p.read_text()) for p in outside.iterdir()] == [("file", "not mine")]


def test_a_link_within_the_repository_is_followed_or_kept(empty: Empty) -> None:
    (empty.root / "config" / "editor").mkdir(parents=True)
    (empty.root / ".vscode").symlink_to("config/editor")
    empty.write("docs/README.md", "mine")
    (empty.root / "README.md").symlink_to("docs/README.md")
    schema = empty.write("docs/schema.json", json.dumps({"$comment": texts.RENEWED}))
    (empty.root / "config" / "editor" / "config.schema.json").symlink_to(schema)
    empty.init()
    assert schema.read_text() == json.dumps({"$comment": texts.RENEWED})
    assert (empty.root / ".vscode" / "config.schema.json").is_symlink()
    assert (empty.root / "config" / "editor" / "settings.json").is_file()
    assert empty.text("README.md") == "mine"


LIMITED = """
import resource, signal, sys
from reconciler.__main__ import main
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 50, 1_000, 10_000, 100_000])
def test_where_the_disk_is_full_nothing_is_left(empty: Empty, tmp_path: Path, size: int) -> None:
    program = tmp_path / "limited.py"
    program.write_text(LIMITED.format(size=size))
    schema = empty.write(".vscode/config.schema.json", json.dumps({"$comment": texts.RENEWED}))
    schema.chmod(0o640)
    before = empty.files()
    process = empty.start("init", program=str(program))
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (1, "")
    assert "can't be written, so nothing was: File too large" in err
    assert empty.files() == before
    assert schema.stat().st_mode & 0o777 == 0o640


def test_a_file_that_comes_to_be_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    files = [File("a/first", "1"), File("b", "2")]
    changes = texts.changes(tmp_path, files, ReconcilerAction())
    (tmp_path / "b").write_text("mine")
    with pytest.raises(ReconcilerError, match='"b" can\'t be written, so nothing was'):
        texts.write(tmp_path, changes)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert (tmp_path / "b").read_text() == "mine"


def test_a_file_that_was_rewritten_is_put_back(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(texts.RENEWED)
    files = [File("a", "y\n", Existing.RENEWED), File("b", "2")]
    changes = texts.changes(tmp_path, files, ReconcilerAction())
    (tmp_path / "b").mkdir()
    with pytest.raises(ReconcilerError, match='"b" can\'t be written'):
        texts.write(tmp_path, changes)
    assert (tmp_path / "a").read_text() == texts.RENEWED
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_rewriting_keeps_a_files_mode(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(texts.RENEWED)
    (tmp_path / "a").chmod(0o600)
    texts.write(tmp_path, texts.changes(tmp_path, [File("a", "y\n", Existing.RENEWED)], ReconcilerAction()))
    assert (tmp_path / "a").read_text() == "y\n"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    assert len(list(tmp_path.iterdir())) == 1


# Folders


def test_from_below_it_sets_up_the_root(empty: Empty) -> None:
    below = empty.root / "src" / "deep"
    below.mkdir(parents=True)
    done = Empty.here(_at(empty, below), "init")
    assert done.code == 0
    assert f"In {empty.root}:" in done.out
    assert list(below.iterdir()) == []


def test_without_git_it_works_where_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    done = Empty.here(_at(None, folder), "init")
    assert done.code == 0
    assert (folder / "jobs" / "iris.yaml").is_file()
    assert "git init --initial-branch=main" in done.out


def _at(known: Empty | None, folder: Path) -> Empty:
    """Return the same repository, with `folder` as the working directory."""
    made = Empty.__new__(Empty)
    made.root, made.hold = folder, folder / "hold"
    return made


def test_no_service_is_started(empty: Empty) -> None:
    empty.init()
    assert not empty.home.exists()


def test_new_set_up_takes_at_most_20_lines(empty: Empty) -> None:
    lines = empty.init().out.splitlines()
    assert len(lines) <= 20
    assert [line.split(":")[0].strip() for line in lines[-3:]] == [
        "train the jobs",
        "commit the set-up",
        "prepare GitHub",
    ]
    assert "--steps google" in empty.init(*GOOGLE).out


def test_quiet_it_prints_what_a_person_has_to_add_only(empty: Empty) -> None:
    assert empty.init("-q").out == ""
    empty.write(".gitattributes", "# no eol=lf\n")
    assert empty.init("-q").out.startswith("\n.gitattributes already exists")


@pytest.mark.parametrize("place", ["google", "github"])
def test_quiet_steps_are_the_commands_alone(empty: Empty, place: str) -> None:
    empty.init(*GOOGLE)
    quiet = empty.here("init", "-q", "--steps", place).out.splitlines()
    whole = empty.here("init", "--steps", place).out.splitlines()
    assert [line for line in whole if line and not line.startswith("# ")] == quiet[1:]


def test_steps_for_a_missing_environment_name_those_that_exist(empty: Empty) -> None:
    empty.init(*GOOGLE)
    for place in ("google", "github"):
        done = empty.here("init", "--steps", place, "--env", "prodction")
        assert (done.code, done.out) == (64, "")
        assert 'there is no environment "prodction"' in done.err
        assert "reconciler.yaml has: local, production" in done.err
    done = empty.here("init", "--steps", "google", "--env", "local")
    assert (done.code, done.out) == (64, "")
    assert 'the environment "local" isn\'t in Google Cloud' in done.err
    assert "these are: production" in done.err


def test_steps_of_google_cloud_need_an_environment_there(empty: Empty) -> None:
    empty.init()
    done = empty.here("init", "--steps", "google")
    assert done.code == 64
    assert "no environment of reconciler.yaml is in Google Cloud" in done.err
    refused = empty.here("init", "--steps", "google", "--project", "acme-ml")
    assert (refused.code, "--steps can't be combined with --project" in refused.err) == (64, True)


# Templates


def test_each_repository_gets_a_source_of_its_own(tmp_path: Path) -> None:
    sources = set()
    for name in ("one", "two"):
        made = Empty(tmp_path / name)
        made.init()
        sources.add(load_config(made.root).source)
    assert len(sources) == 2
    assert all(re.fullmatch("(one|two)-[0-9a-f]{8}", source) for source in sources)


@given(st.text(max_size=80))
def test_a_source_is_always_a_valid_one(name: str) -> None:
    schema = schemas.document("config.schema.json")
    Draft202012Validator(schema).validate({"source": source_id(name, "0123abcd")})


@given(st.text(max_size=60))
def test_a_pool_always_has_a_valid_id(name: str) -> None:
    found = pool_id(Setup("s", f"o/{name}"))
    assert re.fullmatch("[a-z][a-z0-9-]{2,30}[a-z0-9]", found)


@pytest.mark.parametrize("branch", ["main", "release/1.2", "a-b_c"])
def test_plain_branches(branch: str) -> None:
    assert is_plain_branch(branch)


@pytest.mark.parametrize("branch", ["", "-x", "a'b", "a b", "a..b", "a/", "a$b", 'a"b', "a]b", "ä", "main\n"])
def test_branches_that_would_need_quoting(branch: str) -> None:
    assert not is_plain_branch(branch)


def test_the_templates_are_valid_as_they_stand(tmp_path: Path) -> None:
    (tmp_path / "reconciler.yaml").write_text(texts.template("reconciler.yaml"))
    schema = schemas.document("config.schema.json")
    assert check_document((tmp_path / "reconciler.yaml").read_bytes(), schema, "x")[1] == []
    yaml.safe_load(texts.template("environment.yaml"))
    for name in ("vscode/settings.json", "vscode/extensions.json"):
        json.loads(texts.template(name))


def test_every_template_is_used(tmp_path: Path) -> None:
    folder = Path(texts.__file__).parent / "templates"
    used = {file.text for file in files_of(Setup("s"), [README, *EXAMPLE])}
    unused = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.read_text() not in used
    }
    # The excluded templates are filled in, or are for Google Cloud.
    filled = {"reconciler.yaml", "environment.yaml", "pre-commit-config.yaml", "workflows/apply.yml"}
    assert unused == {*filled, "workflows/apply-local.yml", "ruleset.json"}


@pytest.mark.slow
def test_git_is_not_needed(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    assert shutil.which("git")
    done = _at(None, folder).run("init", PATH="/nonexistent")
    assert done.code == 0
    assert (folder / "reconciler.yaml").is_file()
