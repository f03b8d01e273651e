"""Checks for Avro values that fastavro would change silently.

fastavro truncates milliseconds, integers and digits of decimals, and rounds floats. Reading rejects
a decimal with more digits than its schema. Writing raises an error that names the field if a value
does not fit.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

DECIMAL = "millstream-decimal"
"""The logical type that decimals are read as. fastavro's reader rounds them to their precision."""
_BITS = {"int": 31, "long": 63}
_WIDER = {"int": "long", "float": "double", "": ""}
_MILLIS = ("timestamp-millis", "local-timestamp-millis")


def for_reading(schema: Any) -> Any:
    """Return a parsed schema whose decimals are read by ``read_decimal``."""
    if isinstance(schema, list):
        return [for_reading(branch) for branch in schema]
    if not isinstance(schema, Mapping):
        return schema
    inner = ("type", "items", "values", "fields")
    converted = {
        name: for_reading(value) if name in inner else value for name, value in schema.items()
    }
    if converted.get("logicalType") == "decimal":
        converted["logicalType"] = DECIMAL
    return converted


def read_decimal(data: bytes, schema: Any = None, _: Any = None) -> Decimal:
    """Return a decimal with all its digits. Raise ValueError if the schema has fewer."""
    digits = int.from_bytes(data, signed=True)
    if abs(digits) >= 10 ** schema["precision"]:
        raise ValueError(f"a decimal has more than the {schema['precision']} digits of its schema")
    return Decimal((digits < 0, tuple(map(int, str(abs(digits)))), -schema.get("scale", 0)))


def register() -> None:
    """Register the logical type with fastavro in this process."""
    from fastavro import read

    for kind in ("bytes", "fixed"):
        read.LOGICAL_READERS[f"{kind}-{DECIMAL}"] = read_decimal


def check(value: Any, schema: Any, named: dict[str, Any], path: str) -> None:
    """Raise ValueError if a value would be written as a different one."""
    if value is None:
        return
    if isinstance(schema, str) and schema in named:
        schema = named[schema]
    if isinstance(schema, list):
        # Of two similar types fastavro takes the one that fits the value.
        for part in schema:
            if _WIDER.get(part if isinstance(part, str) else "") not in schema:
                check(value, part, named, path)
        return
    kind = schema if isinstance(schema, str) else schema["type"]
    if isinstance(kind, list | Mapping):
        check(value, kind, named, path)
    elif kind == "record":
        named[schema["name"]] = schema
        for field in schema["fields"]:
            check(
                value.get(field["name"]),
                field["type"],
                named,
                f"{path}.{field['name']}".lstrip("."),
            )
    elif kind == "array":
        for part in value:
            check(part, schema["items"], named, f"{path}[]")
    elif kind == "map":
        for part in value.values():
            check(part, schema["values"], named, f"{path}{{}}")
    else:
        _check_scalar(value, kind, schema, path)


def _check_scalar(value: Any, kind: str, schema: Any, path: str) -> None:
    logical = None if isinstance(schema, str) else schema.get("logicalType")
    if logical in _MILLIS and value.microsecond % 1000:
        raise ValueError(f"field {path!r}: {value} is more exact than {logical}")
    if (
        not isinstance(value, int | float | Decimal)
        or isinstance(value, bool)
        or logical is not None
    ):
        return
    if kind in _BITS and (
        value != int(value) or not -(1 << _BITS[kind]) <= value < 1 << _BITS[kind]
    ):
        raise ValueError(f"field {path!r}: {value} is not a value of {kind}")
    if kind in ("float", "double") and not _is_float(value, kind):
        raise ValueError(f"field {path!r}: {kind} would round {value}; cast the column first")


def _is_float(value: Any, kind: str) -> bool:
    rounded = float(value)
    if kind == "float" and math.isfinite(rounded):
        try:
            rounded = struct.unpack("<f", struct.pack("<f", rounded))[0]
        except OverflowError:
            return False
    return bool(rounded == value or value != value)
