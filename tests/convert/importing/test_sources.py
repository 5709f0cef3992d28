"""Sources of import: files of other tools, hostile files too, and the resulting manifests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from reconciler.cli import run
from reconciler.convert.importing import sources
from reconciler.convert.importing.config_file import load_all
from reconciler.manifests.plain_form import snake_case
from reconciler.manifests.settings import Config, Environment, load_config
from reconciler.operations.load_desired import load_desired

CREATE = "gcloud ai custom-jobs create --region=us-central1 --display-name=census"
POOL = "--worker-pool-spec=machine-type=n1-standard-4,container-image-uri=gcr.io/tide/fit:7"
CONFIG = """
workerPoolSpecs:
  machineSpec: {machineType: n1-standard-4}
  replicaCount: 1
  containerSpec: {imageUri: "gcr.io/tide/fit:6"}
"""
Json = dict[str, Any]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "reconciler.yaml").touch()
    monkeypatch.chdir(folder)
    return folder


def written(root: Path) -> dict[str, Json]:
    """Return the manifests in `jobs` by name."""
    found = [yaml.safe_load(file.read_text()) for file in sorted((root / "jobs").glob("*.yaml"))]
    return {manifest["metadata"]["name"]: manifest for manifest in found}


def _local(root: Path) -> tuple[Config, Environment]:
    config = load_config(root)
    return config, config.environment(None)


def image_and_args(manifest: Json) -> tuple[str, list[str]]:
    container = manifest["spec"]["workerPoolSpecs"][0]["containerSpec"]
    return container["imageUri"], container.get("args", [])


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 3) -> str:
    """Return the message of a refused import."""
    assert run(["import", *arguments]) == code
    return capsys.readouterr().err


@pytest.mark.slow
def test_five_files_become_five_manifests_in_one_call(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "train.sh").write_text(f"#!/bin/sh\nIMAGE=gcr.io/tide/fit:7\n{CREATE}-sh \\\n  {POOL}\n")
    (root / "Makefile").write_text(f"STEPS := 3\ntrain:\n\t@{CREATE}-make {POOL} --args=--steps=$(STEPS)\n")
    cell = ["STEPS = 4\n", f"!{CREATE}-nb {POOL} --args=--steps={{STEPS}}"]
    notebook = {"nbformat": 4, "cells": [{"cell_type": "code", "source": cell}]}
    (root / "nb.ipynb").write_text(json.dumps(notebook))
    (root / "one.yaml").write_text(CONFIG)
    (root / "two.json").write_text(json.dumps(yaml.safe_load(CONFIG)))
    assert run(["import", "train.sh", "Makefile", "nb.ipynb", "one.yaml", "two.json"]) == 0
    assert [*written(root)] == ["census-make", "census-nb", "census-sh", "one", "two"]
    assert image_and_args(written(root)["census-nb"]) == ("gcr.io/tide/fit:7", ["--steps=4"])
    report = capsys.readouterr().out
    assert "jobs/census-sh.yaml: written, CustomJob census-sh, from train.sh:3" in report
    desired = load_desired(*_local(root), []).jobs
    names = ", ".join(sorted(job.job_name for job in desired))
    assert report.endswith(f"The next apply submits {names}.\n")
    assert run(["validate"]) == 0
    before = {file: file.read_bytes() for file in (root / "jobs").iterdir()}
    assert run(["import", "train.sh", "Makefile", "nb.ipynb", "one.yaml", "two.json"]) == 0
    assert {file: file.read_bytes() for file in (root / "jobs").iterdir()} == before


@pytest.mark.parametrize(
    ("name", "text", "args"),
    [
        ("a.sh", f"A=(--x 'two words')\n{CREATE} {POOL} --args=\"${{A[1]}}\"\n", ["<A>"]),
        ("a.sh", f"N=3\n{CREATE} {POOL} --args=--n=$N,--m=${{M:-4}}\n", ["--n=3", "--m=4"]),
        ("a.sh", f"if true; then N=3; fi\n{CREATE} {POOL} --args=--n=$N\n", ["--n=<N>"]),
        ("a.sh", f"for N in 1 2; do\n{CREATE} {POOL} --args=--n=$N\ndone\n", ["--n=<N>"]),
        ("a.sh", f'J=$({CREATE} {POOL} --args="it\'s" --format=json)\n', ["it's"]),
        ("a.sh", f"V=1 CLOUDSDK_AI_REGION=x {CREATE} {POOL} --args=a >log 2>&1 || exit 1\n", ["a"]),
        ("a.sh", f"T=$(git describe)\n{CREATE} {POOL} --args=$T # --args=b\n", ["<T>"]),
        ("Makefile", f"A ?= $(B)1\nB = 2\nx:\n\t{CREATE} {POOL} --args=$(A),$$C\n", ["21", "<C>"]),
        ("a.md", f"Run don't\n\n```console\n$ N=7\n$ {CREATE} \\\n    {POOL} --args=$N\n```\n", ["7"]),
        ("ci.yml", f"env: {{N: 5}}\nj:\n  - run: |\n      {CREATE} {POOL} --args=${{{{ env.N }}}}\n", ["5"]),
        ("ci.yml", f"script:\n  - N=6\n  - {CREATE} {POOL} --args=$N\n", ["6"]),
        ("a.py", f"import os\nN = 8\nos.system(f'{CREATE} {POOL} --args={{N}}')\n", ["8"]),
        ("a.py", f"from subprocess import run\nrun({[*CREATE.split(), POOL, '--args=9']!r})\n", ["9"]),
    ],
)
def test_values_of_each_kind_of_source(name: str, text: str, args: list[str], root: Path) -> None:
    (root / name).write_text(text)
    assert run(["import", name]) == 0
    (manifest,) = written(root).values()
    assert image_and_args(manifest) == ("gcr.io/tide/fit:7", args)
    assert manifest.get("reconcile") == ({"suspend": True} if "<" in str(args) else None)


def test_placeholders_of_a_page_are_values_to_fill_in(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = (
        "workerPoolSpecs:\n  - machineSpec: {machineType: n1-standard-4}\n    replicaCount: REPLICA_COUNT\n"
    )
    config += "    containerSpec: {imageUri: gcr.io/PROJECT-ID/x:1}\n"
    call = f"gcloud ai custom-jobs create --region=LOCATION --display-name=JOB_NAME {POOL}-<your-tag>"
    (root / "page.md").write_text(
        f"Replace LOCATION.\n\n{call} --args=BASIC,IMAGE\n\n{config}\nThen go on.\n"
    )
    values = ["--set", "REPLICA_COUNT=1", "--set", "PROJECT_ID=tide"]
    assert run(["import", "page.md", *values]) == 0
    found = written(root)
    assert image_and_args(found["page"]) == ("gcr.io/tide/fit:7-<YOUR_TAG>", ["BASIC", "<IMAGE>"])
    assert found["page-2"]["spec"]["workerPoolSpecs"][0]["replicaCount"] == 1
    assert image_and_args(found["page-2"])[0] == "gcr.io/tide/x:1"
    shown = capsys.readouterr().out
    assert shown.isprintable() or "\n" in shown
    assert "location <LOCATION>" in shown
    assert run(["validate", "jobs/page-2.yaml"]) == 0


def test_placeholders_in_variables_of_a_page_are_values_to_fill_in(root: Path) -> None:
    call = f"{CREATE} {POOL} --args=--to=$BUCKET/model,--tier=$TIER"
    (root / "page.md").write_text(f"Run:\n\nexport BUCKET=gs://YOUR_BUCKET\nTIER=<tier>\n{call}\n")
    assert run(["import", "page.md", "--set", "TIER=BASIC"]) == 0
    assert image_and_args(written(root)["census"])[1] == ["--to=gs://<YOUR_BUCKET>/model", "--tier=BASIC"]


def test_given_values_replace_unknown_ones(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "train.sh").write_text(f"{CREATE} {POOL} --args=--to=gs://$BUCKET/x,--n=$N\n")
    assert run(["import", "train.sh", "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert "gs://<BUCKET>/x" in shown.out
    assert "fill in <BUCKET>: --set BUCKET=VALUE" in shown.err
    assert "The next apply submits none of these jobs." in shown.err
    assert not (root / "jobs").exists()
    (root / "n.txt").write_text("5\n")
    assert run(["import", "train.sh", "--set", "BUCKET=tide", "--set-file", "N=n.txt"]) == 0
    (manifest,) = written(root).values()
    assert image_and_args(manifest)[1] == ["--to=gs://tide/x", "--n=5"]
    assert "reconcile" not in manifest


@pytest.mark.parametrize(
    "script",
    [
        f"\nif [ -n x ]; then\n  N=3\nfi\n{CREATE} {POOL} --args=--n=$N,--m=$M\n",
        f"\n\nfor N in 1 2; do\n  {CREATE} {POOL} --args=--n=$N,--m=$M\ndone\n",
        f'\ncase "$1" in\n  a) N=1 ;;\nesac\n{CREATE} {POOL} --args=--n=$N,--m=$M\n',
    ],
    ids=["if", "for", "case"],
)
def test_report_says_why_a_variable_in_a_condition_or_loop_is_unknown(
    script: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "train.sh").write_text(script)
    assert run(["import", "train.sh"]) == 0
    report = capsys.readouterr().out
    assert "note: N is unknown: line 3 assigns it inside a condition or a loop." in report
    assert "fill in <N>: --set N=VALUE" in report
    assert "M has no certain value" not in report
    assert run(["import", "train.sh", "--set", "N=4", "--set", "M=5", "--force"]) == 0
    assert "certain" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.sh", f"N=5\n{CREATE} \\\n  {POOL} \\\n  --args=$N\n"),
        ("Makefile", f"N = 5\nx:\n\t{CREATE} \\\n\t  {POOL} --args=$(N)\n"),
        ("ci.yml", f"env: {{N: 5}}\nj:\n  - run: |\n      {CREATE} \\\n        {POOL} --args=$N\n"),
        ("ci.yml", f"variables:\n  N: '5'\nx:\n  script:\n    - {CREATE} {POOL} --args=$N\n"),
        ("ci.yml", f"env: {{N: 5}}\nj:\n  - run: >\n      {CREATE}\n      {POOL}\n      --args=$N\n"),
        ("a.md", f"Run:\n\n```sh\nN=5\n{CREATE} \\\n  {POOL} --args=$N\n```\n"),
        ("a.py", f"import os\nN = 5\nos.system(f'{CREATE} {POOL} --args={{N}}')\n"),
    ],
    ids=["shell", "make", "github", "gitlab", "folded", "markdown", "python"],
)
def test_line_ends_of_windows_change_nothing(name: str, text: str, root: Path) -> None:
    (root / name).write_bytes(text.encode())
    assert run(["import", name]) == 0
    expected = {file: file.read_bytes() for file in (root / "jobs").iterdir()}
    (root / name).write_bytes(text.replace("\n", "\r\n").encode())
    assert run(["import", name]) == 0
    assert {file: file.read_bytes() for file in (root / "jobs").iterdir()} == expected
    ((_, manifest),) = written(root).items()
    assert image_and_args(manifest) == ("gcr.io/tide/fit:7", ["5"])


def test_code_outside_the_repository_or_behind_a_link_is_refused(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (root.parent / "outside", root / "inside"):
        folder.mkdir()
        (folder / "__init__.py").touch()
        (folder / "task.py").touch()
    (root / "link").symlink_to(root / "inside")
    (root / "away").symlink_to(root.parent / "outside")
    words = "gcloud ai-platform jobs submit training fit --region us-east1 --runtime-version 2.11"
    words += " --module-name inside.task --staging-bucket gs://tide-x --package-path"
    for path, message in (
        ("../outside", "is outside the repository"),
        (str(root.parent / "outside"), "is outside the repository"),
        ("link", "is behind a symbolic link"),
        ("away", "is behind a symbolic link"),
    ):
        (root / "a.sh").write_text(f"\n{words} {path}\n")
        said = refused(capsys, "a.sh")
        assert "a.sh:2:1: --package-path: " in said, path
        assert message in said, path
    assert not (root / "jobs").exists()


def test_packages_in_an_image_of_ai_platform_are_imported_and_valid(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The form of AI Platform's guide to PyTorch."""
    (root / "inside").mkdir()
    for name in ("__init__.py", "task.py"):
        (root / "inside" / name).touch()
    image = "gcr.io/cloud-ml-public/training/pytorch-gpu.1-10"
    words = f"gcloud ai-platform jobs submit training fit --region us-east1 --master-image-uri {image}"
    words += " --scale-tier custom --master-machine-type n1-standard-8 --module-name inside.task"
    (root / "a.sh").write_text(f"{words} --staging-bucket gs://tide-x --package-path inside\n")
    assert run(["import", "a.sh"]) == 0
    ((_, manifest),) = written(root).items()
    assert manifest["package"] == {"path": "../inside"}
    given = manifest["spec"]["trainingInput"]
    assert (given["masterConfig"], given["pythonModule"]) == ({"imageUri": image}, "inside.task")
    assert run(["validate"]) == 0, capsys.readouterr().err


