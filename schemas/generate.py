"""Writes the JSON files of this folder: schemas, and trimmed discovery documents.

    python schemas/generate.py           write those that are not up to date
    python schemas/generate.py --check   write nothing; exit 1 if one is not up to date

What a manifest's `spec` may hold is read from the discovery documents that google-api-python-client ships
(`trim.py`, `convert.py`); what these tell only in prose is in `rules.py`. The rest of a manifest is in
`envelope.py`, `reconciler.yaml` in `settings.py`, what commands print with `--format json` in `outputs.py`.

A newer client shows as a diff of the JSON files.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import convert
import envelope
import lenient
import outputs
import settings
import spellings
import trim
from trim import Json

FOLDER = Path(__file__).resolve().parent


def main(arguments: list[str]) -> int:
    """Write or check all files; returns the exit code."""
    check = arguments == ["--check"]
    stale = {name: text for name, text in files().items() if not _holds(FOLDER / name, text)}
    for name, text in stale.items():
        sys.stderr.write(f"schemas/{name}: {'not up to date' if check else 'written'}\n")
        if not check:
            (FOLDER / name).write_text(text, encoding="utf-8")
    return 1 if check and stale else 0


def files() -> dict[str, str]:
    """The text of every generated file, by its path in this folder."""
    documents = {
        **{f"discovery/{name}.json": trim.trimmed(name) for name in trim.METHODS},
        **manifests(),
        "config.schema.json": settings.CONFIG,
        **{f"{command}-output.schema.json": schema for command, schema in outputs.OUTPUTS.items()},
    }
    return {name: json.dumps(value, indent=2, ensure_ascii=False) + "\n" for name, value in documents.items()}


def manifests() -> dict[str, Json]:
    """The schemas of each kind, published and plain (`lenient.py`), and one for editors for all kinds.

    A pipeline has a plain schema for each task.
    """
    defs = convert.definitions()
    roots = {kind.file: envelope.one_kind(kind, defs) for kind in envelope.KINDS}
    defs |= {kind.name: roots[kind.file] for kind in envelope.KINDS}
    roots["manifest.schema.json"] = envelope.any_kind()
    plain = {
        file: envelope.one_kind(kind, defs, task)
        for kind in envelope.KINDS
        for task, file in kind.plain_files.items()
    }
    documents = {
        file: convert.with_definitions(envelope.document(file, root), defs)
        for file, root in {**roots, **plain}.items()
    }
    published = {file: spellings.with_both_spellings(lenient.lenient(documents[file])) for file in roots}
    return published | {file: documents[file] for file in plain}


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
