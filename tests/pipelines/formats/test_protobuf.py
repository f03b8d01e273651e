"""Protobuf messages to columns and back. A bad value does not affect others."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2

from millstream.pipelines.errors import PipelineError
from millstream.pipelines.formats.protobuf_messages import message_class
from millstream.pipelines.formats.registry import value_format
from support.pipelines.avro_values import decoded, fields


def proto_file(syntax: str = "proto3") -> descriptor_pb2.FileDescriptorProto:
    """Return the descriptor of shop.Order, as protoc writes it."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax=syntax)
    file.dependency.append("google/protobuf/timestamp.proto")
    order = file.message_type.add(name="Order")

    def add(
        name: str, kind: int, label: int = kinds.LABEL_OPTIONAL, type_name: str | None = None
    ) -> Any:
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


def test_messages_become_columns_and_are_written_back(spark, descriptor: str):
    format = value_format("protobuf", message="Order", descriptor=descriptor)
    assert format.schema.simpleString() == (
        "struct<id:string,n:int,big:decimal(20,0),maybe:bigint,at:timestamp,tags:array<string>,"
        "lines:array<struct<sku:string>>,counts:map<string,double>,kind:string,data:binary>"
    )
    message = message_class(Path(descriptor).read_bytes(), "shop.Order")(
        id="é",
        n=-5,
        big=2**64 - 1,
        tags=["x"],
        lines=[{"sku": "s"}],
        counts={"a": 0.5},
        kind=1,
        data=b"\xff",
    )
    message.at.seconds, message.at.nanos = 1_700_000_000, 123_456_000
    good = message.SerializeToString()
    # an unknown enum value and an unknown field
    newer = b"\x48\x63" + b"\xa2\x06\x01x"
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
    confluent = value_format(
        "protobuf", message="Order", descriptor=descriptor, confluent=True, schema_id=1
    )
    (record,) = confluent.encode(frame, key="id").collect()
    assert bytes(record.value)[:6] == b"\x00\x00\x00\x00\x01\x00"
    (again,) = decoded(spark, confluent, [bytes(record.value)])
    assert fields(again) == order


def test_value_that_does_not_fit_spark_is_one_error(spark, descriptor: str):
    late = [message_class(Path(descriptor).read_bytes(), "shop.Order")(id="late") for _ in range(2)]
    late[0].at.seconds, late[1].at.seconds = (
        2**62,
        253_402_300_800,
        # the year 10000, which Python does not have
    )
    format = value_format("protobuf", message="shop.Order", descriptor=descriptor)
    rows = decoded(spark, format, [b"", *(message.SerializeToString() for message in late), b""])
    assert [row["_error"] is None for row in rows] == [True, False, False, True]
    assert rows[2]["_error"] == "253402300800 seconds are not between the years 1 and 9999"
    many = value_format("avro", "d decimal(4,2) NOT NULL")
    rows = decoded(spark, many, [b"\x02\x7f", b"\x06\x7f\xff\xff"])
    assert [row["d"] for row in rows] == [Decimal("1.27"), None]
    assert "a decimal has more than the 4 digits" in rows[1]["_error"]


def test_compiled_class_needs_no_module_on_workers(spark):
    format = value_format("protobuf", message="google.protobuf.timestamp_pb2:Timestamp")
    (row,) = decoded(spark, format, [timestamp_pb2.Timestamp(seconds=5).SerializeToString()])
    assert fields(row) == {"seconds": 5, "nanos": 0}


def test_invalid_protobuf_declarations_are_rejected(descriptor: str, tmp_path: Path):
    (tmp_path / "bad.desc").write_bytes(b"\xff\xff")
    for words, options in (
        ("needs a message", {}),
        ("needs a message", {"message": "Order"}),
        ("cannot be imported", {"message": "no_such_module:Order"}),
        (
            r".* has no message 'Ordr'; there are shop.Order",
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
