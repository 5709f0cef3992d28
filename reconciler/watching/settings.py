"""The settings of a work tree, which somebody may be editing."""

from __future__ import annotations

from pathlib import Path

from reconciler.config import FILE_NAME, Config, from_document, load_config
from reconciler.errors import InvalidError


class KeptSettings:
    """Reads `reconciler.yaml`; once it was there, that it is gone is a mistake.

    Without the file the defaults would count: jobs would get another source, and all be submitted again. An
    editor that saves and a branch that is switched take it away for a moment.
    """

    def __init__(self) -> None:
        self._were_there = False

    def read(self, root: Path) -> Config:
        """The settings at `root`.

        Raises:
            InvalidError: They aren't valid, or are gone; an empty file is as good as none.
        """
        try:
            config = load_config(root)
        except InvalidError:
            self._were_there = True
            raise
        if config != from_document(root, {}):
            self._were_there = True
        elif self._were_there:
            raise InvalidError(
                f"{FILE_NAME} is gone, or empty, and held settings before",
                hint="put it back; if that is meant, end `reconciler watch` and start it again",
            )
        return config
