"""JSON values to columns by Arrow, ten times as fast as by Spark: those values about which there can be no doubt.

A value is proven here when it is certain that Spark's parser and the checks of ``pipelines/formats/json.py`` take it, and make the same of it.
Of every other value nothing is said: it is null here, and goes the slow way. So whatever is doubted costs time and nothing else, and what is
taken must be beyond doubt. What Arrow would take and Spark would not is looked for in the text before:

- NaN and infinity, which Arrow reads as numbers, also in fields that nobody asked for;
- decimals that are written as text, or with an exponent, or with so many digits that Arrow's arithmetic would overflow unseen;
- -0, of which Spark makes 0; numbers of which Arrow makes infinity;
- times of the first and the last day that Spark's checks take, since these days are those of the session's time zone;
- nesting, numbers and names so long that Spark's parser refuses them;
- several objects in one value. Arrow reads one object after the other, whatever is between them, so values are put one behind the other:
  each begins with ``{`` and ends with ``}``, between which no object goes on, and there must be as many objects as values.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

PROVEN = "_proven_json"
"""A column that a reader of topics may ask for, a struct: the value in the types of its fields where it is proven, else null."""
UNPROVEN = "_unproven_json"
"""The same column, always null: rows whose values are proven are left out."""

LONGEST = 32 * 1024
# Spark's parser takes 1,000 of each: nested objects, digits of a number; and a number of 309 digits is no double. Shorter values cannot have them.
LONG, MOST_BRACKETS, LONG_NUMBER = 200, 400, "[0-9.eE+-]{200}"
# Between two objects. Older Arrows take a zero byte there for the end of everything, and for null they look at memory that is not theirs.
BETWEEN = r"\x00|\}\s*null"
NOT_A_NUMBER = r"[:\[,]\s*-?[NI]"
NEGATIVE_ZERO = r"[:\[,]\s*-0+(\.0*)?([eE]|\s*[,}\]])"
HUGE = r"[0-9.][eE]\+?0*[1-9][0-9]{2}"
EXPONENT = r"[0-9.][eE]|\\u"
# Names with these are written in JSON with escapes other than \u.
ESCAPED = r'["\\/\x00-\x1f]'
TIME = r"^(000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})-\d\d-\d\d[T ]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-](0\d|1[0-3]):[0-5]\d)$"
DATE = r"^(000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})-\d\d-\d\d$"
# No time zone is further than a day from UTC: these times are within the years 1 to 9999 in all of them.
FIRST_TIME, LAST_TIME = dt.datetime(1, 1, 2, tzinfo=dt.UTC), dt.datetime(9999, 12, 30, tzinfo=dt.UTC)
# Arrow brings a decimal to its scale within 128 bits, which is room for so many digits; what has more may become any other number.
MOST_DIGITS = 38
# Arrow takes nearly a millisecond to begin: fewer values are not worth it. Where something is wrong, the rest is found in so many parts.
FEWEST, PARTS = 64, 16

Mask = npt.NDArray[np.bool_]


class Field(NamedTuple):
    """A field of the schema: what Arrow reads it as, and what becomes of that."""

    name: str
    read_as: pa.DataType
    kind: pa.DataType
    required: bool
    pattern: str | None = None  # of the text, where it is one that is no text in the end


class Plan(NamedTuple):
    """What values are read as; sent to the executors."""

    fields: tuple[Field, ...]
    doubts: str  # a regular expression: values that have it are left to the slow way

    @property
    def kind(self) -> pa.DataType:
        return pa.struct([pa.field(one.name, one.kind, nullable=not one.required) for one in self.fields])


def plan_for(schema: StructType) -> Plan | None:
    """How to read values of a schema; None where it has types that are not read here."""
    fields = []
    for one in schema.fields:
        found = _field(one.name, one.dataType, required=not one.nullable)
        if found is None:
            return None
        fields.append(found)
    if not fields or not _distinct([one.name for one in fields]):
        return None
    doubts = [BETWEEN, NOT_A_NUMBER]
    inside = [kind for one in schema.fields for kind in _all_types(one.name, one.dataType)]
    if any(kind.typeName() == "double" for _, kind in inside):
        doubts += [NEGATIVE_ZERO, HUGE]
    decimals = [(name, kind) for name, kind in inside if kind.typeName() == "decimal"]
    if decimals:
        names = sorted({name for name, _ in decimals})
        if any(re.search(ESCAPED, name) for name in names):
            return None
        doubts += [EXPONENT, f'"({"|".join(map(_literal, names))})"\\s*:\\s*[\\["]']
        overflowing = [kind.scale for _, kind in decimals if kind.precision + kind.scale > MOST_DIGITS]
        if overflowing:
            doubts.append(f"[0-9]{{{MOST_DIGITS + 1 - max(overflowing)}}}")
    return Plan(tuple(fields), "|".join(doubts))


def _literal(name: str) -> str:
    """A name as it is written in JSON, for a regular expression. (Any letter may be written as \\u: that is covered by ``EXPONENT``.)"""
    return "".join(letter if letter.isalnum() or letter == "_" else re.escape(letter) for letter in name)


def _field(name: str, kind: DataType, required: bool) -> Field | None:
    if kind.typeName() == "timestamp":
        return Field(name, pa.string(), pa.timestamp("us", tz="UTC"), required, TIME)
    if kind.typeName() == "date":
        return Field(name, pa.string(), pa.date32(), required, DATE)
    read_as = _arrow_type(kind)
    return None if read_as is None else Field(name, read_as, read_as, required)


_PLAIN: dict[str, Callable[[], pa.DataType]] = {
    "string": pa.string,
    "boolean": pa.bool_,
    "long": pa.int64,
    "integer": pa.int32,
    "short": pa.int16,
    "byte": pa.int8,
    "double": pa.float64,
}


def _arrow_type(kind: Any) -> pa.DataType | None:
    name = kind.typeName()
    if name == "string" and kind.simpleString() != "string":
        return None  # a collation or a length
    if name in _PLAIN:
        return _PLAIN[name]()
    if name == "decimal":
        return pa.decimal128(kind.precision, kind.scale)
    if name == "array" and kind.containsNull:
        inner = _arrow_type(kind.elementType)
        return None if inner is None else pa.list_(pa.field("element", inner))
    if name == "struct" and all(one.nullable for one in kind.fields) and kind.fields:
        parts = [(one.name, _arrow_type(one.dataType)) for one in kind.fields]
        if any(part is None for _, part in parts) or not _distinct([one for one, _ in parts]):
            return None
        return pa.struct(parts)
    return None


def _distinct(names: list[str]) -> bool:
    """Also where Spark does not look at the case: it reads no source whose names are the same then."""
    return len({one.lower() for one in names}) == len(names)


def _all_types(name: str, kind: Any) -> list[tuple[str, Any]]:
    """The types inside a type, each with the name of the field that it is written under."""
    if kind.typeName() == "array":
        return _all_types(name, kind.elementType)
    if kind.typeName() == "struct":
        return [found for one in kind.fields for found in _all_types(one.name, one.dataType)]
    return [(name, kind)]


# ---------------------------------------------------------------- reading


def parse(values: pa.Array, plan: Plan) -> pa.Array:
    """A struct for every value: its fields where it is proven, null where it is not."""
    if len(values) < FEWEST:
        return pa.nulls(len(values), plan.kind)
    try:
        return _parse(values, plan)
    except pa.ArrowInvalid:
        size = max(-(-len(values) // PARTS), FEWEST)
        parts = [values.slice(start, size) for start in range(0, len(values), size)]
        return pa.concat_arrays([_parse_or_not(one, plan) for one in parts])


def proven(values: pa.Array, plan: Plan) -> Mask:
    """Which values are."""
    return _mask(pc.is_valid(parse(values, plan)))


def _parse_or_not(values: pa.Array, plan: Plan) -> pa.Array:
    try:
        return _parse(values, plan)
    except pa.ArrowInvalid:
        return pa.nulls(len(values), plan.kind)


def _parse(values: pa.Array, plan: Plan) -> pa.Array:
    """ArrowInvalid where one of those of which Arrow's word would be enough is not as planned."""
    texts = values.cast(pa.string())  # which checks that they are UTF-8
    candidates = _candidates(texts, plan)
    if candidates.all():
        return _read(texts, plan)
    rows = _read(texts.filter(pa.array(candidates)), plan)
    places = np.full(len(values), -1, np.int64)
    places[candidates] = np.arange(len(rows))
    return rows.take(pa.array(places, mask=places < 0))


