"""Checks the text of JSON values in which Spark's parser may have changed a number or time.

``from_json`` does not keep the text of a number: a decimal is rounded, and 1.10 becomes 1.1 in a
text field. So a regular expression turns every number of a doubtful value into a text with a
marker, and the value is parsed again with texts only. Few values are doubtful; all others cost a
regular expression.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from millstream.pipelines.formats.exact_texts import (
    NANOSECONDS,
    SPECIAL_FLOATS,
    Intervals,
    is_exact,
    is_whole_second,
)
from millstream.pipelines.formats.json_checks import every, reading_type

if TYPE_CHECKING:
    from pyspark.sql import Column

    Parse = Callable[[Column, DataType], Column]
    """Parses texts as objects of a type; null on failure."""

Times = TimestampType | TimestampNTZType
Floats = DoubleType | FloatType


def _secret() -> str:
    """Return random letters, so that no value can contain a marker."""
    return "".join(secrets.choice(string.ascii_lowercase) for _ in range(16))


MARK, HALF = f"_number_{_secret()}_", f"_half_{_secret()}_"
# Matched here and replaced later. Valid JSON has this character only escaped.
EDGE = "\x01"
# A text, which stays as it is, or a number. Possessive, so that Java's stack does not grow with the
# length of a text.
TOKEN = r'("[^"\\]*+(?:\\.[^"\\]*+)*+")|(-?[0-9][-+.0-9eE]*+)'
# A complete escape, or one half of a surrogate pair without the other.
HIGH, LOW, HEX = r"\\u[dD][89abAB]", r"\\u[dD][c-fC-F]", "[0-9a-fA-F]{2}"
ESCAPE = rf"(\\[^u]|{HIGH}{HEX}{LOW}{HEX})|(\\u[dD][89a-fA-F]{HEX})"
HALF_PAIR = r"\\u[dD][89a-fA-F]"

EXPONENT = "[0-9.][eE]"
COMMA = '"[-+.0-9]+,'
MANY_DIGITS = "[0-9]{13}"
PARTIAL = r'"\s*(T?[0-9]{1,2}:|[+-]?[0-9]{4,7}(-[0-9]{1,2})?\s*["T ])'
BEHIND_DATE = r'[0-9]{4,7}-[0-9]{1,2}-[0-9]{1,2}\s*[^-0-9"\s]'
# Java's notation of numbers in text fields: numbers with a point, or objects and arrays with such
# numbers.
LOOSE_TEXT = (
    r'^(-?[0-9]+\.[0-9]+(E-?[0-9]+)?$|"-?(Infinity|NaN)"$|[\[{](?s).*([0-9]\.[0-9]|Infinity))'
)
# Removes exponents, points, leading zeros and trailing zeros.
DIGITS_ONLY = {
    r"([0-9.])[eE][-+]?[0-9]+": "$1",
    r"([0-9])\.([0-9])": "$1$2",
    "(?<![0-9])0+": "",
    "0+(?![0-9])": "",
}
NOT_A_NUMBER = r"[:\[,]\s*[-+]?[NI]"


def is_doubtful(text: Column, parsed: Callable[[str], Column], schema: StructType) -> Column | None:
    """Return whether the parser may have changed a number, time or text; None if it cannot."""
    kinds = [kind for field in schema.fields for kind in leaves(field.dataType)]
    patterns = []
    if decimals := [kind for kind in kinds if isinstance(kind, DecimalType)]:
        room = min(
            kind.scale for kind in map(reading_type, decimals) if isinstance(kind, DecimalType)
        )
        patterns += [EXPONENT, COMMA, rf"\.[0-9]{{{room + 1}}}"]
    if any(isinstance(kind, Times) for kind in kinds):
        patterns += [NANOSECONDS, MANY_DIGITS, PARTIAL]
    if any(isinstance(kind, Intervals) for kind in kinds):
        patterns.append(NANOSECONDS)
    if any(isinstance(kind, DateType) for kind in kinds):
        patterns += [BEHIND_DATE, PARTIAL]
    parts = [text.rlike("|".join(patterns))] if patterns else []
    plain = [every(parsed(field.name), field.dataType, _plain) for field in schema.fields]
    parts += [~F.coalesce(part, F.lit(True)) for part in plain if part is not None]
    return _any(parts) if parts else None


def _plain(column: Column, kind: DataType) -> Column | None:
    if isinstance(kind, StringType):
        return ~column.rlike(LOOSE_TEXT)
    return _finite(column, kind) if isinstance(kind, Floats) else None


def _finite(column: Column, kind: DataType) -> Column:
    return (column < F.lit(float("inf")).cast(kind)) & (column > F.lit(float("-inf")).cast(kind))


def with_marked_numbers(text: Column) -> Column:
    """Return a value in which every number is a text that begins with the marker."""
    edged = F.regexp_replace(text, TOKEN, f"$1{EDGE}$2{EDGE}")
    numbers = F.regexp_replace(edged, EDGE + EDGE, "")
    return F.regexp_replace(numbers, f"{EDGE}([^{EDGE}]*){EDGE}", f'"{MARK}$1"')


def exact_fields(texts: Column, schema: StructType, formats: Collection[str]) -> dict[str, Column]:
    """Return for each field with numbers or times whether they are exact. Null counts as exact."""
    kind = texts_type(schema)
    fields = {}
    for field in schema.fields:
        if isinstance(kind, StructType) and field.name in kind.names:
            exact = every(
                texts.getField(field.name), field.dataType, lambda c, k: _exact(c, k, formats)
            )
            if exact is not None:
                fields[field.name] = exact
    return fields


def _exact(text: Column, kind: DataType, formats: Collection[str]) -> Column | None:
    number, written = text.startswith(MARK), F.regexp_replace(text, f"^{MARK}", "")
    if isinstance(kind, Times):
        exact = is_exact(written, kind, formats)
        return F.when(number, is_whole_second(written)).otherwise(exact)
    if isinstance(kind, Floats):
        exact = is_exact(written, kind)
        return F.when(number, exact).otherwise(written.isin(*SPECIAL_FLOATS))
    return is_exact(written, kind, formats)


def exact_strings(text: Column, schema: StructType, parse: Parse) -> Column | None:
    """Return whether text fields have the text of the value.

    A single number must have the same text. Numbers within objects and arrays must be equal, but
    Spark may write them differently.
    """
    kind = strings_type(schema)
    if kind is None:
        return None
    parsed, written = (
        F.to_json(parse(text, kind)),
        F.to_json(parse(with_marked_numbers(text), kind)),
    )
    inside = F.regexp_replace(written, rf'\\"{MARK}([-+.0-9eE]*)\\"', "$1")
    singles = F.regexp_extract_all(inside, F.lit(rf'"{MARK}([-+.0-9eE]*)"'), F.lit(1))
    same = F.forall(
        singles,
        lambda number: (
            number.rlike("^-?[0-9]+$") | (number.try_cast("double").cast("string") == number)
        ),
    )
    return _digits(parsed).eqNullSafe(_digits(F.regexp_replace(inside, MARK, ""))) & same


def _digits(text: Column) -> Column:
    """Reduce every number of a text to its significant digits."""
    for pattern, kept in DIGITS_ONLY.items():
        text = F.regexp_replace(text, pattern, kept)
    return text


def has_no_half_pairs(text: Column, schema: StructType, parse: Parse) -> Column:
    """Return whether no used text has half of a surrogate pair, which Spark replaces by "?"."""
    edged = F.regexp_replace(text, ESCAPE, f"$1{EDGE}$2{EDGE}")
    marked_halves = F.regexp_replace(
        F.regexp_replace(edged, EDGE + EDGE, ""), f"{EDGE}[^{EDGE}]*{EDGE}", HALF
    )
    has_half = F.to_json(parse(marked_halves, reading_type(schema))).contains(HALF)
    return F.when(text.rlike(HALF_PAIR), ~F.coalesce(has_half, F.lit(False))).otherwise(F.lit(True))


def has_no_special_numbers(text: Column) -> Column:
    """Return whether a value has no NaN or Infinity, which are not JSON, outside of texts."""
    bare = F.regexp_replace(F.regexp_replace(text, r"\\.", ""), '"[^"]*"', '""')
    return F.when(text.rlike(NOT_A_NUMBER), ~bare.rlike(NOT_A_NUMBER)).otherwise(F.lit(True))


def leaves(kind: DataType) -> list[DataType]:
    """Return the types inside a type."""
    if isinstance(kind, StructType):
        return [leaf for field in kind.fields for leaf in leaves(field.dataType)]
    if isinstance(kind, ArrayType):
        return leaves(kind.elementType)
    if isinstance(kind, MapType):
        return [*leaves(kind.keyType), *leaves(kind.valueType)]
    return [kind]


def has_floats(schema: StructType) -> bool:
    return any(isinstance(kind, Floats) for kind in leaves(schema))


def texts_type(kind: DataType) -> DataType | None:
    """Return only the numbers and times of a type, to be read as texts, or None without any."""
    return _only(
        kind, lambda leaf: isinstance(leaf, DecimalType | Floats | Times | DateType | Intervals)
    )


def decimal_texts(kind: DataType) -> DataType | None:
    """Return only the decimals of a type, to be read as texts, or None without any."""
    return _only(kind, lambda leaf: isinstance(leaf, DecimalType))


def strings_type(kind: DataType) -> DataType | None:
    """Return only the texts of a type, or None without any."""
    return _only(kind, lambda leaf: isinstance(leaf, StringType))


def _only(kind: DataType, keep: Callable[[DataType], bool]) -> DataType | None:
    if keep(kind):
        return StringType()
    if isinstance(kind, StructType):
        parts = [(field.name, _only(field.dataType, keep)) for field in kind.fields]
        kept = [StructField(name, part) for name, part in parts if part is not None]
        return StructType(kept) if kept else None
    if isinstance(kind, ArrayType):
        part = _only(kind.elementType, keep)
        return None if part is None else ArrayType(part)
    if isinstance(kind, MapType):
        part = _only(kind.valueType, keep)
        return None if part is None else MapType(kind.keyType, part)
    return None


def _any(parts: list[Column]) -> Column:
    result = parts[0]
    for part in parts[1:]:
        result = result | part
    return result
