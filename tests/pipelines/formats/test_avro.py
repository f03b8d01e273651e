"""Avro values to columns and back. A bad value does not affect others."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path

import pytest

from millstream.pipelines.errors import PipelineError
from millstream.pipelines.formats.registry import value_format
from support.pipelines.avro_values import AVRO, avro, decoded, fields

ORDER = {
    "id": "é",
    "n": None,
    "d": Decimal("-1.25"),
    "at": dt.datetime(2026, 3, 1, 12, 0, 0, 123000, tzinfo=dt.UTC),
    "day": dt.date(2026, 3, 1),
    "uuid": "7d0f1a0e-0000-4000-8000-000000000000",
    "clock": 5,
    "kind": "B",
    "tags": ["x", "y"],
    "counts": {"a": 1},
    "line": {"sku": "s", "kind": "A"},
}


def test_avro_records_become_columns_despite_bad_values(spark):
    format = value_format("avro", AVRO)
    assert format.schema.simpleString() == (
        "struct<id:string,n:int,d:decimal(12,2),at:timestamp,day:date,uuid:string,clock:int,kind:string,"
        "tags:array<string>,counts:map<string,bigint>,line:struct<sku:string,kind:string>>"
    )
    good = avro(ORDER)
    bad = [good[:-1], good + b"xx", b"", b"\xff" * 30, b'{"id":"a"}', b"\x02\xff" + good[3:]]
    rows = decoded(spark, format, [good, *bad, None, avro(ORDER | {"n": 7})])
    at = dt.datetime(2026, 3, 1, 12, 0, 0, 123000)
    assert fields(rows[0]) == ORDER | {"at": at}
    assert fields(rows[-1]) == ORDER | {"at": at, "n": 7}
    assert [row["_error"] is None for row in rows] == [True, *[False] * 7, True]
    assert (
        rows[1]["_error"]
        == f"not a record of the Avro schema: its {len(good) - 1} bytes are truncated"
    )
    assert (
        rows[2]["_error"]
        == f"not a record of the Avro schema: 2 of {len(good) + 2} bytes are not part of it"
    )
    assert rows[7]["_error"] == "the value is null"
    assert bytes(rows[1]["_record"]["value"]) == good[:-1]


def test_avro_values_with_confluent_header(spark):
    format = value_format("avro", "id string NOT NULL, n int", confluent=True, schema_id=7)
    frame = spark.createDataFrame([("a", None)], "id string NOT NULL, n int")
    (record,) = format.encode(frame, key="id").collect()
    assert (bytes(record.key), bytes(record.value)) == (b"a", b"\x00\x00\x00\x00\x07\x02a\x00")
    rows = decoded(spark, format, [bytes(record.value), b"\x02a\x00"])
    assert [(row["id"], row["n"]) for row in rows] == [("a", None), (None, None)]
    assert rows[1]["_error"] == "no Confluent header (0 and four bytes) before the value: 02 61 00"
    with pytest.raises(PipelineError, match="needs the schema id; give it as schema_id=N"):
        value_format("avro", "id string", confluent=True).encode(frame)


def test_avro_rows_are_written_with_a_derived_schema(spark):
    schema = "id string, n smallint, d decimal(20,4), t timestamp, day date, s struct<a: array<struct<x: int>>, m map<string,double>>"
    row = (
        "a",
        3,
        Decimal("1.5000"),
        dt.datetime(2026, 3, 1, 0, 0, 0, 1),
        dt.date(2026, 3, 1),
        ([(1,), None], {"k": 0.5}),
    )
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    frame = spark.createDataFrame([row, (None,) * 6], schema)
    values = [bytes(row.value) for row in value_format("avro").encode(frame).collect()]
    rows = decoded(spark, value_format("avro", schema), values)
    assert [fields(row) for row in rows] == [row.asDict(recursive=True) for row in frame.collect()]


def test_avro_schemas_without_spark_types_are_rejected(tmp_path: Path, spark):
    itself = {
        "type": "record",
        "name": "Node",
        "fields": [{"name": "next", "type": ["null", "Node"]}],
    }
    union = {"type": "record", "name": "U", "fields": [{"name": "u", "type": ["string", "int"]}]}
    for words, schema in (
        ("the Avro record Node contains itself .at next.", itself),
        (r'cannot have the Avro type \["string", "int"\] .at u.', union),
        ("must be a record", '{"type": "string"}'),
        (
            "cannot be used: UnknownType",
            {"type": "record", "name": "R", "fields": [{"name": "a", "type": "strin"}]},
        ),
        ("is not JSON", "{"),
        ("cannot be read: No such file", str(tmp_path / "none.avsc")),
    ):
        with pytest.raises(PipelineError, match=words):
            value_format("avro", schema)
    (tmp_path / "order.avsc").write_text(json.dumps(AVRO))
    file = value_format("avro", str(tmp_path / "order.avsc"))
    frame = spark.createDataFrame([("a", 1)], "id string, m int")
    with pytest.raises(PipelineError, match="has no field for column 'm'"):
        file.encode(frame)
    with pytest.raises(PipelineError, match="the Avro schema needs a column 'd'"):
        file.encode(frame.drop("m"))


def test_random_bytes_are_not_a_record(spark):
    format = value_format("avro", "id string, numbers array<int>, at timestamp")
    rows = decoded(spark, format, [b"\xff" * 20, b"\x04"])
    assert all(row["_error"].startswith("not a record of the Avro schema") for row in rows)
