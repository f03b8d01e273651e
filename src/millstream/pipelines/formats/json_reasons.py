"""Explains why a JSON value does not fit a schema: the field, its value, the expected type.

This is only for values that Spark has rejected, so it may be slow. It need not agree with Spark in
every case: the result is None if it finds no error.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from datetime import date, datetime
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from millstream.pipelines.formats.exact_texts import (
    NANOSECONDS,
    ONLY_DATE,
    SPECIAL_FLOATS,
    WHOLE_DATE,
)

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_HALF = re.compile("[\ud800-\udfff]")
HALF_PAIR = "{} has half of a surrogate pair"
# From here on the nearest floating-point number is infinity.
_TOO_LARGE = {"double": Decimal(2**1024 - 2**970), "float": Decimal(2**128 - 2**103)}
_INFINITE = float("inf")
MAX_PROBLEMS = 3
SHOWN_CHARACTERS = 40
_RANGES = {"byte": 7, "short": 15, "integer": 31, "long": 63}
_EXPECTED_TEXT = {
    "struct": "an object",
    "map": "an object",
    "array": "an array",
    "boolean": "a boolean",
    "binary": "text in base64",
}


# Large enough for any number that can be written.
_EXACT = Context(prec=10_000, Emin=MIN_EMIN, Emax=MAX_EMAX)


class _NotJson(ValueError):
    pass


class _Float(Decimal):
    """A number with a point or an exponent, and its text."""

    written: str

    def __new__(cls, written: str) -> _Float:
        number = super().__new__(cls, written)
        number.written = written
        return number


_NAMES = {
    dict: "an object",
    list: "an array",
    str: "text",
    bool: "a boolean",
    int: "a number",
    _Float: "a number",
}


def explain(value: bytes, schema: StructType) -> str | None:
    """Return the reason in one line, or None if no error is found."""
    try:
        document = _load(value)
    except _NotJson as error:
        return str(error)
    if not isinstance(document, dict):
        return f"not a JSON object but {_kind(document)}: {_shown(document)}"
    problems = _fields(document, schema, "")
    more = f" (and {len(problems) - MAX_PROBLEMS} more)" if len(problems) > MAX_PROBLEMS else ""
    return "; ".join(problems[:MAX_PROBLEMS]) + more or None


def _load(value: bytes) -> Any:
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise _NotJson(
            f"not UTF-8: byte 0x{value[error.start]:02x} at position {error.start}"
        ) from None
    if not text.strip():
        raise _NotJson("the value is empty")
    try:
        return json.loads(text, parse_float=_Float, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            raise _NotJson(
                f"unexpected data after the JSON at position {error.pos}: {_truncate(text[error.pos :])}"
            ) from None
        raise _NotJson(
            f"not JSON: {error.msg} at position {error.pos}: {_truncate(text[error.pos :])}"
        ) from None
    except RecursionError:
        raise _NotJson("the JSON is nested too deeply") from None


def _no_constant(name: str) -> Any:
    raise _NotJson(f"not JSON: {name} is not a number")


def _fields(document: dict[str, Any], schema: StructType, path: str) -> list[str]:
    problems = []
    for field in schema.fields:
        where = f"{path}.{field.name}" if path else field.name
        inner = document.get(field.name)
        if inner is None:
            if not field.nullable:
                state = "null" if field.name in document else "missing"
                problems.append(f"field '{where}' is {state}, and it is NOT NULL")
        else:
            problems += _problems(inner, field.dataType, where)
    return problems


def _problems(value: Any, kind: DataType, where: str) -> list[str]:
    name = kind.typeName()
    if name == "struct" and isinstance(value, dict):
        return _fields(value, kind, where)  # type: ignore[arg-type]
    if name == "map" and isinstance(value, dict):
        halves = [
            f"field '{where}': key {HALF_PAIR.format(_shown(key))}"
            for key in value
            if _HALF.search(key)
        ]
        inside = [(f"{where}.{key}", item) for key, item in value.items()]
        return halves or _inside(inside, kind.valueType, kind.valueContainsNull)  # type: ignore[attr-defined]
    if name == "array" and isinstance(value, list):
        inside = [(f"{where}[{index}]", item) for index, item in enumerate(value)]
        return _inside(inside, kind.elementType, kind.containsNull)  # type: ignore[attr-defined]
    problem = _scalar(value, kind, name)
    return [f"field '{where}': {problem}"] if problem else []


def _inside(values: list[tuple[str, Any]], kind: DataType, may_be_null: bool) -> list[str]:
    problems = []
    for where, item in values:
        if item is not None:
            problems += _problems(item, kind, where)
        elif not may_be_null:
            problems.append(f"field '{where}' is null, and it is NOT NULL")
    return problems


def _scalar(value: Any, kind: DataType, name: str) -> str | None:
    if name in _EXPECTED_TEXT and name not in ("boolean", "binary"):
        return _mismatch(value, _EXPECTED_TEXT[name])
    if name in _RANGES:
        return _integer(value, kind, _RANGES[name])
    check = _CHECKS.get(name)
    return check(value, kind) if check else None


def _mismatch(value: Any, expected: str) -> str:
    return f"{_shown(value)} is {_kind(value)}, not {expected}"


def _integer(value: Any, kind: DataType, bits: int) -> str | None:
    expected = kind.simpleString()
    if not _is_number(value):
        return _mismatch(value, expected)
    if not isinstance(value, int):
        return f"{value} is not a whole number ({expected})"
    if not -(1 << bits) <= value < 1 << bits:
        return f"{value} is out of the range of {expected}"
    return None


def _decimal(value: Any, kind: Any) -> str | None:
    expected = kind.simpleString()
    try:
        number = Decimal(value) if _is_number(value) or isinstance(value, str) else None
    except InvalidOperation:
        number = None
    if number is None or not number.is_finite():
        return _mismatch(value, expected)
    exponent = number.normalize(_EXACT).as_tuple().exponent
    if isinstance(exponent, int) and -exponent > kind.scale:
        return f"{value} has more than the {kind.scale} decimals of {expected}"
    if number.adjusted() >= kind.precision - kind.scale and number:
        return f"{value} is out of the range of {expected}"
    return None


def _float(value: Any, kind: DataType) -> str | None:
    if value in SPECIAL_FLOATS:
        return None
    if not _is_number(value):
        return _mismatch(value, kind.simpleString())
    if Decimal(value).copy_abs() >= _TOO_LARGE[kind.typeName()]:
        return f"{value} is out of the range of {kind.simpleString()}"
    return None


def _boolean(value: Any, kind: DataType) -> str | None:
    return None if isinstance(value, bool) else _mismatch(value, "a boolean")


def _binary(value: Any, kind: DataType) -> str | None:
    if not isinstance(value, str):
        return _mismatch(value, _EXPECTED_TEXT["binary"])
    try:
        base64.b64decode(value, validate=True)
    except ValueError:
        return f"{_shown(value)} is not base64"
    return None


def _string(value: Any, kind: DataType) -> str | None:
    """Check text. It can hold any JSON, but Spark writes the numbers of it differently."""
    if isinstance(value, str):
        return HALF_PAIR.format(_shown(value)) if _HALF.search(value) else None
    for number in _floats(value):
        kept = _java_text(number)
        same = kept == number.written if number is value else kept and Decimal(kept) == number
        if not same:
            return f"{number.written} is a number that a text field would change; send it as text"
    return None


def _floats(value: Any) -> Iterator[_Float]:
    if isinstance(value, _Float):
        yield value
    elif isinstance(value, dict | list):
        for inside in value.values() if isinstance(value, dict) else value:
            yield from _floats(inside)


def _java_text(number: _Float) -> str:
    """Return a double in Java's notation, or an empty text if it is zero or infinite.

    Java uses an exponent below 0.001 and from ten million on.
    """
    if not 1e-3 <= abs(float(number)) < 1e7 and number:
        if abs(float(number)) == _INFINITE or not float(number):
            return ""
        shown = f"{Decimal(repr(float(number))).normalize():E}".replace("E+", "E")
        digits, _, exponent = shown.partition("E")
        return f"{digits if '.' in digits else digits + '.0'}E{exponent}"
    return repr(float(number))


def _timestamp(value: Any, kind: DataType) -> str | None:
    if _is_number(value):
        return (
            f"{value} is too late for a timestamp; numbers are seconds since 1970"
            if not -(10**11) <= value <= 10**11
            else None
        )
    if not isinstance(value, str):
        return _mismatch(value, "a timestamp")
    if re.search(NANOSECONDS, value):
        return f"{_shown(value)} has nanoseconds, but a timestamp has microseconds"
    if not re.match(WHOLE_DATE, value):
        return f"{_shown(value)} is not a timestamp with a complete date"
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return f"{_shown(value)} is not a timestamp"
    return None


def _date(value: Any, kind: DataType) -> str | None:
    if not isinstance(value, str):
        return _mismatch(value, "a date")
    try:
        date.fromisoformat(value[:10])
    except ValueError:
        return f"{_shown(value)} is not a date"
    return None if re.match(ONLY_DATE, value) else f"{_shown(value)} has more than a date"


def _interval(value: Any, kind: DataType) -> str | None:
    if not isinstance(value, str):
        return _mismatch(value, "an interval")
    if re.search(NANOSECONDS, value):
        return f"{_shown(value)} has nanoseconds, but an interval has microseconds"
    return None


_CHECKS = {
    "string": _string,
    "decimal": _decimal,
    "double": _float,
    "float": _float,
    "boolean": _boolean,
    "binary": _binary,
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp,
    "date": _date,
    "daytimeinterval": _interval,
    "interval": _interval,
}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    return _NAMES.get(type(value), "null")


def _shown(value: Any) -> str:
    return _truncate(
        json.dumps(value, ensure_ascii=False, default=str)
        if not isinstance(value, Decimal)
        else str(value)
    )


def _truncate(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."
