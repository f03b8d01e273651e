"""The columns of a topic, guessed from a sample of its values. Pure but for ``sample``.

JSON objects only: what else is in a topic is text or bytes. A field gets the narrowest type that fits all values of it that were seen: numbers
without a point are BIGINT, with one DOUBLE, texts that all look like times TIMESTAMP or DATE; what does not fit together is STRING, which takes
any JSON. Nothing is guessed to be NOT NULL, since a sample cannot tell.
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
MOST_BIGINT = 2**63
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:?\d\d)?\Z")
_DATE = re.compile(r"\d{4}-\d\d-\d\d\Z")
ANY, LARGE = "STRING", "DECIMAL(38,0)"
# What two types are together; all other pairs are any JSON.
_WIDER = {
    frozenset({"BIGINT", "DOUBLE"}): "DOUBLE",
    frozenset({"BIGINT", LARGE}): LARGE,
}


# A simple type, an array of one, a struct by its fields; None while nothing but null was seen.
Type = str | list[Any] | dict[str, Any] | None


@dataclass(frozen=True)
class Guess:
    """The format of the values, the columns where they have some, and what they are guessed from."""

    value: str
    columns: tuple[Column, ...]
    values: int
    odd: int = 0
    """Values that are not like the others, and would be dead letters."""


def sample(bootstrap: str, topic: str, most: int = SAMPLE) -> list[bytes]:
    """Values of a topic: the newest of each partition."""
    found: list[bytes] = []
    with Consumer(bootstrap, topic, start=f"-{most}", until_end=True) as consumer:
        for record in consumer:
            if record.value is not None:
                found.append(record.value)
            if len(found) >= most:
                break
    return found


def guess(values: Sequence[bytes]) -> Guess | None:
    """What the values are; None where there is nothing to guess from."""
    if not values:
        return None
    objects = [one for one in map(_object, values) if one is not None]
    if 2 * len(objects) > len(values):
        columns = tuple(Column(name, shown(kind)) for name, kind in _fields(objects).items())
        if columns:
            return Guess("json", columns, len(values), len(values) - len(objects))
    texts = sum(map(_is_text, values))
    return Guess("string", (), len(values)) if texts == len(values) else Guess("raw", (), len(values))


def _object(value: bytes) -> Mapping[str, Any] | None:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _is_text(value: bytes) -> bool:
    try:
        return all(letter.isprintable() or letter.isspace() for letter in value.decode())
    except UnicodeDecodeError:
        return False


def _fields(objects: Iterable[Mapping[str, Any]]) -> dict[str, Type]:
    """The type of each field, in the order in which they were met."""
    found: dict[str, Type] = {}
    for one in objects:
        for name, value in one.items():
            found[name] = together(found.get(name), type_of(value))
    return found


def type_of(value: Any) -> Type:
    """The narrowest type for a value of JSON."""
    if value is None or value in ([], {}):
        return None
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return "BIGINT" if -MOST_BIGINT <= value < MOST_BIGINT else LARGE
    if isinstance(value, float):
        return "DOUBLE"
    if isinstance(value, list):
        return [reduce(together, map(type_of, value))]
    if isinstance(value, dict):
        return {name: type_of(one) for name, one in value.items()}
    return _type_of_text(str(value))


def _type_of_text(text: str) -> Type:
    if _TIMESTAMP.match(text):
        return "TIMESTAMP"
    return "DATE" if _DATE.match(text) else ANY


def together(one: Type, other: Type) -> Type:
    """A type for values of two types."""
    if one == other or other is None:
        return one
    if one is None:
        return other
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: together(one.get(name), other.get(name)) for name in one | other}
    if isinstance(one, list) and isinstance(other, list):
        return [together(one[0], other[0])]
    if isinstance(one, str) and isinstance(other, str):
        return _WIDER.get(frozenset({one, other}), ANY)
    return ANY


def shown(kind: Type) -> str:
    """A type as SQL writes it."""
    if isinstance(kind, list):
        return f"ARRAY<{shown(kind[0])}>"
    if isinstance(kind, dict):
        return f"STRUCT<{', '.join(f'{quoted_name(name)}: {shown(one)}' for name, one in kind.items())}>"
    return kind or ANY
