"""Converts Protobuf messages to plain values and back, with functions made once per type."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf import json_format

from millstream.pipelines.formats.arrow import Unreadable
from millstream.pipelines.formats.protobuf_messages import (
    ENUM,
    JSON_LIKE,
    TIMESTAMP,
    WRAPPERS,
    is_map,
    is_repeated,
)

Get = Callable[[Any], Any]
Set = Callable[[Any, Any], None]
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def getters(descriptor: Any) -> dict[str, Get]:
    """Return for each field a function from a message to its value."""
    return {field.name: _getter(field) for field in descriptor.fields}


def _getter(field: Any) -> Get:
    name = field.name
    if is_map(field):
        entry = field.message_type.fields_by_name
        key, value = _value_of(entry["key"]), _value_of(entry["value"])
        # By key, because items() of a map of messages does not exist everywhere.
        return lambda message: [
            (key(entry_key), value(getattr(message, name)[entry_key]))
            for entry_key in getattr(message, name)
        ]
    value = _value_of(field)
    if is_repeated(field):
        return lambda message: [value(item) for item in getattr(message, name)]
    if field.has_presence:
        return lambda message: value(getattr(message, name)) if message.HasField(name) else None
    return lambda message: value(getattr(message, name))


def _value_of(field: Any) -> Get:
    message = field.message_type
    if message is None:
        return _enum_name(field.enum_type) if field.type == ENUM else _identity
    if message.full_name == TIMESTAMP:
        return _micros
    if message.full_name in WRAPPERS:
        return lambda wrapper: wrapper.value
    if message.full_name in JSON_LIKE:
        return lambda message: json_format.MessageToJson(message, indent=None)
    inside = getters(message)
    return lambda inner: {name: get(inner) for name, get in inside.items()}


def _micros(moment: Any) -> int:
    """Return the microseconds of a Timestamp, which is defined for years 1 to 9999 only.

    Parsers do not check the range, and Python has no later years either.
    """
    if not FIRST_SECOND <= moment.seconds <= LAST_SECOND:
        raise Unreadable(f"{moment.seconds} seconds are not between the years 1 and 9999")
    if not 0 <= moment.nanos < 1_000_000_000:
        raise Unreadable(f"{moment.nanos} nanoseconds are not part of a second")
    if moment.nanos % 1_000:
        raise Unreadable(f"a time has {moment.nanos} nanoseconds, but a timestamp has microseconds")
    return int(moment.seconds * 1_000_000 + moment.nanos // 1_000)


def _identity(value: Any) -> Any:
    return value


def _enum_name(enum: Any) -> Get:
    """Return a function from a number to its name. Unknown numbers stay numbers, as text."""
    names = {number: value.name for number, value in enum.values_by_number.items()}
    return lambda number: names.get(number, str(number))


def fill(message: Any, row: Mapping[str, Any]) -> None:
    """Set the fields of a message. Nulls are left out, so fields without presence have defaults."""
    fields = message.DESCRIPTOR.fields_by_name
    for name, value in row.items():
        if value is not None:
            _set(message, fields[name], value)


def _set(message: Any, field: Any, value: Any) -> None:
    name = field.name
    if is_map(field):
        _fill_map(getattr(message, name), field.message_type.fields_by_name["value"], dict(value))
    elif is_repeated(field):
        _fill_list(getattr(message, name), field, value)
    elif field.message_type is not None:
        inner = getattr(message, name)
        inner.SetInParent()
        _fill_message(inner, value)
    else:
        setattr(message, name, _scalar(field, value))


def _fill_map(target: Any, field: Any, values: Mapping[Any, Any]) -> None:
    for key, value in values.items():
        if field.message_type is not None:
            _fill_message(target[key], value)
        else:
            target[key] = _scalar(field, value)


def _fill_list(target: Any, field: Any, values: Any) -> None:
    for value in values:
        if field.message_type is not None:
            _fill_message(target.add(), value)
        else:
            target.append(_scalar(field, value))


def _fill_message(message: Any, value: Any) -> None:
    name = message.DESCRIPTOR.full_name
    if name == TIMESTAMP:
        micros = (value - EPOCH) // timedelta(microseconds=1)
        message.seconds, message.nanos = micros // 1_000_000, micros % 1_000_000 * 1_000
    elif name in WRAPPERS:
        message.value = _scalar(message.DESCRIPTOR.fields_by_name["value"], value)
    elif name in JSON_LIKE:
        json_format.Parse(value, message)
    else:
        fill(message, value)


def _scalar(field: Any, value: Any) -> Any:
    if field.type != ENUM:
        return _number(field, value)
    known = field.enum_type.values_by_name.get(value)
    if known is None and not str(value).lstrip("-").isdigit():
        raise ValueError(f"enum {field.enum_type.full_name} has no value {value!r}")
    return int(value) if known is None else known.number


def _number(field: Any, value: Any) -> Any:
    """Return a number as its field needs it. Raise ValueError if it would be rounded."""
    if field.cpp_type in _INTEGERS:
        if int(value) != value:
            raise ValueError(f"field {field.name!r} is an integer, but {value} is not")
        return int(value)
    if field.cpp_type in _FLOATS:
        rounded = float(value)
        if field.cpp_type == _FLOAT and math.isfinite(rounded):
            # OverflowError if it is too large.
            rounded = struct.unpack("<f", struct.pack("<f", rounded))[0]
        if rounded != value and value == value:
            raise ValueError(
                f"field {field.name!r} would round {value} to {rounded}; cast the column first"
            )
    return value


_DOUBLE, _FLOAT = 5, 6
_FLOATS = (_DOUBLE, _FLOAT)
# int32, int64, uint32, uint64. A decimal(20,0) column has Decimal values.
_INTEGERS = (1, 2, 3, 4)
