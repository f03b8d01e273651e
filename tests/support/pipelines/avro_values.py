"""Avro values, and their columns after decoding."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro

from millstream.pipelines.formats.registry import ValueFormat

AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "n", "type": ["null", "int"], "default": None},
        {
            "name": "d",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
        },
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {
            "name": "line",
            "type": {
                "type": "record",
                "name": "Line",
                "fields": [{"name": "sku", "type": "string"}, {"name": "kind", "type": "Kind"}],
            },
        },
    ],
}


def avro(row: dict[str, Any], schema: dict[str, Any] = AVRO) -> bytes:
    stream = io.BytesIO()
    plain = json.loads(
        json.dumps(schema)
        .replace('"logicalType": "uuid"', '"doc": ""')
        .replace('"time-millis"', '""')
    )
    fastavro.schemaless_writer(stream, fastavro.parse_schema(plain), row)
    return stream.getvalue()


def decoded(
    spark: Any, format: ValueFormat, values: list[bytes | None], **more: Any
) -> list[dict[str, Any]]:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    rows = [(index, None if one is None else bytearray(one)) for index, one in enumerate(values)]
    records = spark.createDataFrame(rows, "offset bigint, value binary").repartition(1)
    found = sorted(format.decode(records, **more).collect(), key=lambda row: row._record.offset)
    return [row.asDict(recursive=True) for row in found]


def fields(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("_error", "_record")}
