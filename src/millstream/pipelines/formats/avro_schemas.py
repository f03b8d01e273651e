"""Converts between Avro schemas and Spark types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import types as T

from millstream.pipelines.errors import PipelineError

MAX_DIGITS = 38
_PLAIN: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "int": T.IntegerType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "bytes": T.BinaryType(),
    "string": T.StringType(),
    "fixed": T.BinaryType(),
    "enum": T.StringType(),
}
_LOGICAL: dict[str, T.DataType] = {
    "date": T.DateType(),
    "timestamp-millis": T.TimestampType(),
    "timestamp-micros": T.TimestampType(),
    "local-timestamp-millis": T.TimestampNTZType(),
    "local-timestamp-micros": T.TimestampNTZType(),
}
# A union of these types is read as the wider one.
_WIDENED = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}
_NAMED = ("record", "enum", "fixed", "error")


def load(schema: Any) -> Any:
    """Return an Avro schema from a document, JSON text or the path of an .avsc file, or None."""
    if isinstance(schema, Mapping):
        return dict(schema)
    if not isinstance(schema, str):
        return None
    text = schema.strip()
    if text.endswith(".avsc"):
        try:
            text = Path(text).read_text()
        except OSError as error:
            raise PipelineError(
                f"the Avro schema {schema!r} cannot be read: {error.strerror}"
            ) from None
    elif not text.startswith("{"):
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise PipelineError(f"the Avro schema is not JSON: {error}") from None


def without_unused_logical_types(schema: Any) -> Any:
    """Return the schema without logical types that Spark has no type for.

    Their values stay as they are stored.
    """
    if isinstance(schema, list):
        return [without_unused_logical_types(branch) for branch in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {
        name: without_unused_logical_types(value)
        if name in ("type", "items", "values", "fields")
        else value
        for name, value in schema.items()
    }
    logical = kept.get("logicalType")
    if logical is not None and logical not in _LOGICAL and not _is_decimal(kept):
        del kept["logicalType"]
    return kept


def _is_decimal(schema: Mapping[str, Any]) -> bool:
    precision = schema.get("precision")
    return (
        schema.get("logicalType") == "decimal"
        and isinstance(precision, int)
        and precision <= MAX_DIGITS
    )


def spark_type(
    schema: Any, named: dict[str, Any] | None = None, path: str = ""
) -> tuple[T.DataType, bool]:
    """Return the Spark type of an Avro schema, and whether it may be null."""
    named = {} if named is None else named
    if isinstance(schema, list):
        return _union(schema, named, path)
    if isinstance(schema, str):
        if schema in _PLAIN:
            return _PLAIN[schema], False
        if schema in named:
            return _named(schema, named, path)
        raise _unsupported(schema, path)
    kind = schema.get("type")
    if isinstance(kind, list | Mapping):
        return spark_type(kind, named, path)
    if kind in _NAMED:
        named[schema["name"]] = schema
    if _is_decimal(schema):
        return T.DecimalType(schema["precision"], schema.get("scale", 0)), False
    if schema.get("logicalType") in _LOGICAL:
        return _LOGICAL[schema["logicalType"]], False
    if kind in ("record", "error"):
        return _record(schema, named, path), False
    if kind == "array":
        element, may_be_null = spark_type(schema["items"], named, f"{path}[]")
        return T.ArrayType(element, may_be_null), False
    if kind == "map":
        value, may_be_null = spark_type(schema["values"], named, f"{path}{{}}")
        return T.MapType(T.StringType(), value, may_be_null), False
    return spark_type(kind, named, path)


def _record(schema: Mapping[str, Any], named: dict[str, Any], path: str) -> T.StructType:
    # A record that contains itself would have no end.
    inside = {**named, schema["name"]: None}
    fields = []
    for field in schema["fields"]:
        kind, may_be_null = spark_type(field["type"], inside, f"{path}.{field['name']}".lstrip("."))
        fields.append(T.StructField(field["name"], kind, may_be_null))
    named.update({name: inner for name, inner in inside.items() if inner is not None})
    return T.StructType(fields)


def _named(name: str, named: dict[str, Any], path: str) -> tuple[T.DataType, bool]:
    if named[name] is None:
        raise PipelineError(
            f"the Avro record {name} contains itself (at {path}), which a column cannot",
            hint='use value="raw" and decode it in the flow',
        )
    return spark_type(named[name], named, path)


def _union(schema: list[Any], named: dict[str, Any], path: str) -> tuple[T.DataType, bool]:
    others = [branch for branch in schema if branch != "null"]
    may_be_null = len(others) < len(schema)
    if len(others) == 1:
        return spark_type(others[0], named, path)[0], may_be_null
    if all(isinstance(branch, str) for branch in others) and (
        wide := _WIDENED.get(frozenset(others))
    ):
        return _PLAIN[wide], may_be_null
    raise _unsupported(schema, path)


def _unsupported(schema: Any, path: str) -> PipelineError:
    return PipelineError(
        f"a column cannot have the Avro type {json.dumps(schema)} (at {path or 'the top'})",
        hint='use value="raw" and decode it in the flow',
    )


def avro_schema(kind: T.DataType, name: str = "Value") -> Any:
    """Return the Avro schema of a Spark type."""
    if isinstance(kind, T.StructType):
        return {
            "type": "record",
            "name": name,
            "fields": [_field(field, name) for field in kind.fields],
        }
    if isinstance(kind, T.ArrayType):
        return {
            "type": "array",
            "items": _maybe(avro_schema(kind.elementType, name + "_item"), kind.containsNull),
        }
    if isinstance(kind, T.MapType) and isinstance(kind.keyType, T.StringType):
        return {
            "type": "map",
            "values": _maybe(avro_schema(kind.valueType, name + "_value"), kind.valueContainsNull),
        }
    if isinstance(kind, T.DecimalType):
        return {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": kind.precision,
            "scale": kind.scale,
        }
    written = _WRITTEN.get(type(kind))
    if written is None:
        raise PipelineError(
            f"Avro has no type for {kind.simpleString()}",
            hint="cast the column, for example to string",
        )
    return written


_WRITTEN: dict[type[T.DataType], Any] = {
    T.BooleanType: "boolean",
    T.ByteType: "int",
    T.ShortType: "int",
    T.IntegerType: "int",
    T.LongType: "long",
    T.FloatType: "float",
    T.DoubleType: "double",
    T.BinaryType: "bytes",
    T.StringType: "string",
    T.DateType: {"type": "int", "logicalType": "date"},
    T.TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    T.TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}


def _field(field: T.StructField, parent: str) -> dict[str, Any]:
    avro_field = {
        "name": field.name,
        "type": _maybe(avro_schema(field.dataType, f"{parent}_{field.name}"), field.nullable),
    }
    return avro_field | {"default": None} if field.nullable else avro_field


def _maybe(schema: Any, may_be_null: bool) -> Any:
    return ["null", schema] if may_be_null else schema