def _candidates(texts: pa.Array, plan: Plan) -> Mask:
    """The values of which Arrow's word is enough."""
    lengths = np.asarray(pc.fill_null(pc.binary_length(texts), 0))
    fine = (lengths >= 2) & (lengths <= LONGEST)
    fine &= _mask(pc.starts_with(texts, "{")) & _mask(pc.ends_with(texts, "}"))
    fine &= ~_mask(pc.match_substring_regex(texts, plan.doubts))
    long = np.flatnonzero(fine & (lengths >= LONG))
    if len(long):
        some = texts.take(pa.array(long))
        brackets = np.asarray(pc.count_substring(some, "{")) + np.asarray(pc.count_substring(some, "["))
        numbers = _mask(pc.match_substring_regex(some, LONG_NUMBER))
        fine[long] = (brackets <= MOST_BRACKETS) & ~numbers
    return fine


def _mask(found: pa.Array) -> Mask:
    return np.asarray(pc.fill_null(found, False), dtype=np.bool_)


def _read(texts: pa.Array, plan: Plan) -> pa.Array:
    from pyarrow import json

    if not len(texts):
        return pa.array([], plan.kind)
    joined = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), "\n")[0].as_buffer()
    block = pa.py_buffer(joined.to_pybytes() + b"\n")
    found = json.read_json(
        pa.BufferReader(block),
        read_options=json.ReadOptions(use_threads=False, block_size=block.size + 1),
        parse_options=json.ParseOptions(
            explicit_schema=pa.schema([pa.field(one.name, one.read_as) for one in plan.fields]),
            unexpected_field_behavior="ignore",
        ),
    )
    if found.num_rows != len(texts):
        raise pa.ArrowInvalid("a value is not one object")
    columns, fine = [], np.ones(len(texts), np.bool_)
    for one in plan.fields:
        column = found.column(one.name).combine_chunks()
        if one.pattern is not None:
            column = _matching(column, one.pattern).cast(one.kind)
        if pa.types.is_timestamp(one.kind):
            first, last = (
                pa.scalar(moment, pa.timestamp("us", tz="UTC")) for moment in (FIRST_TIME, LAST_TIME)
            )
            inside = pc.and_(pc.greater_equal(column, first), pc.less_equal(column, last))
            fine &= _mask(pc.fill_null(inside, True))
        if one.required:
            fine &= _mask(pc.is_valid(column))
        columns.append(column)
    for column in columns:
        column.validate(full=True)  # Arrow does not look at the digits of decimals before
    return pa.StructArray.from_arrays(
        columns, fields=list(plan.kind), mask=None if fine.all() else pa.array(~fine)
    )


def _matching(texts: pa.Array, pattern: str) -> pa.Array:
    if not pc.all(pc.match_substring_regex(texts, pattern), min_count=0).as_py():
        raise pa.ArrowInvalid("a text is not written as expected")
    return texts