def test_values_with_line_breaks_stay_values(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = "a\nb: c\n# d\n::error::x\t- e"
    (root / "a.sh").write_bytes(f"{CREATE} {POOL} --labels='x=y' --args='{value}'\n".encode())
    assert run(["import", "a.sh", "--set", "OTHER=1\n::error::x"]) == 0
    report = capsys.readouterr().out
    assert "::error" not in report
    ((_, manifest),) = written(root).items()
    assert image_and_args(manifest)[1] == [value]
    assert manifest["metadata"] == {"name": "census", "labels": {"x": "y"}}
    (root / "a.sh").write_text(f"\n{CREATE} {POOL} --args='\x1b]0;x\x07'\n")
    said = refused(capsys, "a.sh")
    assert "a.sh:2:1: /spec/workerPoolSpecs/0/containerSpec/args/0: " in said
    assert "U+001B is a control character" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        f"{CREATE} {POOL} --args=$(touch made),`touch made`,${{X:=$(touch made)}} <(touch made)\n",
        f"eval 'touch made'; . ./other.sh; trap 'touch made' EXIT\n{CREATE} {POOL} &\n",
        f"{CREATE} {POOL} --args='a'\"$(touch made)\"\\\n`echo b` || touch made\n",
    ],
)
def test_no_program_is_started(text: str, root: Path) -> None:
    (root / "a.sh").write_text(text)
    cell = {"cell_type": "code", "source": f"%%bash\ntouch made\n{CREATE}-nb {POOL}"}
    (root / "b.ipynb").write_text(json.dumps({"nbformat": 4, "cells": [cell]}))
    (root / "c.mk").write_text(f"A := $(shell touch made)\nx:\n\t{CREATE}-mk {POOL} --args=$(A)\n")
    (root / "d.py").write_text(f"open('made', 'w')\nimport os\nos.system('{CREATE}-py {POOL}')\n")
    program = (
        "import sys; from reconciler.cli import run\n"
        "def watch(event, found):\n"
        "    if event in ('subprocess.Popen', 'os.system', 'os.exec', 'os.posix_spawn', 'os.fork'):\n"
        "        print('started', event, found[:2]); sys.stdout.flush()\n"
        "sys.addaudithook(watch)\n"
        "sys.exit(run(['import', 'a.sh', 'b.ipynb', 'c.mk', 'd.py', '--dry-run']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "started" not in done.stdout
    assert not (root / "made").exists()


def test_secrets_of_configs_and_answers_are_never_written(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "hunter2-Xk39vLqP84"
    config = yaml.safe_load(CONFIG)
    config["workerPoolSpecs"]["containerSpec"]["env"] = [{"name": "DB_PASSWORD", "value": secret}]
    job = {"name": "projects/p/locations/l/customJobs/7", "state": "JOB_STATE_FAILED", "displayName": "old"}
    (root / "c.yaml").write_text(yaml.safe_dump(config))
    (root / "jobs.json").write_text(json.dumps([{**job, "jobSpec": config}]))
    assert run(["import", "c.yaml", "jobs.json"]) == 0
    shown = capsys.readouterr()
    texts = [shown.out, shown.err, *(file.read_text() for file in (root / "jobs").iterdir())]
    assert not any(secret in text for text in texts)
    assert len(written(root)) == 2


PYTHON_HEAD = f"import subprocess\ncmd = {[*CREATE.split(), POOL]!r}\n"


@pytest.mark.parametrize(
    ("code", "args"),
    [
        (f"{PYTHON_HEAD}cmd += ['--args=a']\nsubprocess.run(cmd)\n", ["a"]),
        (f"{PYTHON_HEAD}cmd.append('--args=a')\nsubprocess.run(cmd)\ncmd = []\n", ["a"]),
        (f"{PYTHON_HEAD}cmd.extend(['--args', 'a'])\nprint(cmd)\n", ["a"]),
        (f"{PYTHON_HEAD}subprocess.run([*cmd, '--args=a'])\n", ["a"]),
        (f"{PYTHON_HEAD}subprocess.run(cmd + ['--args=a'])\n", ["a"]),
        (f"N = 1\nif x:\n    N = 2\n{PYTHON_HEAD}cmd += [f'--args={{N}}']\n", ["<N>"]),
        (f"{PYTHON_HEAD}for n in (1, 2):\n    subprocess.run(cmd + [f'--args={{n}}'])\n", ["<N>"]),
        (f"{PYTHON_HEAD}def f(n):\n    subprocess.run(cmd + [f'--args={{n}}'])\nn = 3\n", ["<N>"]),
        (
            f"if __name__ == '':\n    n = 4\n    os.system(f'{CREATE} {POOL} --args={{n}}')\n",
            ["4"],
        ),
        (f"import os\nos.system('{CREATE} {POOL} --args={{}},{{n}}'.format(x, n=5))\n", ["<VALUE>", "5"]),
        (f"import os\nos.system('{CREATE} {POOL} --args=%s' % x)\n", ["<VALUE>"]),
        (f"import subprocess as s\ns.run('{CREATE} {POOL} --args=a'.split())\n", ["a"]),
        (f"import shlex\nsubprocess.run(shlex.split('{CREATE} {POOL} --args=a'), check=True)\n", ["a"]),
        (
            f"try:\n    n = 6\nexcept E:\n    n = 7\nimport os\nos.system(f'{CREATE} {POOL} --args={{n}}')\n",
            ["<N>"],
        ),
    ],
)
def test_words_of_python_code_are_those_that_it_certainly_passes(
    code: str, args: list[str], root: Path
) -> None:
    (root / "a.py").write_text(code)
    assert run(["import", "a.py"]) == 0
    assert [image_and_args(manifest)[1] for manifest in written(root).values()] == [args]


@pytest.mark.parametrize(
    "code",
    [
        f"{PYTHON_HEAD}if gpu:\n    cmd += ['--args=a']\nsubprocess.run(cmd)\n",
        f"{PYTHON_HEAD}cmd += flags()\nsubprocess.run(cmd)\n",
        f"{PYTHON_HEAD}subprocess.run(cmd + flags)\n",
        f"{PYTHON_HEAD}cmd.insert(3, x)\nsubprocess.run(cmd)\n",
    ],
)
def test_words_that_python_code_may_add_suspend_the_job(
    code: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "a.py").write_text(code)
    assert run(["import", "a.py"]) == 0
    assert "Flags may be missing: the command has <" in capsys.readouterr().out
    assert {"suspend": True} in [manifest.get("reconcile") for manifest in written(root).values()]


def test_time_of_the_call_is_no_part_of_the_name(root: Path) -> None:
    (root / "train.sh").write_text(f"NOW=$(date +%s)\n{CREATE} --display-name=tide_${{NOW}} {POOL}\n")
    assert run(["import", "train.sh"]) == 0
    assert [*written(root)] == ["tide"]


def test_config_of_a_here_document_is_read(root: Path) -> None:
    (root / "train.sh").write_text(f"cat > c.yaml <<EOF\n{CONFIG}EOF\n{CREATE} --config=c.yaml\n")
    assert run(["import", "train.sh"]) == 0
    assert image_and_args(written(root)["census"])[0] == "gcr.io/tide/fit:6"


def test_code_in_the_repository_becomes_the_package(root: Path) -> None:
    (root / "src/tide").mkdir(parents=True)
    (root / "src/tide/__init__.py").touch()
    (root / "src/tide/fit.py").touch()
    words = "gcloud ai-platform jobs submit training fit --region us-east1 --runtime-version 2.11"
    words += " --scale-tier basic --module-name tide.fit --package-path src/tide --staging-bucket gs://tide-x"
    assert run(["import", "--", *words.split(), "--", "--epochs", "3"]) == 0
    manifest = written(root)["fit"]
    assert manifest["package"] == {"path": "../src/tide"}
    assert manifest["spec"]["trainingInput"]["args"] == ["--epochs", "3"]
    assert run(["validate"]) == 0
    (root / "src/setup.py").touch()
    assert run(["import", "--force", "--", *words.split()]) == 0
    assert written(root)["fit"]["package"] == {"path": "../src"}


def test_secrets_are_never_written(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = "hunter2-Xk39vLqP84"
    (root / "train.sh").write_text(f"{CREATE} {POOL} --args=--password={secret},--epochs=3\n")
    assert run(["import", "train.sh"]) == 0
    shown = capsys.readouterr()
    texts = [shown.out, shown.err, *(file.read_text() for file in (root / "jobs").iterdir())]
    assert not any(secret in text for text in texts)
    assert image_and_args(written(root)["census"])[1] == ["--password=<SECRET>", "--epochs=3"]
    assert written(root)["census"]["reconcile"] == {"suspend": True}


def test_control_characters_of_a_source_are_inert(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "a\x1b[31m\n# b: c\u202e.sh"
    (root / name).write_text(f"{CREATE} {POOL} --args='x\x1b[2J'\n")
    run(["import", name, "--dry-run"])
    shown = capsys.readouterr()
    for text in (shown.out, shown.err):
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "\n# b: c" not in text


def test_no_text_of_a_source_passes_for_an_unknown_value(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "train.sh").write_text(f"{CREATE} {POOL} --args='\ue000BUCKET\ue001'\n")
    assert run(["import", "train.sh", "--dry-run", "--set", "BUCKET=tide"]) == 0
    manifest = yaml.safe_load(capsys.readouterr().out)
    assert image_and_args(manifest)[1] == ["\ufffdBUCKET\ufffd"]


DOUBLED = "A0 = x\n" + "".join(f"A{n} = $(A{n - 1})$(A{n - 1})\n" for n in range(1, 41))
CHAIN = "A0 = x\n" + "".join(f"A{n} = $(A{n - 1})\n" for n in range(1, 301))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.sh", f"x\n{CREATE} 'never closed", "a.sh:2:1: a quote is never closed"),
        ("a.sh", f"{CREATE} {POOL} --args=$(ls", "a.sh:1:1: "),
        ("a.sh", f"{CREATE} {POOL} --region=\\\n", "a.sh:1:1: --region: "),
        ("a.sh", f"{CREATE} --config", "a.sh:1:1: --config: "),
        ("Makefile", f"x:\n\t{CREATE} \\\n", "Makefile:2:1: "),
        ("a.sh", "gcloud ai custom-jobs create\n", "a.sh:1:1: --display-name: is missing"),
        ("a.sh", f"\n\n{CREATE} {POOL} --wrker=1\n", "a.sh:3:1: --wrker: unknown flag"),
        ("a.sh", f"{CREATE} --config=../outside.yaml\n", "is outside the repository"),
        ("a.sh", f"{CREATE} --config=link.yaml\n", "is behind a symbolic link"),
        ("a.sh", f"{CREATE} --config=$C\n", "--set C="),
        ("a.sh", f"{CREATE} --config=none.yaml\n", "there is no file"),
        ("a.sh", "$(" * 200 + ")" * 200 + f"\n{CREATE}\n", "nested too deeply"),
        ("a.sh", "A=xxxxxxxxxx\n" + "A=$A$A$A$A$A$A$A$A\n" * 12 + CREATE, "too much text"),
        ("a.sh", "echo hi\n", "contains no training job"),
        ("a.ipynb", "{", "isn't JSON"),
        ("a.ipynb", '{"cells": 3}', "not a notebook"),
        ("a.yaml", "a: &a [*a]\nb: gcloud\n", "contains no training job"),
        ("a.yaml", "workerPoolSpecs: [\n", "not readable as YAML"),
        ("a.yaml", "workerPoolSpecs: {}\nworkerPoolSpecs: {}\n", "is defined twice"),
        ("a.yaml", "jobs: [{predictionInput: {}, state: x}]\n", "is a batch prediction"),
        ("a.json", "[" * 5000 + "]" * 5000, "too deeply nested values"),
        ("a.json", '{"studySpec":' * 150 + "1" + "}" * 150, "too deeply nested values"),
        ("a.yaml", "a: " + "[" * 5000 + "]" * 5000, "too deeply nested values"),
        ("a.ipynb", "[" * 100_000, "nested too deeply"),
        (
            "a.json",
            '{"workerPoolSpecs": [],\n"workerPoolSpecs": []}',
            'a.json:2:1: "workerPoolSpecs" is defined twice',
        ),
        ("a.json", '{"workerPoolSpecs": [}', "not readable as YAML"),
        ("Makefile", f"A = $(B)\nB = $(A)\nx:\n\t{CREATE} $(A)\n", "refer to each other"),
        ("Makefile", f"A = x $(A)\nx:\n\t{CREATE} $(A)\n", "refer to each other"),
        ("Makefile", f"{DOUBLED}x:\n\t{CREATE} $(A40)\n", "too much text: more than 200,000 characters"),
        ("Makefile", "A := x\n" + "A := $(A)$(A)\n" * 40, "too much text: more than 200,000 characters"),
        ("Makefile", "A := x\n" + "A += $(A)\n" * 40, "too much text: more than 200,000 characters"),
        ("Makefile", f"A := {'x' * 100_000}\n" + "B := $(A)\n" * 50, "more than 4,000,000 characters"),
        ("Makefile", f"{CHAIN}x:\n\t{CREATE} $(A300)\n", "nested too deeply"),
    ],
)
def test_bad_source_is_refused_with_its_place(
    name: str, text: str, message: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root.parent / "outside.yaml").write_text(CONFIG)
    (root / "real.yaml").write_text(CONFIG)
    (root / "link.yaml").symlink_to(root / "real.yaml")
    (root / name).write_text(text)
    assert message in refused(capsys, name)
    assert not (root / "jobs").exists()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (CHAIN.replace("A0 = x", "A0 = --rate=1"), "$(A150)"),
        # Doubling an empty value many times must stay empty and take no time.
        (DOUBLED.replace("A0 = x", "A0 ="), "--rate=1$(A40)"),
        ("A := --rate=\nA := $(A)1\n", "$(A)"),
        ("A := --rate=1\nB = $(A)\nA := $(B)\n", "$(A)"),
        ("A = $(B)\nB = --rate=1\n", "$(A)"),
    ],
    ids=["chain", "nothing doubled", "assigned at once", "in turn", "assigned later"],
)
def test_variables_of_a_makefile_that_refer_to_others_are_read(
    text: str, value: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "Makefile").write_text(f"{text}x:\n\t{CREATE} {POOL} --args={value}\n")
    assert run(["import", "Makefile", "--dry-run"]) == 0
    assert image_and_args(yaml.safe_load(capsys.readouterr().out))[1] == ["--rate=1"]


