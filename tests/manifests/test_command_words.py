"""The words of commands and arguments: what is told of them, and where following the remedy leads."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from reconciler.manifests.command_words import with_program, word_findings
from reconciler.manifests.rules import domain_findings
from reconciler.manifests.validate import validate
from reconciler.manifests.written_forms import flow, named_item
from tests.support.manifests import write

IMAGE = "localhost/trainer:1"


def manifest_of(container: dict[str, Any]) -> dict[str, Any]:
    pool = {
        "machineSpec": {"machineType": "n1-standard-4"},
        "containerSpec": {"imageUri": IMAGE, **container},
    }
    return {
        "apiVersion": "aiplatform.googleapis.com/v1",
        "kind": "CustomJob",
        "metadata": {"name": "census"},
        "spec": {"workerPoolSpecs": [pool]},
    }


def after_remedy(container: dict[str, Any], pointer: str, hint: str) -> dict[str, Any]:
    """Return the container after a user has done what the hint says."""
    changed = copy.deepcopy(container)
    if written := re.match(r"write (command|args): (.*)", hint):
        changed[written[1]] = yaml.safe_load(written[2].partition(", or read")[0])
        for name in re.findall(r'and remove "(\w+)"', hint):
            changed.pop(name, None)
        return changed
    field, index = pointer.split("/")[-2:]
    items = re.search(r"items: (.*)", hint)
    right = yaml.safe_load(f"[{items[1]}]" if items else f"[{hint.removeprefix('write ')}]")
    changed[field][int(index) : int(index) + 1] = right
    return changed


@pytest.mark.parametrize(
    ("command", "args", "right"),
    [
        ("trainer.task", [], (["python", "-m", "trainer.task"], [])),
        ("python -m trainer.task --rate 0.1", [], (["python", "-m", "trainer.task", "--rate", "0.1"], [])),
        ("cd /app && python train.py", [], (["bash", "-c", "cd /app && python train.py"], [])),
        (
            "python train.py --out $AIP_MODEL_DIR",
            [],
            (["bash", "-c", "python train.py --out $AIP_MODEL_DIR"], []),
        ),
        ("bash -c 'python train.py'", [], (["bash", "-c", "python train.py"], [])),
        ("train.py", [], (["python", "train.py"], [])),
        ("run.sh", [], (["bash", "run.sh"], [])),
        ("/app/run.sh", [], (["/app/run.sh"], [])),
        ("SEED=1 python train.py", [], (["env", "SEED=1", "python", "train.py"], [])),
        ('["python", "train.py"]', [], (["python", "train.py"], [])),
        ("it's", [], (["it's"], [])),
        (["trainer.task"], ["--epochs=5"], (["python", "-m", "trainer.task"], ["--epochs=5"])),
        (["python -m", "trainer.task"], [], (["python", "-m", "trainer.task"], [])),
        (["-m", "trainer.task"], [], (["python", "-m", "trainer.task"], [])),
        (["--epochs=5"], ["--rate=1"], ([], ["--epochs=5", "--rate=1"])),
        (["cd /app && python a.py"], ["--n=5"], (["bash", "-c", "cd /app && python a.py --n=5"], [])),
        (["python", "a.py", "&&", "python", "b.py"], [], (["bash", "-c", "python a.py && python b.py"], [])),
        (["python", "a.py"], ["--out", "$OUT"], (["bash", "-c", "python a.py --out $OUT"], [])),
        (["python", "a.py"], ["--out=${OUT}"], (["bash", "-c", "python a.py --out=${OUT}"], [])),
        (["trainer.task"], ["--n 5", "$OUT"], (["bash", "-c", "python -m trainer.task --n 5 $OUT"], [])),
        (["bash", "-c", "python a.py"], ["--n=5"], (["bash", "-c", "python a.py --n=5"], [])),
        (["bash", "-c", "python", "a.py"], [], (["bash", "-c", "python a.py"], [])),
        ([], "--epochs 5 --name 'a b'", ([], ["--epochs", "5", "--name", "a b"])),
        ([], {"epochs": 5, "verbose": None, "fast": True}, ([], ["--epochs=5", "--verbose", "--fast=true"])),
        ([], ["--epochs 5"], ([], ["--epochs", "5"])),
        ([], ["--epochs = 5"], ([], ["--epochs=5"])),
        ([], ["--epochs=5 --rate=0.1"], ([], ["--epochs=5", "--rate=0.1"])),
        ([], [" --epochs=5"], ([], ["--epochs=5"])),
        ([], ["--a 1 --b 2"], ([], ["--a", "1", "--b", "2"])),
        ([], ["--a", "-b 2"], ([], ["--a", "-b", "2"])),
        ([], ['["--epochs"', ' "10"]'], ([], ["--epochs", "10"])),
        ([], ["['--a'", " '1'", " '2']"], ([], ["--a", "1", "2"])),
        ([], ['["--epochs", "10"]'], ([], ["--epochs", "10"])),
        ([], '["--epochs", 10]', ([], ["--epochs", "10"])),
        ([], ['--name="a b"'], ([], ["--name=a b"])),
        ([], ["'--epochs=5'"], ([], ["--epochs=5"])),
        ([], ["python train.py"], ([], ["python", "train.py"])),
    ],
)
def test_what_only_a_shell_understands_is_told_and_the_remedies_end_in_a_valid_manifest(
    command: Any, args: Any, right: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    container = {name: value for name, value in (("command", command), ("args", args)) if value}
    steps = 0
    while steps < 6:
        write(tmp_path, "jobs/job.yaml", manifest_of(container))
        found = validate(tmp_path, [tmp_path / "jobs"])
        told = [*found.problems, *found.warnings]
        if not told:
            break
        steps += 1
        container = after_remedy(container, told[-1].pointer, told[-1].hint)
    assert 0 < steps < 6
    assert (container.get("command", []), container.get("args", [])) == right


@pytest.mark.parametrize(
    ("command", "args"),
    [
        (["python", "-m", "trainer.task"], ["--epochs=5", "--name=my model", "-5 apples"]),
        (["bash", "-c", "cd /app && python train.py --out $AIP_MODEL_DIR"], []),
        (["/bin/sh", "-euxo", "pipefail", "-c", "train $OUT"], []),
        (["sh", "-c", 'exec "$0" "$@"', "python", "a b.py"], ["--n 5"]),
        (["python", "-c", "import os; print('$HOME && x')"], []),
        (["/opt/train.py"], ["--model-dir=$(AIP_MODEL_DIR)", "--ref={{trial}}"]),
        (["train"], ["--pattern", "^a$", "--schema", '{"$ref": "x"}', "--layers", '["a", "b"]']),
        (["train"], ["--extra-args", "--a 1 --b 2", "--separator", "|", "--flags=-x 1 --y 2"]),
        (["train"], ["--price", "5 $", "--text", "a & b"]),
        (["./train.sh"], ["gs://bucket/*.csv", ""]),
    ],
)
def test_words_that_mean_what_they_say_are_not_told(command: list[str], args: list[str]) -> None:
    assert not [*word_findings((), {"command": command, "args": args})]


@pytest.mark.parametrize("words", [None, [1, "$A"], "--a 1", [None], [[]], {}])
def test_lists_of_words_that_the_schema_refuses_are_skipped(words: Any) -> None:
    assert not [*word_findings((), {"command": words, "args": words})]


def test_long_and_unprintable_words_get_a_remedy_without_the_words() -> None:
    for word in ("--a " * 1000 + "$B", "--a \x07 5"):
        (*_, finding) = word_findings((), {"command": ["train"], "args": [word]})
        assert finding.hint.startswith("write each word as an item")


def test_a_program_of_an_image_is_no_module() -> None:
    for program in ("train", "/usr/bin/train", "train.exe", "./a.b", "nvidia-smi"):
        assert with_program([program]) == [program]


def test_a_secret_of_kubernetes_is_refused_and_its_remedy_holds_no_secret(tmp_path: Path) -> None:
    env: dict[str, Any] = {"name": "API_KEY", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}
    write(tmp_path, "jobs/job.yaml", manifest_of({"env": [env]}))
    (problem,) = validate(tmp_path, [tmp_path / "jobs"]).problems
    assert "did you mean" not in problem.hint
    (variable,) = re.findall(r"\{.*\}", problem.hint)
    write(tmp_path, "jobs/job.yaml", manifest_of({"env": [yaml.safe_load(variable)]}))
    assert validate(tmp_path, [tmp_path / "jobs"]).problems == ()


def test_a_variable_of_a_shell_in_a_value_gets_the_form_that_is_replaced() -> None:
    values = ["${A}/$B", "$(A)", "$$B", "5$", "$lower"]
    manifest = manifest_of({"env": [{"name": f"V{at}", "value": value} for at, value in enumerate(values)]})
    (finding,) = domain_findings(manifest)
    assert finding.hint == 'write value: "$(A)/$(B)"'


@pytest.mark.parametrize(
    ("field", "part", "item"),
    [
        ("parameterId", {"min": 1, "max": 5}, {"integerValueSpec": {"minValue": 1, "maxValue": 5}}),
        (
            "parameterId",
            {"min_value": 0.1, "max_value": 5},
            {"doubleValueSpec": {"minValue": 0.1, "maxValue": 5}},
        ),
        ("parameterId", {"values": [3, 1]}, {"discreteValueSpec": {"values": [1, 3]}}),
        ("parameterId", {"values": ["a", True]}, {"categoricalValueSpec": {"values": ["a", "true"]}}),
        ("parameterName", {"minValue": 1, "maxValue": 5}, {"type": "INTEGER", "minValue": 1, "maxValue": 5}),
        ("parameterName", {"values": ["a"]}, {"type": "CATEGORICAL", "categoricalValues": ["a"]}),
        ("metricId", "maximise", None),
        ("metricId", "Maximize", {"goal": "MAXIMIZE"}),
        ("parameterId", {"from": 1}, None),
        ("parameterId", 5, None),
        ("name", {"min": 1, "max": 5}, None),
    ],
)
def test_a_mapping_of_names_becomes_a_list_of_the_services_form(field: str, part: Any, item: Any) -> None:
    made = named_item("rate", part, (field, "goal"))
    assert made == (item and {field: "rate", **item})


@pytest.mark.parametrize(
    "word", ["no", "1e3", "a: b", "#", "--epochs=5", "-e5", "", "a:", "ü", "gs://b/f", "~", ".5"]
)
def test_a_written_value_is_read_back_as_itself(word: str) -> None:
    value = {"a": [word, 1.5, True, None], word or "b": {}}
    assert yaml.safe_load(flow(value)) == value
