"""Parse JSON values with Arrow, ten times as fast as with Spark, if the result is beyond doubt.

A value is proven here if Spark's parser and the checks of ``pipelines/formats/json.py`` certainly
accept it, with the same result. Every other value is null here and takes the slow path. So a doubt
costs only time, but an accepted value must be certain. The text is searched first for input that
Arrow accepts and Spark does not, or reads differently:

- NaN and infinity, which Arrow reads as numbers, even in fields outside the schema;
- decimals that are written as text, or with an exponent, or with enough digits to overflow Arrow's
  arithmetic silently;
- -0, which Spark reads as 0, and numbers that Arrow reads as infinity;
- times of the first and the last day that Spark's checks accept, since these days depend on the
  session's time zone;
- nesting, numbers and names that are too long for Spark's parser;
- several objects in one value. Arrow reads one object after the other, whatever is between them. So
  values are joined: each begins with ``{`` and ends with ``}``, no object continues across values,
  and the number of objects must be the number of values.
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
"""A struct column that a reader may request: the value in the types of its fields if it is proven,
else null."""
UNPROVEN = "_unproven_json"
"""The same column, always null: rows with proven values are left out."""

LONGEST = 32 * 1024
# Spark's parser accepts 1,000 nested objects and 1,000 digits of a number, and a number of 309
# digits is not a double. Shorter values cannot exceed that.
LONG, MAX_BRACKETS, LONG_NUMBER = 200, 400, "[0-9.eE+-]{200}"
# Between two objects. Older versions of Arrow treat a zero byte there as the end of the input, and
# for null they read foreign memory.
BETWEEN = r"\x00|\}\s*null"
NOT_A_NUMBER = r"[:\[,]\s*-?[NI]"
NEGATIVE_ZERO = r"[:\[,]\s*-0+(\.0*)?([eE]|\s*[,}\]])"
HUGE = r"[0-9.][eE]\+?0*[1-9][0-9]{2}"
EXPONENT = r"[0-9.][eE]|\\u"
# JSON escapes these characters other than by \u.
ESCAPED = r'["\\/\x00-\x1f]'
TIME = r"^(000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})-\d\d-\d\d[T ]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-](0\d|1[0-3]):[0-5]\d)$"
DATE = r"^(000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})-\d\d-\d\d$"
# No time zone is further than a day from UTC: these times are within the years 1 to 9999 in all of
# them.
FIRST_TIME, LAST_TIME = (
    dt.datetime(1, 1, 2, tzinfo=dt.UTC),
    dt.datetime(9999, 12, 30, tzinfo=dt.UTC),
)
# Arrow scales a decimal within 128 bits, which hold this number of digits. A number with more
# digits may become any other number.
MAX_DIGITS = 38
# Starting Arrow takes nearly a millisecond, so fewer values are not worth it. If a value is wrong,
# the others are parsed in this number of parts.
FEWEST, PARTS = 64, 16

Mask = npt.NDArray[np.bool_]


class Field(NamedTuple):
    """A field of the schema: the type that Arrow reads, and the type it is converted to."""

    name: str
    read_as: pa.DataType
    kind: pa.DataType
    required: bool
    pattern: str | None = None
    """The pattern of the text, if it is converted to another type."""


class Plan(NamedTuple):
    """The fields to parse; sent to the executors."""

    fields: tuple[Field, ...]
    doubts: str
    """A regular expression. Values that match take the slow path."""

    @property
    def kind(self) -> pa.DataType:
        return pa.struct(
            [pa.field(field.name, field.kind, nullable=not field.required) for field in self.fields]
        )


def plan_for(schema: StructType) -> Plan | None:
    """Return how to parse values of a schema, or None if it has unsupported types."""
    fields = []
    for declared in schema.fields:
        field = _field(declared.name, declared.dataType, required=not declared.nullable)
        if field is None:
            return None
        fields.append(field)
    if not fields or not _distinct([field.name for field in fields]):
        return None
    doubts = [BETWEEN, NOT_A_NUMBER]
    inside = [kind for field in schema.fields for kind in _all_types(field.name, field.dataType)]
    if any(kind.typeName() == "double" for _, kind in inside):
        doubts += [NEGATIVE_ZERO, HUGE]
    decimals = [(name, kind) for name, kind in inside if kind.typeName() == "decimal"]
    if decimals:
        names = sorted({name for name, _ in decimals})
        if any(re.search(ESCAPED, name) for name in names):
            return None
        doubts += [EXPONENT, f'"({"|".join(map(_literal, names))})"\\s*:\\s*[\\["]']
        overflowing = [
            kind.scale for _, kind in decimals if kind.precision + kind.scale > MAX_DIGITS
        ]
        if overflowing:
            doubts.append(f"[0-9]{{{MAX_DIGITS + 1 - max(overflowing)}}}")
    return Plan(tuple(fields), "|".join(doubts))


def _literal(name: str) -> str:
    """Return a name as it is written in JSON, for a regular expression.

    Any letter may be written as a Unicode escape: ``EXPONENT`` covers that.
    """
    return "".join(
        letter if letter.isalnum() or letter == "_" else re.escape(letter) for letter in name
    )


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
        # A collation or a length.
        return None
    if name in _PLAIN:
        return _PLAIN[name]()
    if name == "decimal":
        return pa.decimal128(kind.precision, kind.scale)
    if name == "array" and kind.containsNull:
        inner = _arrow_type(kind.elementType)
        return None if inner is None else pa.list_(pa.field("element", inner))
    if name == "struct" and all(field.nullable for field in kind.fields) and kind.fields:
        parts = [(field.name, _arrow_type(field.dataType)) for field in kind.fields]
        if any(part is None for _, part in parts) or not _distinct([field for field, _ in parts]):
            return None
        return pa.struct(parts)
    return None


def _distinct(names: list[str]) -> bool:
    """Return whether names differ in more than case, as Spark requires of a source."""
    return len({name.lower() for name in names}) == len(names)


def _all_types(name: str, kind: Any) -> list[tuple[str, Any]]:
    """Return the types inside a type, each with the name of the field that holds it."""
    if kind.typeName() == "array":
        return _all_types(name, kind.elementType)
    if kind.typeName() == "struct":
        return [inner for field in kind.fields for inner in _all_types(field.name, field.dataType)]
    return [(name, kind)]


# ---------------------------------------------------------------- reading


def parse(values: pa.Array, plan: Plan) -> pa.Array:
    """Return a struct for every value: its fields if it is proven, else null."""
    if len(values) < FEWEST:
        return pa.nulls(len(values), plan.kind)
    try:
        return _parse(values, plan)
    except pa.ArrowInvalid:
        size = max(-(-len(values) // PARTS), FEWEST)
        parts = [values.slice(start, size) for start in range(0, len(values), size)]
        return pa.concat_arrays([_parse_or_nulls(part, plan) for part in parts])


def proven(values: pa.Array, plan: Plan) -> Mask:
    """Return which values are proven."""
    return _mask(pc.is_valid(parse(values, plan)))


def _parse_or_nulls(values: pa.Array, plan: Plan) -> pa.Array:
    try:
        return _parse(values, plan)
    except pa.ArrowInvalid:
        return pa.nulls(len(values), plan.kind)


def _parse(values: pa.Array, plan: Plan) -> pa.Array:
    """Parse the candidates. Raise ArrowInvalid if one of them does not match the plan."""
    # The cast checks that they are UTF-8.
    texts = values.cast(pa.string())
    candidates = _candidates(texts, plan)
    if candidates.all():
        return _read(texts, plan)
    rows = _read(texts.filter(pa.array(candidates)), plan)
    places = np.full(len(values), -1, np.int64)
    places[candidates] = np.arange(len(rows))
    return rows.take(pa.array(places, mask=places < 0))


def _candidates(texts: pa.Array, plan: Plan) -> Mask:
    """Return the values for which Arrow's verdict is sufficient."""
    lengths = np.asarray(pc.fill_null(pc.binary_length(texts), 0))
    accepted = (lengths >= 2) & (lengths <= LONGEST)
    accepted &= _mask(pc.starts_with(texts, "{")) & _mask(pc.ends_with(texts, "}"))
    accepted &= ~_mask(pc.match_substring_regex(texts, plan.doubts))
    long = np.flatnonzero(accepted & (lengths >= LONG))
    if len(long):
        longer = texts.take(pa.array(long))
        brackets = np.asarray(pc.count_substring(longer, "{")) + np.asarray(
            pc.count_substring(longer, "[")
        )
        numbers = _mask(pc.match_substring_regex(longer, LONG_NUMBER))
        accepted[long] = (brackets <= MAX_BRACKETS) & ~numbers
    return accepted


