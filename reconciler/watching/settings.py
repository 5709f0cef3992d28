"""The settings of a work tree, which somebody may be editing."""

from __future__ import annotations

import time
from pathlib import Path

from reconciler.config import FILE_NAME, Config, from_document, load_config
from reconciler.errors import InvalidError
from reconciler.validation.filecontent import Signature, can_be_trusted, signature_of


class KeptSettings:
    """Reads `reconciler.yaml`; once it was there, that it is gone is a mistake.

    Without the file the defaults would count: jobs would get another source, and all be submitted again. An
    editor that saves and a branch that is switched take it away for a moment. A file that nobody touched is
    read only once.
    """

    def __init__(self) -> None:
        self._were_there = False
        self._read: tuple[Path, Signature, Config] | None = None

    def read(self, root: Path) -> Config:
        """The settings at `root`.

        Raises:
            InvalidError: They aren't valid, or are gone; an empty file is as good as none.
        """
        began, signature = time.time_ns(), _signature(root)
        if self._read is not None and self._read[:2] == (root, signature):
            return self._read[2]
        config = self._checked(root)
        sure = signature is not None and can_be_trusted(signature, began) and _signature(root) == signature
        self._read = (root, signature, config) if signature is not None and sure else None
        return config

    def _checked(self, root: Path) -> Config:
        try:
            config = load_config(root)
        except InvalidError:
            self._were_there = True
            raise
        if config != from_document(root, {}, config.digest):
            self._were_there = True
        elif self._were_there:
            raise InvalidError(
                f"{FILE_NAME} is gone, or empty, and held settings before",
                hint="put it back; if that is meant, end `reconciler watch` and start it again",
            )
        return config


def _signature(root: Path) -> Signature | None:
    """What the file looks like, or what a link in its place leads to; None where that can't be told."""
    try:
        return signature_of((root / FILE_NAME).stat())
    except OSError:
        return None
