"""Workflows and actions: the findings of external checkers, and this project's own rules."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

from reconciler.reporting.github.contexts import OVERALL
from reconciler.setup.next_steps import CHECK
from tests.support.emulated_github import OWNERS, emulated_github
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).resolve().parent.parent
TEMPLATES = ROOT / "reconciler" / "setup" / "templates"
BIN = Path(sys.executable).parent
ACTIONLINT = BIN / "actionlint"
ZIZMOR = (BIN / "zizmor", "--offline", "--no-progress", "--format", "json")


def _loaded(path: Path) -> dict[str, Any]:
    # YAML 1.1 takes the key `on` for true, which GitHub doesn't.
    loaded = yaml.load(path.read_text(), Loader=yaml.BaseLoader)
    return loaded if isinstance(loaded, dict) else {}


def _files() -> Iterator[Path]:
    for folder in (ROOT / ".github", TEMPLATES):
        yield from sorted(folder.rglob("*.y*ml"))


WORKFLOWS = {path: _loaded(path) for path in _files() if "jobs" in _loaded(path)}
ACTIONS = {path: _loaded(path) for path in _files() if "runs" in _loaded(path)}
ALL = {**WORKFLOWS, **ACTIONS}

OWN = ("./", "OWNER/REPO/")
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")
USES = re.compile(r"^\s*-?\s*uses:\s*(\S+)(.*)$", re.MULTILINE)
# GitHub's own values, in characters that can't end a command.
HARMLESS = re.compile(r"\$\{\{ (runner\.temp|steps\.\w+\.outputs\.folder) \}\}")
PRIVILEGED_EVENTS = {"pull_request_target", "workflow_run", "issue_comment", "repository_dispatch"}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def jobs() -> list[Any]:
    return [
        pytest.param(path, key, id=f"{name(path)}:{key}")
        for path, workflow in WORKFLOWS.items()
        for key in workflow["jobs"]
    ]


def steps(loaded: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every step of a workflow or action."""
    holders = [*loaded.get("jobs", {}).values(), loaded.get("runs", {})]
    return [step for holder in holders for step in holder.get("steps", [])]


def permissions(holder: dict[str, Any]) -> dict[str, str]:
    given = holder.get("permissions", {})
    assert isinstance(given, dict), "say which, rather than all"
    return given


every_file = pytest.mark.parametrize("path", ALL, ids=name)
every_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=name)
every_job = pytest.mark.parametrize(("path", "key"), jobs())


def test_there_is_something_to_check() -> None:
    assert {path.name for path in WORKFLOWS} >= {"jobs.yml", "jobs-plan.yml", "plan.yml", "apply.yml"}
    assert {path.parent.name for path in ACTIONS} >= {"plan", "apply", "reconciler"}


# External checkers


def checked(*command: str | Path) -> str:
    environ = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.fault(43)
def test_zizmor_finds_nothing() -> None:
    config = ROOT / ".github" / "zizmor.yml"
    options = ("--strict-collection", "--persona", "auditor", "--config", config)
    assert json.loads(checked(*ZIZMOR, *options, *ALL)) == []


@pytest.mark.fault(43)
def test_zizmor_would_find_an_injection(tmp_path: Path) -> None:
    attacked = tmp_path / ".github" / "workflows" / "jobs-plan.yml"
    attacked.parent.mkdir(parents=True)
    text = (ROOT / ".github" / "workflows" / "jobs-plan.yml").read_text()
    attack = "echo ${{ github.event.pull_request.title }}"
    attacked.write_text(text.replace('test "$RESULT" = success', attack))
    done = subprocess.run([*ZIZMOR, attacked], capture_output=True, text=True, timeout=PATIENCE)
    assert "template-injection" in {finding["ident"] for finding in json.loads(done.stdout)}


def test_actionlint_finds_nothing() -> None:
    # An empty configuration enables all rules, independently of the tests' folder.
    options = ("-config-file", os.devnull, "-format", "{{json .}}", "-shellcheck", "", "-pyflakes", "")
    assert json.loads(checked(ACTIONLINT, *options, *WORKFLOWS)) == []


def test_actionlint_would_find_a_step_that_isnt_there(tmp_path: Path) -> None:
    attacked = tmp_path / "jobs-plan.yml"
    text = (ROOT / ".github" / "workflows" / "jobs-plan.yml").read_text()
    attacked.write_text(text.replace("needs.plan.result", "needs.plans.result"))
    done = subprocess.run(
        [ACTIONLINT, "-format", "{{json .}}", attacked], capture_output=True, timeout=PATIENCE
    )
    assert [finding["kind"] for finding in json.loads(done.stdout)] == ["expression"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["workflows", "actions"])
