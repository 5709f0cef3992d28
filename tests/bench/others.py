"""Comparable tools: check-jsonschema on the same files, Terraform on as many resources."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import yaml

from .place import TESTS, Cost, Place

CHECK_JSONSCHEMA = "check-jsonschema"
TERRAFORM = "terraform plan"

_SCHEMA = TESTS.parent / "schemas" / "manifest.schema.json"


def check_jsonschema(place: Place) -> list[Cost]:
    """Return the cost of all files in a single process, by `validate`'s schema; [] without the tool."""
    program = shutil.which(CHECK_JSONSCHEMA, path=f"{Path(sys.executable).parent}")
    if program is None:
        return []
    return [place.run([program, "--schemafile", str(_SCHEMA), *map(str, place.files)])]


def terraform_plans(place: Place, repeats: int) -> list[Cost]:
    """Return the costs of a plan without changes, over a resource per manifest; [] without Terraform.

    Each manifest's content is the input of a `terraform_data` resource in a block of its own. The resource
    is built in, so that no plug-in is fetched. All resources are applied once before.
    """
    program = shutil.which("terraform")
    if program is None:
        return []
    folder = place.folder / "terraform"
    folder.mkdir()
    (folder / "main.tf").write_text("".join(map(_block, place.files)))
    for command in (["init"], ["apply", "-auto-approve"]):
        place.run([program, *command, "-input=false", "-no-color"], folder=folder)
    plan = [program, "plan", "-input=false", "-no-color", "-detailed-exitcode"]
    return [place.run(plan, folder=folder) for _ in range(repeats)]


def _block(file: Path) -> str:
    # HCL accepts JSON strings, except for its templates.
    value = json.dumps(yaml.load(file.read_bytes(), Loader=yaml.CSafeLoader)).replace("${", "$${")
    return f'resource "terraform_data" "{file.stem}" {{\n  input = {value}\n}}\n'
