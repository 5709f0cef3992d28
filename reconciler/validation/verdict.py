"""Whether a document is valid by its schema, and no more; `explain` tells why it isn't.

jsonschema is the judge; jsonschema-rs, many times faster, is a shortcut to its "yes". Where they differ:

- `\\s` means other characters in Python, so patterns are compiled with those that it means there.
- To jsonschema-rs, NaN and the infinities have no type. Each field of a manifest has one, so it finds an
  error there, whatever jsonschema finds.
- It raises where it comes upon what no JSON has (keys that aren't text, lone surrogates, dates), and beyond
  255 levels.
- It takes multiples of fractions otherwise, and may follow references to the network. The package's own
  schemas have neither; others might, and other words on which the two differ. So it is given no others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from reconciler import schemas

_Check = Callable[[Any], bool]
_PANIC = "PanicException"
_BLANKS = "\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""What `\\s` is in Python, for a class of characters."""

_checks: dict[int, tuple[Mapping[str, Any], _Check]] = {}


def is_valid(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether jsonschema surely finds no error in `value`; False where that can't be told in a moment.

    Args:
        value: Made as `load_documents` makes it, of mappings, lists, text, numbers, booleans and None; a
            tuple would count as a list.
        schema: Not to be changed afterwards. One that isn't this package's own gives False for everything.
    """
    found = _checks.get(id(schema))
    if found is None:
        # The schema is kept beside its check, so that its id can't become another one's.
        found = _checks[id(schema)] = (schema, _check(schema))
    try:
        return found[1](value)
    except BaseException as error:
        # A failed assertion in Rust is no `Exception` in Python; it too is about this one value.
        if isinstance(error, Exception) or type(error).__name__ == _PANIC:
            return False
        raise


def _check(schema: Mapping[str, Any]) -> _Check:
    if not schemas.is_shipped(schema):
        return lambda value: False
    from jsonschema_rs import Draft202012Validator  # slow to import

    validator = Draft202012Validator(portable(schema), validate_formats=False, retriever=_refuse)
    return validator.is_valid


def _refuse(uri: str) -> NoReturn:
    raise LookupError(f"{uri} is no schema of ours")


def portable(schema: Any) -> Any:
    """A copy whose patterns mean in Rust what they mean in Python.

    They lose the lookahead that is there only because Python's `$` passes over a last line end. Rust's
    doesn't, and matching takes half the time then.
    """
    if isinstance(schema, list):
        return [portable(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _pattern(part) if key == "pattern" and isinstance(part, str) else portable(part)
        for key, part in schema.items()
    }


def _pattern(pattern: str) -> str:
    pattern = pattern.replace(r"$(?!\n)", "$")
    return pattern.replace(r"[^\s", f"[^{_BLANKS}").replace(r"\S", f"[^{_BLANKS}]")