def test_the_published_schemas_accept_them(kind: str) -> None:
    paths = {"workflows": WORKFLOWS, "actions": ACTIONS}[kind]
    checked(BIN / "check-jsonschema", "--builtin-schema", f"vendor.github-{kind}", *paths)


# Forbidden actions


@every_file
def test_actions_of_others_are_pinned_and_say_their_version(path: Path) -> None:
    for uses, comment in USES.findall(path.read_text()):
        if uses.startswith(OWN):
            continue
        assert PINNED.fullmatch(uses), uses
        assert re.match(r"\s+# v\d+\.\d+\.\d+", comment), f"{uses}: which version is it?"


def test_an_action_has_one_pin() -> None:
    found = {uses for path in ALL for uses, _ in USES.findall(path.read_text()) if PINNED.fullmatch(uses)}
    assert len({uses.partition("@")[0] for uses in found}) == len(found), sorted(found)


@every_workflow
@pytest.mark.fault(44)
def test_nothing_runs_with_rights_on_what_a_stranger_wrote(path: Path) -> None:
    """Forbid events with the repository's rights and a stranger's content, and artifacts of other runs."""
    events = WORKFLOWS[path]["on"]
    assert not PRIVILEGED_EVENTS & set([events] if isinstance(events, str) else events)


@every_file
@pytest.mark.fault(44)
def test_nothing_reads_what_another_run_left(path: Path) -> None:
    text = path.read_text()
    for way in ("download-artifact", "actions/cache", "cache:", "gh run download", "/artifacts"):
        assert way not in text


@every_file
@pytest.mark.fault(43)
def test_no_expression_stands_in_a_script(path: Path) -> None:
    for step in steps(ALL[path]):
        assert "${{" not in HARMLESS.sub("", step.get("run", "")), step
        assert "github-script" not in step.get("uses", "")


@every_file
def test_no_credential_stays_in_a_checkout(path: Path) -> None:
    for step in steps(ALL[path]):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] == "false"


@every_file
def test_the_token_is_in_the_environment_of_single_steps_that_need_it(path: Path) -> None:
    for holder in (ALL[path], *ALL[path].get("jobs", {}).values()):
        assert "token" not in str(holder.get("env", "")).lower()
    for step in steps(ALL[path]):
        if "GITHUB_TOKEN" in step.get("env", {}):
            assert re.search(r"^\s*reconciler (report|apply)", step["run"], re.MULTILINE)


@every_file
def test_no_secret_is_read(path: Path) -> None:
    assert "secrets" not in path.read_text()


@every_workflow
def test_no_permission_but_a_jobs_own(path: Path) -> None:
    assert permissions(WORKFLOWS[path]) == {}
    assert "permissions" in WORKFLOWS[path]


@every_job
def test_a_jobs_permissions_are_few(path: Path, key: str) -> None:
    job = WORKFLOWS[path]["jobs"][key]
    allowed = {"contents": {"read"}, "pull-requests": {"write"}, "statuses": {"write"}, "id-token": {"write"}}
    assert "permissions" in job
    for permission, level in permissions(job).items():
        assert level in allowed.get(permission, set()), permission


@every_job
@pytest.mark.fault(42)
def test_an_identity_is_only_for_applying_what_is_merged(path: Path, key: str) -> None:
    workflow = WORKFLOWS[path]
    if permissions(workflow["jobs"][key]).get("id-token"):
        assert key == "apply"
        assert not [event for event in workflow["on"] if "pull_request" in event]


@every_job
def test_a_job_ends_by_itself_on_a_hosted_runner(path: Path, key: str) -> None:
    job = WORKFLOWS[path]["jobs"][key]
    if "uses" in job:
        return
    assert int(job["timeout-minutes"]) <= 60
    assert job["runs-on"] == "ubuntu-latest"


@every_workflow
def test_what_applies_is_never_cancelled_half_way(path: Path) -> None:
    for key, job in WORKFLOWS[path]["jobs"].items():
        if key == "apply" and "uses" not in job:
            concurrency = job.get("concurrency") or WORKFLOWS[path]["concurrency"]
            cancelled = concurrency["cancel-in-progress"]
            assert cancelled == "false"


def test_a_run_takes_anothers_place_only_where_it_gives_its_commit_the_verdict() -> None:
    """If jobs train on the runner, runs don't know of each other: each commit has its own group."""
    found = set()
    for workflow in WORKFLOWS.values():
        for key, job in workflow["jobs"].items():
            for step in job.get("steps", []):
                if "actions/apply" not in step.get("uses", ""):
                    continue
                group = (job.get("concurrency") or workflow["concurrency"])["group"]
                alone = "workload-identity-provider" not in step["with"]
                assert ("github.sha" in group) == alone == ("wait" in step["with"]), key
                found.add(alone)
    assert found == {True, False}