def saved_list(number: int) -> list[dict[str, Any]]:
    pool = {
        "machineSpec": {"machineType": "n1-standard-4"},
        "replicaCount": "1",
        "diskSpec": {"bootDiskType": "pd-ssd", "bootDiskSizeGb": 100},
        "containerSpec": {"imageUri": "gcr.io/tide/fit:1", "args": ["--rate=1"]},
    }
    times = dict.fromkeys(("createTime", "startTime", "endTime", "updateTime"), "2024-01-01T00:00:00Z")
    return [
        {
            "name": f"projects/1/locations/us-central1/customJobs/{10**18 + n}",
            "displayName": f"fit-{n}",
            "jobSpec": {"workerPoolSpecs": [pool]},
            "state": "JOB_STATE_SUCCEEDED",
            **times,
            "labels": {"team": "tide", "number": str(n)},
        }
        for n in range(number)
    ]


@pytest.mark.slow
def test_saved_list_of_ten_thousand_jobs_is_read() -> None:
    jobs = saved_list(10_000)
    text = json.dumps(jobs)
    assert len(text) < sources.MAX_SOURCE
    assert load_all(text) == [(jobs, 1)]


@pytest.mark.slow
def test_large_saved_list_in_json_and_in_yaml_becomes_the_same_manifests(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = saved_list(600)
    (root / "list.json").write_text(json.dumps(jobs))
    (root / "list.yaml").write_text(yaml.dump(jobs, sort_keys=False))
    texts = []
    for name in ("list.json", "list.yaml"):
        assert run(["import", name, "--dry-run"]) == 0
        texts.append(capsys.readouterr().out.replace(name, "list"))
    assert texts[0].count("kind: CustomJob") == 600
    assert re.sub("list:[0-9]+", "", texts[0]) == re.sub("list:[0-9]+", "", texts[1])


def test_other_command_lines_are_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no command of gcloud that submits" in refused(capsys, "--", "gsutil", "ls")
    assert "no command of gcloud that submits" in refused(capsys, "--", "gcloud", "ai", "custom-jobs", "list")
    assert "import needs a source" in refused(capsys, code=64)


def test_binary_large_and_missing_files_are_refused(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a.sh").write_bytes(b"\x7fELF\0\1")
    assert "the file is binary" in refused(capsys, "a.sh")
    with (root / "big.ipynb").open("wb") as file:
        os.truncate(file.fileno(), 50 << 20)
    assert "the file is too large" in refused(capsys, "big.ipynb")
    assert "can't be read" in refused(capsys, "none.sh")
    os.mkfifo(root / "fifo")
    assert "can't be read" in refused(capsys, "fifo")
    assert sources.MAX_SOURCE < 50 << 20


def test_all_manifests_are_written_or_none(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "a.sh").write_text(f"{CREATE}-a {POOL}\n{CREATE}-b --worker-pool-spec=machine-type=x\n")
    assert "a.sh:2:1: --worker-pool-spec" in refused(capsys, "a.sh")
    assert not (root / "jobs").exists()
    (root / "jobs").mkdir()
    (root / "jobs/census-a.yaml").write_text("mine")
    (root / "a.sh").write_text(f"{CREATE}-0 {POOL}\n{CREATE}-a {POOL}\n")
    assert "use --force" in refused(capsys, "a.sh", code=4)
    assert [file.name for file in (root / "jobs").iterdir()] == ["census-a.yaml"]
    assert run(["import", "--force", "a.sh"]) == 0
    assert [*written(root)] == ["census-0", "census-a"]


def test_name_of_another_manifest_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", "-o", "jobs/other/x.yaml", "--", *CREATE.split(), POOL]) == 0
    assert 'is taken by "jobs/other/x.yaml"' in refused(capsys, "--", *CREATE.split(), POOL, code=4)


def test_ended_job_is_suspended_unless_it_may_run(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = {
        "name": "projects/p/locations/us-central1/customJobs/7",
        "displayName": "census 2024",
        "state": "JOB_STATE_FAILED",
        "createTime": "2024-01-01T00:00:00Z",
        "labels": {"team": "tide", "reconciler-key": "x"},
        "jobSpec": {**yaml.safe_load(CONFIG), "scheduling": {"timeout": "604800s"}, "enableWebAccess": False},
    }
    (root / "jobs.json").write_text(json.dumps([job]))
    assert run(["import", "jobs.json"]) == 0
    manifest = written(root)["census-2024"]
    assert manifest["reconcile"] == {"suspend": True}
    assert manifest["metadata"]["labels"] == {"team": "tide"}
    assert set(manifest["spec"]) == {"workerPoolSpecs"}
    assert "has ended (FAILED)" in (root / "jobs/census-2024.yaml").read_text()
    assert capsys.readouterr().out.endswith("The next apply submits none of these jobs.\n")
    assert run(["import", "--run", "--force", "jobs.json"]) == 0
    assert "reconcile" not in written(root)["census-2024"]


def test_of_equal_jobs_the_one_that_runs_counts(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = {"displayName": "census", "jobSpec": yaml.safe_load(CONFIG)}
    ended = {**job, "name": "projects/p/locations/l/customJobs/1", "state": "JOB_STATE_FAILED"}
    running = {**job, "name": "projects/p/locations/l/customJobs/2", "state": "JOB_STATE_RUNNING"}
    again = {**running, "name": "projects/p/locations/l/customJobs/3"}
    (root / "jobs.json").write_text(json.dumps([ended, running, again]))
    assert run(["import", "jobs.json"]) == 0
    report = capsys.readouterr().out
    assert "note: Resource: projects/p/locations/l/customJobs/2." in report
    assert "note: Another live job has the same content: projects/p/locations/l/customJobs/3." in report
    assert "the job may still be running" in report
    assert [*written(root)] == ["census"]


@pytest.mark.parametrize(
    "field",
    [
        {"labels": "x"},
        {"labels": [1]},
        {"displayName": [1]},
        {"state": {}},
        {"jobSpec": {"scheduling": {"strategy": []}}},
    ],
)
def test_malformed_answer_is_no_failure(field: Json, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = {"name": "projects/p/locations/l/customJobs/7", "jobSpec": yaml.safe_load(CONFIG)}
    (root / "job.json").write_text(json.dumps({**job, **field}))
    assert run(["import", "job.json"]) in (0, 3)
    assert "Traceback" not in capsys.readouterr().err


TASKS = "gs://google-cloud-aiplatform/schema/trainingjob/definition"
POOLS = {
    "worker_pool_specs": [
        {
            "machine_spec": {"machineType": "n1-standard-4"},
            "replica_count": "1",
            "disk_spec": {"boot_disk_type": "pd-ssd", "bootDiskSizeGb": 100},
            "container_spec": {"image_uri": "x/y:1", "env": [{"name": "tide_gauge", "value": ""}]},
        }
    ]
}
STUDY = {
    "metrics": [{"metric_id": "loss", "goal": "MINIMIZE"}],
    "parameters": [{"parameter_id": "rate", "double_value_spec": {"min_value": 0.1, "max_value": 0.5}}],
}
# As the service answers: with another address of the task, and the model's own fields.
PIPELINE: Json = {
    "name": "projects/7/locations/l/trainingPipelines/1",
    "displayName": "tide",
    "labels": {"team": "hydro"},
    "state": "PIPELINE_STATE_SUCCEEDED",
    "trainingTaskDefinition": "https://storage.example.com/x/custom_task_1.0.0.yaml?generation=7",
    "trainingTaskInputs": {**POOLS, "base_output_directory": {"output_uri_prefix": "gs://tide-runs/fit"}},
    "trainingTaskMetadata": {"backingCustomJob": "projects/7/locations/l/customJobs/8"},
    "modelToUpload": {
        "name": "projects/7/locations/l/models/9",
        "displayName": "tide",
        "versionId": "3",
        "versionCreateTime": "2026-11-20T09:00:00Z",
        "labels": {"unit": "metre"},
        "metadata": {"gauge": "", "depth": 0},
    },
    "parentModel": "projects/7/locations/l/models/9",
    "createTime": "2026-11-20T09:00:00Z",
}


def test_pipeline_comes_back_with_its_model(root: Path) -> None:
    (root / "p.json").write_text(json.dumps({"trainingPipelines": [PIPELINE]}))
    assert run(["import", "p.json"]) == 0
    assert run(["validate", "jobs"]) == 0
    manifest = written(root)["tide"]
    assert (manifest["kind"], manifest["metadata"]["labels"]) == ("TrainingPipeline", {"team": "hydro"})
    assert manifest["reconcile"] == {"suspend": True}
    assert manifest["spec"] == {
        "trainingTaskDefinition": f"{TASKS}/custom_task_1.0.0.yaml",
        "trainingTaskInputs": {
            "workerPoolSpecs": [
                {
                    "machineSpec": {"machineType": "n1-standard-4"},
                    "replicaCount": 1,
                    "containerSpec": {"imageUri": "x/y:1", "env": [{"name": "tide_gauge", "value": ""}]},
                }
            ],
            "baseOutputDirectory": {"outputUriPrefix": "gs://tide-runs/fit"},
        },
        "modelToUpload": {
            "displayName": "tide",
            "labels": {"unit": "metre"},
            "metadata": {"gauge": "", "depth": 0},
        },
        "parentModel": "projects/7/locations/l/models/9",
    }
    text = (root / "jobs/tide.yaml").read_text()
    assert "# The service doesn't return the model's containerSpec: add it." in text


def test_pipeline_of_tuning_comes_back_without_a_model(root: Path) -> None:
    inputs = {"study_spec": STUDY, "max_trial_count": 4, "parallelTrialCount": 2, "trial_job_spec": POOLS}
    metadata = {"backingHyperparameterTuningJob": "projects/7/locations/l/hyperparameterTuningJobs/8"}
    pipeline = {**PIPELINE, "trainingTaskInputs": inputs, "trainingTaskMetadata": metadata}
    pipeline["trainingTaskDefinition"] = "gs://other/hyperparameter_tuning_task_1.0.0.yaml-0001"
    for name in ("modelToUpload", "parentModel"):
        pipeline.pop(name)
    (root / "p.json").write_text(json.dumps(pipeline))
    assert run(["import", "p.json"]) == 0
    assert run(["validate", "jobs"]) == 0
    spec = written(root)["tide"]["spec"]
    assert spec["trainingTaskDefinition"] == f"{TASKS}/hyperparameter_tuning_task_1.0.0.yaml"
    assert [*spec["trainingTaskInputs"]] == [
        "studySpec",
        "maxTrialCount",
        "parallelTrialCount",
        "trialJobSpec",
    ]


def test_backing_job_is_left_out_beside_its_pipeline_in_any_file(root: Path) -> None:
    backing = {
        "name": "projects/7/locations/l/customJobs/8",
        "displayName": "tide-custom-job",
        "state": "JOB_STATE_SUCCEEDED",
        "jobSpec": yaml.safe_load(CONFIG),
    }
    other = {**backing, "name": "projects/7/locations/l/customJobs/9", "displayName": "alone"}
    (root / "jobs.json").write_text(json.dumps([backing, other]))
    (root / "p.json").write_text(json.dumps([PIPELINE]))
    assert run(["import", "jobs.json", "p.json"]) == 0
    assert {*written(root)} == {"tide", "alone"}


AUTOML = {
    **PIPELINE,
    "displayName": "auto",
    "trainingTaskDefinition": f"{TASKS}/automl_tabular_1.0.0.yaml",
    "trainingTaskInputs": {"targetColumn": "depth"},
}


@pytest.mark.parametrize("answer", [AUTOML, [AUTOML]])
def test_pipeline_of_another_task_alone_is_refused_with_its_name(
    answer: Any, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "p.json").write_text(json.dumps(answer))
    told = 'the training pipeline "auto" (automl_tabular) runs no code of yours'
    assert told in refused(capsys, "p.json")


def test_pipelines_of_another_task_in_a_list_are_left_out_and_named(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "p.json").write_text(json.dumps([AUTOML, PIPELINE, {**AUTOML, "displayName": "two"}]))
    assert run(["import", "p.json"]) == 0
    assert [*written(root)] == ["tide"]
    told = "left out 2 training pipelines that run no code of yours: "
    assert f'{told}"auto" (automl_tabular), "two" (automl_tabular).\n' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("inputs", "what"), [(json.dumps(POOLS), "a text"), ([POOLS], "a list"), (None, "empty")]
)
def test_inputs_of_a_pipeline_that_are_no_mapping_are_told_as_unreadable(
    inputs: Any, what: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "p.json").write_text(json.dumps({**PIPELINE, "trainingTaskInputs": inputs}))
    told = refused(capsys, "p.json")
    assert f'pipeline "{PIPELINE["name"]}" can\'t be read: they are {what}' in told
    assert "write them as a mapping" in told
    assert ("fromjson" in told) == isinstance(inputs, str)


@pytest.mark.parametrize(("suffix", "spelling"), [("json", str), ("yaml", str), ("json", snake_case)])
def test_body_of_a_pipelines_request_is_imported_as_a_config_is(
    suffix: str, spelling: Callable[[str], str], root: Path
) -> None:
    served = ("name", "state", "createTime", "trainingTaskMetadata", "modelToUpload")
    body = {key: part for key, part in PIPELINE.items() if key not in served}
    model = {"displayName": "tide", "containerSpec": {"imageUri": "x/serve:1"}}
    body = {spelling(key): part for key, part in {**body, "modelToUpload": model}.items()}
    text = json.dumps(body)
    (root / f"p.{suffix}").write_text(text if suffix == "json" else yaml.safe_dump(json.loads(text)))
    assert run(["import", f"p.{suffix}"]) == 0
    assert run(["validate", "jobs"]) == 0
    manifest = written(root)["tide"]
    assert (manifest["kind"], manifest["metadata"]["labels"]) == ("TrainingPipeline", {"team": "hydro"})
    assert "reconcile" not in manifest
    assert manifest["spec"]["modelToUpload"] == model
    assert [*manifest["spec"]["trainingTaskInputs"]] == ["workerPoolSpecs", "baseOutputDirectory"]
    assert "containerSpec: add it" not in (root / "jobs/tide.yaml").read_text()


def test_answer_in_snake_case_gives_the_manifest_of_the_answer_in_camel_case(root: Path) -> None:
    (root / "p.json").write_text(json.dumps(PIPELINE))
    assert run(["import", "p.json", "-o", "camel"]) == 0
    snake = {snake_case(key): part for key, part in PIPELINE.items()}
    snake["model_to_upload"] = {snake_case(key): part for key, part in PIPELINE["modelToUpload"].items()}
    (root / "p.json").write_text(json.dumps(snake))
    assert run(["import", "p.json", "-o", "snake"]) == 0
    assert (root / "snake/tide.yaml").read_text() == (root / "camel/tide.yaml").read_text()


@pytest.mark.parametrize(
    "field",
    [
        {"trainingTaskInputs": "x"},
        {"trainingTaskInputs": {"workerPoolSpecs": 7}},
        {"trainingTaskDefinition": 7},
        {"trainingTaskMetadata": [1]},
        {"trainingTaskMetadata": {"backingCustomJob": 7}},
        {"modelToUpload": "x"},
        {"modelToUpload": {"displayName": {}}},
        {"parentModel": []},
    ],
)
def test_malformed_pipeline_is_no_failure(
    field: Json, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "p.json").write_text(json.dumps({**PIPELINE, **field}))
    assert run(["import", "p.json"]) in (0, 3)
    assert "Traceback" not in capsys.readouterr().err


def test_dictionary_in_a_page_is_a_config(root: Path) -> None:
    page = "Write:\n\ninputs = {\n    'scaleTier': 'BASIC', 'region': 'us-east1',\n"
    page += "    'masterConfig': {'imageUri': 'x/y:1'},\n"
    (root / "page.txt").write_text(
        page + "}\n\nspec = {'jobId': 'fit', 'trainingInput': inputs}\n\nThen go on.\n"
    )
    assert run(["import", "page.txt"]) == 0
    assert written(root)["fit"]["spec"]["trainingInput"]["masterConfig"] == {"imageUri": "x/y:1"}


@pytest.mark.parametrize("name", ["page.txt", "a.py"])
def test_fields_that_code_adds_to_a_dictionary_are_read(name: str, root: Path) -> None:
    code = (
        "inputs = {'scaleTier': 'BASIC', 'region': 'us-east1',\n    'masterConfig': {'imageUri': 'x/y:1'}}\n"
    )
    code += "job = {'jobId': 'fit', 'trainingInput': inputs}\n"
    code += "tuning = {'goal': 'MAXIMIZE', 'maxTrials': 2, 'params': []}\n"
    code += "tuning['params'].append({\n    'parameterName': 'lr', 'type': 'INTEGER',\n"
    code += "    'minValue': 1, 'maxValue': 4})\ninputs.update({'hyperparameters': tuning})\n"
    code += "inputs['args'] = ['--epochs', '3']\njob['trainingInput']['jobDir'] = 'gs://tide/x'\n"
    (root / name).write_text(f"{code}inputs['network'] = network\n")
    assert run(["import", name]) == 0
    training = written(root)["fit"]["spec"]["trainingInput"]
    assert (training["args"], training["jobDir"]) == (["--epochs", "3"], "gs://tide/x")
    assert training["network"] == "<NETWORK>"
    assert [parameter["parameterName"] for parameter in training["hyperparameters"]["params"]] == ["lr"]


def test_line_of_a_file_is_imported_alone(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "page.md").write_text(f"{CREATE} --broken\n\n{CREATE} {POOL}\n")
    assert "page.md:1:1: --broken" in refused(capsys, "page.md")
    assert run(["import", "page.md:3"]) == 0
    assert [*written(root)] == ["census"]
    assert "page.md:2:1: no job begins on this line" in refused(capsys, "page.md:2")


def test_messages_quote_no_secret(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "a.sh").write_text(f"{CREATE} {POOL} -- --password hunter2-Xk39vLqP84\n")
    shown = refused(capsys, "a.sh")
    assert "a.sh:1:1: --: this command takes no arguments" in shown
    assert "hunter2" not in shown


SCRIPT = """\
#!/usr/bin/env bash
usage() { echo "usage: $0 [-p project]"; exit 1; }
while getopts "p:" o; do case "${o}" in p) PROJECT_ID=${OPTARG} ;; *) usage ;; esac; done
[[ "$1" =~ ^(x|y)$ ]] || true
((i=1))
export JOB_NAME="census_$(date +"%Y%m%d_%H%M%S")"
FLAGS=(--stream-logs --runtime-version=2.11)
FLAGS+=("--python-version=3.7")
gcloud config set project tide
gcloud ml-engine jobs submit training "${JOB_NAME}" \\
    "${FLAGS[@]}" --scale-tier basic --region us-east1 \\
    --job-dir gs://tide-out/x --package-path ../trainer --module-name trainer.task \\
    -- \\
    --files "gs://tide-out/data/*.csv" --steps 100 # done
gcloud ai-platform jobs describe $JOB_NAME
"""


def test_script_as_people_write_them_is_read(root: Path) -> None:
    (root / "trainer").mkdir()
    (root / "trainer/__init__.py").touch()
    (root / "trainer/task.py").touch()
    (root / "scripts").mkdir()
    (root / "scripts/train.sh").write_text(SCRIPT)
    assert run(["import", "scripts/train.sh"]) == 0
    manifest = written(root)["census"]
    assert manifest["package"] == {"path": "../trainer"}
    assert manifest["spec"]["trainingInput"] == {
        "scaleTier": "BASIC",
        "region": "us-east1",
        "runtimeVersion": "2.11",
        "pythonVersion": "3.7",
        "pythonModule": "trainer.task",
        "args": ["--files", "gs://tide-out/data/*.csv", "--steps", "100"],
        "jobDir": "gs://tide-out/x",
    }
    assert "the command names project tide." in (root / "jobs/census.yaml").read_text()
    assert run(["validate"]) == 0
