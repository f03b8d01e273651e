"""Avro, protobuf, string and raw values to columns and back; one bad value spoils no other."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2

from millstream.pipelines.errors import PipelineError
from millstream.pipelines.formats.protobuf_messages import message_class
from millstream.pipelines.formats.registry import ValueFormat, value_format

AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "n", "type": ["null", "int"], "default": None},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
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


def avro(row: dict[str, Any], schema: dict[str, Any] = AVRO) -> bytes:
    stream = io.BytesIO()
    plain = json.loads(
        json.dumps(schema).replace('"logicalType": "uuid"', '"doc": ""').replace('"time-millis"', '""')
    )
    fastavro.schemaless_writer(stream, fastavro.parse_schema(plain), row)
    return stream.getvalue()


def decoded(spark: Any, format: ValueFormat, values: list[bytes | None], **more: Any) -> list[dict[str, Any]]:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    rows = [(index, None if one is None else bytearray(one)) for index, one in enumerate(values)]
    records = spark.createDataFrame(rows, "offset bigint, value binary").repartition(1)
    found = sorted(format.decode(records, **more).collect(), key=lambda row: row._record.offset)
    return [row.asDict(recursive=True) for row in found]


def fields(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("_error", "_record")}


def test_avro_records_become_columns_and_one_bad_value_spoils_no_other(spark):
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
    assert rows[1]["_error"] == f"not a record of the Avro schema: its {len(good) - 1} bytes end too early"
    assert rows[2]["_error"] == f"not a record of the Avro schema: 2 of {len(good) + 2} bytes are left over"
    assert rows[7]["_error"] == "the value is null"
    assert bytes(rows[1]["_record"]["value"]) == good[:-1]


def test_avro_with_a_confluent_header(spark):
    format = value_format("avro", "id string NOT NULL, n int", confluent=True, schema_id=7)
    frame = spark.createDataFrame([("a", None)], "id string NOT NULL, n int")
    (record,) = format.encode(frame, key="id").collect()
    assert (bytes(record.key), bytes(record.value)) == (b"a", b"\x00\x00\x00\x00\x07\x02a\x00")
    rows = decoded(spark, format, [bytes(record.value), b"\x02a\x00"])
    assert [(row["id"], row["n"]) for row in rows] == [("a", None), (None, None)]
    assert rows[1]["_error"] == "no Confluent header (0 and four bytes) before the value: 02 61 00"
    with pytest.raises(PipelineError, match="needs the number of the schema; give it as schema_id=N"):
        value_format("avro", "id string", confluent=True).encode(frame)


def test_avro_rows_are_written_with_a_schema_derived_from_them(spark):
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
    values = [bytes(one.value) for one in value_format("avro").encode(frame).collect()]
    rows = decoded(spark, value_format("avro", schema), values)
    assert [fields(one) for one in rows] == [one.asDict(recursive=True) for one in frame.collect()]


def test_avro_schemas_that_cannot_be_columns_are_refused(tmp_path: Path, spark):
    itself = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    union = {"type": "record", "name": "U", "fields": [{"name": "u", "type": ["string", "int"]}]}
    for words, schema in (
        ("the Avro record Node contains itself .at next.", itself),
        (r'cannot have the Avro type \["string", "int"\] .at u.', union),
        ("is a record", '{"type": "string"}'),
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


def proto_file(syntax: str = "proto3") -> descriptor_pb2.FileDescriptorProto:
    """shop.Order, as protoc would describe it."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax=syntax)
    file.dependency.append("google/protobuf/timestamp.proto")
    order = file.message_type.add(name="Order")

    def add(name: str, kind: int, label: int = kinds.LABEL_OPTIONAL, type_name: str | None = None) -> Any:
        return order.field.add(
            name=name, number=len(order.field) + 1, type=kind, label=label, type_name=type_name
        )

    add("id", kinds.TYPE_STRING)
    add("n", kinds.TYPE_INT32)
    add("big", kinds.TYPE_UINT64)
    add("maybe", kinds.TYPE_INT64).proto3_optional = True
    order.field[-1].oneof_index = 0
    order.oneof_decl.add(name="_maybe")
    add("at", kinds.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
    add("tags", kinds.TYPE_STRING, kinds.LABEL_REPEATED)
    add("lines", kinds.TYPE_MESSAGE, kinds.LABEL_REPEATED, ".shop.Order.Line")
    add("counts", kinds.TYPE_MESSAGE, kinds.LABEL_REPEATED, ".shop.Order.CountsEntry")
    add("kind", kinds.TYPE_ENUM, type_name=".shop.Order.Kind")
    add("data", kinds.TYPE_BYTES)
    line = order.nested_type.add(name="Line")
    line.field.add(name="sku", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=kinds.TYPE_DOUBLE, label=kinds.LABEL_OPTIONAL)
    order.enum_type.add(name="Kind").value.extend(
        [
            descriptor_pb2.EnumValueDescriptorProto(name=name, number=at)
            for at, name in enumerate(("NONE", "GIFT"))
        ]
    )
    return file


@pytest.fixture
def descriptor(tmp_path: Path) -> str:
    path = tmp_path / "shop.desc"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[proto_file()]).SerializeToString())
    return str(path)