def test_only_what_stages_code_gets_files_of_git_lfs_and_submodules() -> None:
    """A pull request may write .gitmodules: its plan fetches none of the listed repositories."""
    folder = ROOT / ".github"
    optional = {"lfs": "${{ inputs.lfs }}", "submodules": "${{ inputs.submodules }}"}
    given = {}
    for path, loaded in ALL.items():
        jobs = loaded.get("jobs") or {"": loaded["runs"]}
        for key, job in jobs.items():
            for step in job.get("steps", []):
                if found := {name: step["with"][name] for name in optional if name in step.get("with", {})}:
                    given[str(path.relative_to(folder)), key, step["uses"].partition("@")[0]] = found
    assert given == {
        ("actions/apply/action.yml", "", "actions/checkout"): optional,
        ("workflows/apply.yml", "apply", "./reconciler/.github/actions/apply"): optional,
        ("workflows/plan.yml", "proof", "actions/checkout"): optional,
    }
    for name in optional:
        assert ACTIONS[folder / "actions/apply/action.yml"]["inputs"][name]["default"] == "false"
        assert name not in ACTIONS[folder / "actions/plan/action.yml"]["inputs"]
        for workflow in ("apply", "plan"):
            inputs = WORKFLOWS[folder / f"workflows/{workflow}.yml"]["on"]["workflow_call"]["inputs"]
            assert inputs[name]["default"] == "false"


# Installing the tool

HASH = " --hash=sha256:"
LOCKS = ("requirements.txt", "requirements-local.txt")
each_lock = pytest.mark.parametrize("lock", LOCKS)


def locked(lock: str) -> dict[Requirement, list[str]]:
    """Return the requirements that the actions install, with the hashes of the allowed files."""
    text = (ROOT / ".github" / "actions" / lock).read_text().replace("\\\n    ", "")
    lines = (line.split(HASH) for line in text.splitlines())
    return {Requirement(requirement): hashes for requirement, *hashes in lines}


@each_lock
def test_what_the_actions_install_is_known_by_its_hash(lock: str) -> None:
    for requirement, hashes in locked(lock).items():
        assert re.fullmatch(r"==[\w.]+", str(requirement.specifier)), requirement
        assert hashes, requirement
        assert all(re.fullmatch("[0-9a-f]{64}", found) for found in hashes), requirement