def _mask(flags: pa.Array) -> Mask:
    return np.asarray(pc.fill_null(flags, False), dtype=np.bool_)


def _read(texts: pa.Array, plan: Plan) -> pa.Array:
    from pyarrow import json

    if not len(texts):
        return pa.array([], plan.kind)
    joined = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), "\n")[0].as_buffer()
    block = pa.py_buffer(joined.to_pybytes() + b"\n")
    table = json.read_json(
        pa.BufferReader(block),
        read_options=json.ReadOptions(use_threads=False, block_size=block.size + 1),
        parse_options=json.ParseOptions(
            explicit_schema=pa.schema(
                [pa.field(field.name, field.read_as) for field in plan.fields]
            ),
            unexpected_field_behavior="ignore",
        ),
    )
    if table.num_rows != len(texts):
        raise pa.ArrowInvalid("a value is not one object")
    columns, accepted = [], np.ones(len(texts), np.bool_)
    for field in plan.fields:
        column = table.column(field.name).combine_chunks()
        if field.pattern is not None:
            column = _matching(column, field.pattern).cast(field.kind)
        if pa.types.is_timestamp(field.kind):
            first, last = (
                pa.scalar(moment, pa.timestamp("us", tz="UTC"))
                for moment in (FIRST_TIME, LAST_TIME)
            )
            inside = pc.and_(pc.greater_equal(column, first), pc.less_equal(column, last))
            accepted &= _mask(pc.fill_null(inside, True))
        if field.required:
            accepted &= _mask(pc.is_valid(column))
        columns.append(column)
    for column in columns:
        # Arrow does not check the digits of decimals before.
        column.validate(full=True)
    return pa.StructArray.from_arrays(
        columns, fields=list(plan.kind), mask=None if accepted.all() else pa.array(~accepted)
    )


def _matching(texts: pa.Array, pattern: str) -> pa.Array:
    if not pc.all(pc.match_substring_regex(texts, pattern), min_count=0).as_py():
        raise pa.ArrowInvalid("a text does not match its pattern")
    return texts
