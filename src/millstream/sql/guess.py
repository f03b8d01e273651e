"""Guess the columns of a topic from a sample of its values. No I/O except ``sample``.

Only JSON objects have columns; other values are text or bytes. A field gets the narrowest type that
fits all its sampled values: numbers without a point are BIGINT, with one DOUBLE; texts that all
look like times are TIMESTAMP or DATE. Types that do not fit common_type become STRING, which
accepts any JSON. No column is guessed to be NOT NULL, since a sample cannot prove it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from millstream.client.consumer import Consumer
from millstream.sql.catalog import Column, quoted_name

SAMPLE = 1000
BIGINT_LIMIT = 2**63
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:?\d\d)?\Z")
_DATE = re.compile(r"\d{4}-\d\d-\d\d\Z")
ANY, LARGE = "STRING", "DECIMAL(38,0)"
# The common type of two types; that of all other pairs is STRING.
_WIDER = {
    frozenset({"BIGINT", "DOUBLE"}): "DOUBLE",
    frozenset({"BIGINT", LARGE}): LARGE,
}


# A simple type, an array of a type, a struct by its fields; None while all values were null.
Type = str | list[Any] | dict[str, Any] | None


@dataclass(frozen=True)
class Guess:
    """The format of the values, their columns if they have some, and the size of the sample."""

    value: str
    columns: tuple[Column, ...]
    values: int
    odd: int = 0
    """Values that differ from the others, and would be dead letters."""


def sample(bootstrap: str, topic: str, limit: int = SAMPLE) -> list[bytes]:
    """Return the newest values of each partition of a topic."""
    values: list[bytes] = []
    with Consumer(bootstrap, topic, start=f"-{limit}", until_end=True) as consumer:
        for record in consumer:
            if record.value is not None:
                values.append(record.value)
            if len(values) >= limit:
                break
    return values


def guess(values: Sequence[bytes]) -> Guess | None:
    """Return the guess, or None if there are no values."""
    if not values:
        return None
    objects = [value for value in map(_object, values) if value is not None]
    if 2 * len(objects) > len(values):
        columns = tuple(Column(name, sql_type(kind)) for name, kind in _fields(objects).items())
        if columns:
            return Guess("json", columns, len(values), len(values) - len(objects))
    texts = sum(map(_is_text, values))
    return (
        Guess("string", (), len(values)) if texts == len(values) else Guess("raw", (), len(values))
    )


def _object(value: bytes) -> Mapping[str, Any] | None:
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _is_text(value: bytes) -> bool:
    try:
        return all(letter.isprintable() or letter.isspace() for letter in value.decode())
    except UnicodeDecodeError:
        return False


def _fields(objects: Iterable[Mapping[str, Any]]) -> dict[str, Type]:
    """Return the type of each field, in order of appearance."""
    types: dict[str, Type] = {}
    for fields in objects:
        for name, value in fields.items():
            types[name] = common_type(types.get(name), type_of(value))
    return types


def type_of(value: Any) -> Type:
    """Return the narrowest type for a JSON value."""
    if value is None or value in ([], {}):
        return None
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return "BIGINT" if -BIGINT_LIMIT <= value < BIGINT_LIMIT else LARGE
    if isinstance(value, float):
        return "DOUBLE"
    if isinstance(value, list):
        return [reduce(common_type, map(type_of, value))]
    if isinstance(value, dict):
        return {name: type_of(field) for name, field in value.items()}
    return _type_of_text(str(value))


def _type_of_text(text: str) -> Type:
    if _TIMESTAMP.match(text):
        return "TIMESTAMP"
    return "DATE" if _DATE.match(text) else ANY


def common_type(first: Type, second: Type) -> Type:
    """Return a type for values of two types."""
    if first == second or second is None:
        return first
    if first is None:
        return second
    if isinstance(first, dict) and isinstance(second, dict):
        return {name: common_type(first.get(name), second.get(name)) for name in first | second}
    if isinstance(first, list) and isinstance(second, list):
        return [common_type(first[0], second[0])]
    if isinstance(first, str) and isinstance(second, str):
        return _WIDER.get(frozenset({first, second}), ANY)
    return ANY


def sql_type(kind: Type) -> str:
    """Return a type as SQL writes it."""
    if isinstance(kind, list):
        return f"ARRAY<{sql_type(kind[0])}>"
    if isinstance(kind, dict):
        return f"STRUCT<{', '.join(f'{quoted_name(name)}: {sql_type(field)}' for name, field in kind.items())}>"
    return kind or ANY