def test_protobuf_messages_become_columns_and_are_written_again(spark, descriptor: str):
    format = value_format("protobuf", message="Order", descriptor=descriptor)
    assert format.schema.simpleString() == (
        "struct<id:string,n:int,big:decimal(20,0),maybe:bigint,at:timestamp,tags:array<string>,"
        "lines:array<struct<sku:string>>,counts:map<string,double>,kind:string,data:binary>"
    )
    made = message_class(Path(descriptor).read_bytes(), "shop.Order")(
        id="é", n=-5, big=2**64 - 1, tags=["x"], lines=[{"sku": "s"}], counts={"a": 0.5}, kind=1, data=b"\xff"
    )
    made.at.seconds, made.at.nanos = 1_700_000_000, 123_456_000
    good = made.SerializeToString()
    newer = b"\x48\x63" + b"\xa2\x06\x01x"  # an enum value and a field that nobody knows yet
    rows = decoded(spark, format, [good, b"", good[:-1], b'{"id":"a"}', newer, None])
    order = {
        "id": "é",
        "n": -5,
        "big": Decimal(2**64 - 1),
        "maybe": None,
        "at": dt.datetime(2023, 11, 14, 22, 13, 20, 123456),
        "tags": ["x"],
        "lines": [{"sku": "s"}],
        "counts": {"a": 0.5},
        "kind": "GIFT",
        "data": bytearray(b"\xff"),
    }
    assert fields(rows[0]) == order
    assert fields(rows[1]) | {"data": None} == dict.fromkeys(order) | {
        "id": "",
        "n": 0,
        "big": Decimal(0),
        "tags": [],
        "lines": [],
        "counts": {},
        "kind": "NONE",
    }
    assert rows[4]["kind"] == "99"
    assert [row["_error"] for row in rows] == [
        None,
        None,
        f"not a message shop.Order: its {len(good) - 1} bytes cannot be parsed",
        "not a message shop.Order: its 10 bytes cannot be parsed",
        None,
        "the value is null",
    ]
    frame = spark.createDataFrame([tuple(order.values())], format.schema)
    confluent = value_format("protobuf", message="Order", descriptor=descriptor, confluent=True, schema_id=1)
    (record,) = confluent.encode(frame, key="id").collect()
    assert bytes(record.value)[:6] == b"\x00\x00\x00\x00\x01\x00"
    (again,) = decoded(spark, confluent, [bytes(record.value)])
    assert fields(again) == order


