"""Report of a migration: a row for each field of a job, and the obstacles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from reconciler.base.diagnostics import Keys
from reconciler.convert.migrating.rules import Verdict, rules


class FieldRow(Struct, frozen=True):
    """Line of the report about one field.

    Attributes:
        source: The field of AI Platform, or the part of its behaviour.
        target: The place in the new manifest; "" for none.
        sentence: The next step, or the difference; "" if nothing differs.
        keys: The path of the field in `trainingInput`; () for no single field.
    """

    source: str
    target: str
    verdict: Verdict
    sentence: str
    keys: Keys = ()


class MigrationObstacle(Struct, frozen=True):
    """Reason why a job can't be migrated before a person has decided.

    Attributes:
        keys: The path of the field in `trainingInput`.
    """

    keys: Keys
    message: str
    hint: str


class Report(Struct):
    """Findings about one job, filled while it is converted.

    Attributes:
        rows: In the order of the fields.
        obstacles: What prevents the migration.
        moves: Path in `trainingInput` -> path in the new `spec`, for comments and problems.
    """

    rows: list[FieldRow] = field(default_factory=list)
    obstacles: list[MigrationObstacle] = field(default_factory=list)
    moves: dict[Keys, Keys] = field(default_factory=dict)

    def add(self, rule: str, keys: Keys = (), moved: Keys = (), **values: object) -> None:
        """Add the row of a rule, and record the field's new place if `moved` has one.

        `values` fill the names in the rule's texts.
        """
        field_rule = rules().fields[rule]
        source, target = field_rule.source.format(**values), field_rule.target.format(**values)
        # A value may contain braces, which are no names.
        self.rows.append(
            FieldRow(source, target, field_rule.verdict, field_rule.sentence.format(**values), keys)
        )
        if moved:
            self.move(keys, moved)

    def add_row(self, source: str, target: str, verdict: Verdict, sentence: str, keys: Keys) -> None:
        """Add a row of another table."""
        self.rows.append(FieldRow(source, target, verdict, sentence, keys))

    def refuse(self, keys: Keys, message: str, hint: str) -> None:
        """Add an obstacle."""
        self.obstacles.append(MigrationObstacle(keys, message, hint))

    def move(self, source: Keys, target: Keys) -> None:
        """Record the new place of a field; the first place counts."""
        self.moves.setdefault(source, target)


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping itself, and an empty one for other values."""
    return value if isinstance(value, dict) else {}
