"""Selection of manifests by paths and labels."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct


class LabelTerm(Struct, frozen=True):
    """Condition on one label, as kubectl writes it: `key=value`, `key!=value`, `key` or `!key`.

    Attributes:
        key: The label.
        value: Its value; None for any value.
        negated: True if the label must not have the value, or must be missing.
    """

    key: str
    value: str | None = None
    negated: bool = False


_TERM = re.compile(r"(?P<none>!?)(?P<key>[^\s=!,()]+)(?:(?P<operator>==?|!=)(?P<value>[^\s=!,()]*))?")


def label_terms(text: str) -> tuple[LabelTerm, ...]:
    """Return the conditions of a selector such as "team=risk,stage!=dev"; raise ValueError."""
    return tuple(map(_label_term, text.split(",")))


def _label_term(text: str) -> LabelTerm:
    match = _TERM.fullmatch(text.strip())
    if match is None or (match["none"] and match["operator"]):
        raise ValueError(text)
    return LabelTerm(match["key"], match["value"], bool(match["none"]) or match["operator"] == "!=")


class Selection(Struct, frozen=True):
    """Selection of jobs by name and label; jobs must have one of the names and meet all conditions on labels.

    Attributes:
        names: Base names or job names; none selects jobs of any name.
        terms: Conditions on labels.
    """

    names: tuple[str, ...] = ()
    terms: tuple[LabelTerm, ...] = ()

    def __bool__(self) -> bool:
        """Return False if all jobs are selected."""
        return bool(self.names or self.terms)

    def has_name(self, base_name: str, job_name: str) -> bool:
        """Return True if one of the names is this base name or this job name, or there are no names."""
        base = base_name.replace("-", "_")
        return not self.names or any(
            name == job_name or name.replace("-", "_") == base for name in self.names
        )

    def has_labels(self, labels: Mapping[str, str]) -> bool:
        """Return True if labels meet all conditions."""
        return all(_meets(labels, term) for term in self.terms)


EVERYTHING = Selection()


def _meets(labels: Mapping[str, str], term: LabelTerm) -> bool:
    value = labels.get(term.key)
    return (value is not None if term.value is None else value == term.value) is not term.negated