def test_a_value_that_spark_has_no_room_for_is_an_error_of_its_own(spark, descriptor: str):
    late = [message_class(Path(descriptor).read_bytes(), "shop.Order")(id="late") for _ in range(2)]
    late[0].at.seconds, late[1].at.seconds = (
        2**62,
        253_402_300_800,
    )  # the year 10000, which Python does not have
    format = value_format("protobuf", message="shop.Order", descriptor=descriptor)
    rows = decoded(spark, format, [b"", *(one.SerializeToString() for one in late), b""])
    assert [row["_error"] is None for row in rows] == [True, False, False, True]
    assert rows[2]["_error"] == "253402300800 seconds are no time between the years 1 and 9999"
    many = value_format("avro", "d decimal(4,2) NOT NULL")
    rows = decoded(spark, many, [b"\x02\x7f", b"\x06\x7f\xff\xff"])
    assert [row["d"] for row in rows] == [Decimal("1.27"), None]
    assert "a decimal has more than the 4 digits" in rows[1]["_error"]


def test_random_bytes_are_told_as_no_record(spark):
    format = value_format("avro", "id string, numbers array<int>, at timestamp")
    rows = decoded(spark, format, [b"\xff" * 20, b"\x04"])
    assert all(row["_error"].startswith("not a record of the Avro schema") for row in rows)


def test_a_compiled_class_will_do_and_workers_need_no_module(spark):
    format = value_format("protobuf", message="google.protobuf.timestamp_pb2:Timestamp")
    (row,) = decoded(spark, format, [timestamp_pb2.Timestamp(seconds=5).SerializeToString()])
    assert fields(row) == {"seconds": 5, "nanos": 0}


def test_protobuf_declarations_say_what_is_wrong(descriptor: str, tmp_path: Path):
    (tmp_path / "bad.desc").write_bytes(b"\xff\xff")
    for words, options in (
        ("needs a message", {}),
        ("needs a message", {"message": "Order"}),
        ("cannot be imported", {"message": "no_such_module:Order"}),
        (
            r"there is no message 'Ordr' in .*; there are shop.Order",
            {"message": "Ordr", "descriptor": descriptor},
        ),
        ("is not a descriptor set", {"message": "O", "descriptor": str(tmp_path / "bad.desc")}),
        ("cannot be read", {"message": "O", "descriptor": str(tmp_path / "none.desc")}),
        (
            "google.protobuf.DescriptorProto contains itself",
            {"message": "google.protobuf.descriptor_pb2:DescriptorProto"},
        ),
    ):
        with pytest.raises(PipelineError, match=words):
            value_format("protobuf", **options)


def test_string_and_raw_keep_the_columns_of_the_record(spark):
    values: list[bytes | None] = ["é".encode(), b"\xff", None]
    rows = decoded(spark, value_format("string"), values)
    assert [(row["value"], row["_error"]) for row in rows] == [
        ("é", None),
        (None, "the value is not valid UTF-8"),
        (None, None),
    ]
    assert rows[1]["_record"]["value"] == b"\xff"
    rows = decoded(spark, value_format("raw"), values, tombstones="error")
    assert [(row["value"], row["offset"], row["_error"]) for row in rows] == [
        (bytearray("é".encode()), 0, None),
        (bytearray(b"\xff"), 1, None),
        (None, 2, "the value is null"),
    ]


def test_string_and_raw_are_written_with_what_the_rows_say(spark):
    frame = spark.createDataFrame([("k", "v", "t", 1)], "key string, value string, topic string, other int")
    for name in ("string", "raw"):
        (record,) = value_format(name).encode(frame).collect()
        assert (bytes(record.key), bytes(record.value), record.topic) == (b"k", b"v", "t")
        assert "other" not in record
    (record,) = value_format("string").encode(frame.selectExpr("other AS value"), key="value").collect()
    assert (bytes(record.key), bytes(record.value)) == (b"1", b"1")
    with pytest.raises(PipelineError, match="writes bytes or text, and `value` is integer"):
        value_format("raw").encode(frame.selectExpr("other AS value"))
    with pytest.raises(PipelineError, match="the column `value`, which the rows do not have"):
        value_format("raw").encode(frame.select("key"))