@each_lock
def test_what_the_actions_install_is_what_is_tested(lock: str) -> None:
    tested = {Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    installed = set(locked(lock))
    assert installed <= tested, "run `make constraints`"
    for python in ("3.11", "3.12", "3.13", "3.14"):
        environment = {"python_version": python, "python_full_version": f"{python}.0"}
        names = [i.name for i in installed if i.marker is None or i.marker.evaluate(environment)]
        assert sorted(names) == sorted(set(names))


@each_lock
def test_the_actions_install_all_that_the_tool_says_it_needs(lock: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    versions = {requirement.name: str(requirement.specifier)[2:] for requirement in locked(lock)}
    needed = [*project["project"]["dependencies"], *project["build-system"]["requires"], "uv"]
    if lock == "requirements-local.txt":
        needed += project["project"]["optional-dependencies"]["local"]
    for requirement in map(Requirement, needed):
        assert requirement.specifier.contains(versions[requirement.name]), "run `make constraints`"


def test_lock_without_the_extra_has_none_of_its_packages_that_nothing_else_needs() -> None:
    names = [{requirement.name for requirement in locked(lock)} for lock in LOCKS]
    assert names[0] < names[1]
    assert names[1] - names[0] >= {"numpy", "optuna", "psutil", "sqlalchemy"}


def test_actions_install_the_extra_where_jobs_may_run_on_the_runner() -> None:
    given = {
        f"{path.parent.name}/{path.name}": step["env"]["EXTRA"] if "env" in step else ""
        for path, action in ACTIONS.items()
        for step in steps(action)
        if "../install" in step.get("run", "")
    }
    assert given == {
        "plan/action.yml": "",
        "apply/action.yml": "${{ inputs.workload-identity-provider == '' && 'local' || '' }}",
        "reconciler/action.yml": "${{ inputs.local == 'true' && 'local' || '' }}",
    }
    for workflow in WORKFLOWS.values():
        for step in steps(workflow):
            if step.get("uses", "").endswith("actions/reconciler"):
                assert step["with"]["local"] == "true"


def checkout(tmp_path: Path, wheelhouse: Path) -> Path:
    """Return the files of the tool's own commit, with the hashes of this machine's wheels."""
    made = tmp_path / "checkout"
    for folder in ("reconciler", "schemas", ".github/actions"):
        shutil.copytree(ROOT / folder, made / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, made)
    here = {parse_wheel_filename(wheel.name)[0]: wheel for wheel in wheelhouse.glob("*.whl")}
    lines = []
    for requirement, hashes in locked("requirements.txt").items():
        wheel = here.get(requirement.name)
        known = [hashlib.sha256(wheel.read_bytes()).hexdigest()] if wheel else hashes
        lines.append(HASH.join([str(requirement), *known]) + "\n")
    (made / ".github" / "actions" / "requirements.txt").write_text("".join(lines))
    six = here["six"]
    version, digest = parse_wheel_filename(six.name)[1], hashlib.sha256(six.read_bytes()).hexdigest()
    more = f"six=={version}{HASH}{digest}\n"  # in place of all packages of the extra
    (made / ".github" / "actions" / "requirements-local.txt").write_text("".join([*lines, more]))
    return made


def install(checkout: Path, cwd: Path, extra: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a checkout's `install` as a step does."""
    tmp_path = checkout.parent
    (tmp_path / "temp").mkdir()
    given = {
        **os.environ,
        "GITHUB_PATH": str(tmp_path / "path"),
        "GITHUB_ENV": str(tmp_path / "env"),
        "RUNNER_TEMP": str(tmp_path / "temp"),
        "PATH": f"{BIN}:{os.environ['PATH']}",
        **environ,
    }
    command = [checkout / ".github" / "actions" / "install", extra]
    return subprocess.run(command, cwd=cwd, env=given, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.fault(42)
def test_it_is_installed_from_its_own_commit_whatever_lies_around(tmp_path: Path, wheelhouse: Path) -> None:
    around = tmp_path / "repository"
    around.mkdir()
    ran = tmp_path / "ran"
    for module in ("venv", "pip", "ensurepip", "reconciler", "sitecustomize", "setup", "hatchling", "site"):
        (around / f"{module}.py").write_text(f"open({str(ran)!r}, 'a').write({module!r})\n")
    (around / "pyproject.toml").write_text("[build-system]\nrequires = []\nbuild-backend = 'setup'\n")
    (around / "pip.conf").write_text("[global]\nindex-url = http://localhost:1/\n")
    source = checkout(tmp_path, wheelhouse)
    # The installer requests only the locked requirements, both to build the tool and to run it.
    project = source / "pyproject.toml"
    more = '= ["not-to-be-had", '
    text = re.sub(r"^(requires|dependencies) = \[", rf"\1 {more}", project.read_text(), flags=re.MULTILINE)
    assert text.count(more) == 2
    project.write_text(text)
    done = install(source, around)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("installed: reconciler ")
    folder = tmp_path / "temp" / "reconciler"
    assert (tmp_path / "path").read_text() == f"{folder}/bin\n"
    assert (tmp_path / "env").read_text() == f"RECONCILER_HOME={folder}/home\n"
    assert sorted(path.name for path in (folder / "bin").iterdir()) == ["reconciler"]
    assert not ran.exists(), ran.read_text()


@pytest.mark.parametrize("extra", ["", "local"])
def test_the_extra_is_installed_only_where_it_is_wanted(extra: str, tmp_path: Path, wheelhouse: Path) -> None:
    done = install(checkout(tmp_path, wheelhouse), tmp_path, extra)
    assert done.returncode == 0, done.stderr
    installed = tmp_path / "temp" / "reconciler" / "venv" / "lib"
    assert bool([*installed.glob("python*/site-packages/six.py")]) is bool(extra)
    assert not [*installed.glob("python*/site-packages/psutil")]


def without_hashes(requirements: str, _offered: Path) -> str:
    return re.sub(f"^((?!uv==).*?)({HASH}[0-9a-f]+)+$", r"\g<1>", requirements, flags=re.MULTILINE)


def with_an_installer_without_hashes(requirements: str, _offered: Path) -> str:
    return re.sub(f"^(uv==.*?)({HASH}[0-9a-f]+)+$", r"\g<1>", requirements, flags=re.MULTILINE)


def with_one_to_be_built(requirements: str, offered: Path) -> str:
    """Replace a wheel by a source archive with the right hash, whose build would run its code."""
    (wheel,) = offered.glob("tomlkit-*.whl")
    folder = "-".join(wheel.name.split("-")[:2])
    wheel.unlink()
    archive = offered / f"{folder}.tar.gz"
    code = f"open({str(offered.parent / 'ran')!r}, 'a').write('setup')\n".encode()
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo(f"{folder}/setup.py")
        member.size = len(code)
        tar.addfile(member, io.BytesIO(code))
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    return re.sub(f"^(tomlkit==.*{HASH}).*$", rf"\g<1>{digest}", requirements, flags=re.MULTILINE)


@pytest.mark.fault(42)
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (without_hashes, "--require-hashes"),
        (with_an_installer_without_hashes, "--require-hashes"),
        (with_one_to_be_built, "tomlkit"),
    ],
)
def test_nothing_is_installed_that_nobody_looked_at(
    tmp_path: Path, wheelhouse: Path, change: Callable[[str, Path], str], told: str
) -> None:
    source = checkout(tmp_path, wheelhouse)
    offered = tmp_path / "offered"
    offered.mkdir()
    for wheel in wheelhouse.glob("*.whl"):
        (offered / wheel.name).symlink_to(wheel)
    file = source / ".github" / "actions" / "requirements.txt"
    requirements = file.read_text()
    file.write_text(change(requirements, offered))
    assert file.read_text() != requirements
    done = install(source, tmp_path, PIP_FIND_LINKS=str(offered))
    assert done.returncode != 0
    assert told in done.stderr
    assert not (tmp_path / "path").exists()
    assert not (tmp_path / "temp" / "reconciler" / "venv" / "bin" / "reconciler").exists()
    assert not (tmp_path / "ran").exists()


def test_an_old_python_is_told_of(tmp_path: Path, wheelhouse: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    (old / "python3").write_text("#!/bin/sh\nexit 1\n")
    (old / "python3").chmod(0o755)
    done = install(checkout(tmp_path, wheelhouse), tmp_path, PATH=f"{old}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert "::error::reconciler needs Python 3.11" in done.stdout


# Effects of branch protection


@pytest.fixture(scope="module")
def emulator() -> Iterator[str]:
    with emulated_github() as url:
        yield url


def pull_request_checks() -> list[Any]:
    """Return the names of a pull request's checks: its jobs' names, except those of a called workflow."""
    workflows = (ROOT / ".github" / "workflows" / "jobs-plan.yml", TEMPLATES / "workflows" / "plan.yml")
    return [
        pytest.param(
            [job["name"] for job in WORKFLOWS[path]["jobs"].values() if "uses" not in job], id=name(path)
        )
        for path in workflows
    ]


def test_check_of_the_plan_has_another_name_than_the_verdicts_status() -> None:
    """With equal names, GitHub would require both."""
    assert CHECK != OVERALL


@pytest.mark.slow
@pytest.mark.parametrize("checks", pull_request_checks())
@pytest.mark.parametrize(("conclusion", "lets_in"), [(None, False), ("failure", False), ("success", True)])
def test_the_pull_requests_own_check_is_the_one_that_protection_wants(
    emulator: str, checks: list[str], conclusion: str | None, lets_in: bool
) -> None:
    """Check also forks, whose token can't post statuses."""
    from github import Auth, Github, GithubException

    token = Auth.Token(OWNERS)
    made = Github(base_url=emulator, auth=token, seconds_between_requests=0, seconds_between_writes=0)
    repository = made.get_repo("acme/models")
    base = repository.get_branch("main").commit.commit
    branch = f"protected-{uuid.uuid4().hex}"
    head = repository.create_git_commit(f"A pull request of {branch}", base.tree, [base])
    repository.create_git_ref(f"refs/heads/{branch}", base.sha)
    wanted = {
        "required_status_checks": {"strict": True, "contexts": [CHECK]},
        "enforce_admins": True,
        "required_pull_request_reviews": None,
        "restrictions": None,
    }
    protection = f"{repository.url}/branches/{branch}/protection"
    made.requester.requestJsonAndCheck("PUT", protection, input=wanted)
    if conclusion is not None:
        for check in checks:
            repository.create_check_run(check, head.sha, status="completed", conclusion=conclusion)
    to_head = ("PATCH", f"{repository.url}/git/refs/heads/{branch}")
    if lets_in:
        made.requester.requestJsonAndCheck(*to_head, input={"sha": head.sha})
    else:
        with pytest.raises(GithubException, match="Protected branch update failed"):
            made.requester.requestJsonAndCheck(*to_head, input={"sha": head.sha})
    assert repository.get_branch(branch).commit.sha == (head.sha if lets_in else base.sha)
