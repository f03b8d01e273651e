"""Keys and values other than bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import pytest

from millstream.client import Admin, ClientError, Producer, UndecodableRecord, avro, consume
from millstream.client.serdes import Functions, serde
from millstream.core.types import TopicPartition
from millstream.testing import Kafka


@dataclass
class Line:
    product: str
    count: int


@dataclass
class Order:
    id: str
    first: Line
    amount: float = 0.0
    tags: list[str] = field(default_factory=list)


ORDER = Order("a", Line("tea", 2), 1.5, ["x"])
SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "n", "type": "int"}],
}


def protobuf_class() -> type:
    return pytest.importorskip("google.protobuf.wrappers_pb2").StringValue


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("bytes", b"\x00\xff"),
        ("str", "schön"),
        ("int", -(2**40)),
        ("json", {"id": 1, "names": ["ä"], "none": None}),
        (dict, {"a": 1}),
        (Order, ORDER),
        (Functions(lambda value: value[::-1], lambda data: data[::-1]), b"abc"),
    ],
)
def test_values_survive_encoding_and_decoding(kind, value) -> None:
    chosen = serde(kind)
    assert chosen is not None
    data = chosen.encode(value)
    assert isinstance(data, bytes)
    assert chosen.decode(data) == value


class Payment(msgspec.Struct):
    id: str
    line: Line
    paid: bool = False


MOMENT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
PAYMENT = Payment("a", Line("tea", 2), paid=True)


@dataclass
class Journey:
    """Types that a plain json.loads would not restore."""

    name: str
    begins: datetime
    first: Line | None = None
    lines: list[Line] = field(default_factory=list)


@pytest.mark.parametrize(
    "journey",
    [Journey("a", datetime(2026, 3, 1)), Journey("b", MOMENT, Line("tea", 2), [Line("cup", 1)])],
)
def test_dataclasses_survive_with_all_their_fields(journey: Journey) -> None:
    journeys = serde(Journey)
    assert journeys is not None
    assert journeys.decode(journeys.encode(journey)) == journey


def test_dataclasses_are_checked_on_encode_and_decode() -> None:
    orders = serde(Order)
    assert orders is not None
    assert (
        orders.encode(ORDER)
        == b'{"id":"a","first":{"product":"tea","count":2},"amount":1.5,"tags":["x"]}'
    )
    assert orders.decode(b'{"id":"a","first":{"product":"tea","count":2},"unknown":1}') == Order(
        "a", Line("tea", 2)
    )
    with pytest.raises(TypeError, match="Order is required, not Line"):
        orders.encode(ORDER.first)
    with pytest.raises(ValueError, match="Expected `str`, got `int`"):
        orders.decode(b'{"id":5,"first":{"product":"tea","count":2}}')


def test_msgspec_structs_are_json_and_checked_on_decode(millstream: Kafka) -> None:
    with millstream.producer(value=Payment, idempotent=False) as producer:
        producer.send("payments", PAYMENT)
        with pytest.raises(ClientError, match="Payment is required, not Line"):
            producer.send("payments", PAYMENT.line)
    millstream.produce("payments", [b'{"id":7}'])
    consumer = millstream.consumer("payments", value=Payment, until_end=True)
    assert next(iter(consumer)).value == PAYMENT
    with pytest.raises(UndecodableRecord, match="Expected `str`, got `int`"):
        consumer.poll()
    (raw, _) = millstream.consume("payments")
    assert raw.value == b'{"id":"a","line":{"product":"tea","count":2},"paid":true}'


def test_avro_and_protobuf_survive_encoding_and_decoding() -> None:
    pytest.importorskip("fastavro")
    rows = avro(SCHEMA)
    assert rows.decode(rows.encode({"id": "a", "n": 3})) == {"id": "a", "n": 3}
    message = protobuf_class()(value="hello")
    messages = serde(protobuf_class())
    assert messages is not None
    assert messages.decode(messages.encode(message)) == message


@pytest.mark.parametrize(
    ("kind", "wrong", "reason"),
    [
        ("int", 3.9, "an integer is required, not float"),
        ("int", "7", "an integer is required, not str"),
        ("int", True, "an integer is required, not bool"),
        ("int", 2**63, "does not fit into 8 bytes"),
        ("json", float("nan"), "not JSON compliant"),
        ("json", {"rate": float("inf")}, "not JSON compliant"),
    ],
)
def test_values_that_would_change_silently_are_rejected(kind, wrong, reason) -> None:
    chosen = serde(kind)
    assert chosen is not None
    with pytest.raises((TypeError, ValueError), match=reason):
        chosen.encode(wrong)


def test_protobuf_message_of_another_class_is_rejected() -> None:
    wrappers = pytest.importorskip("google.protobuf.wrappers_pb2")
    messages = serde(wrappers.StringValue)
    assert messages is not None
    with pytest.raises(TypeError, match="StringValue is required, not Int64Value"):
        messages.encode(wrappers.Int64Value(value=3))


def test_avro_reports_too_many_or_too_few_bytes() -> None:
    pytest.importorskip("fastavro")
    rows = avro(SCHEMA)
    whole = rows.encode({"id": "a", "n": 3})
    with pytest.raises(ValueError, match=f"8 of {len(whole) + 8} bytes are left"):
        rows.decode(whole + b"trailing")
    for cut in (b"", whole[:-1], whole[:1]):
        with pytest.raises(ValueError, match=f"{len(cut)} bytes are too few"):
            rows.decode(cut)


def test_integers_match_kafkas_long_serializer() -> None:
    longs = serde("int")
    assert longs is not None
    assert longs.encode(258) == b"\0\0\0\0\0\0\1\2"


def test_unknown_serde_is_rejected_with_the_nearest_name() -> None:
    with pytest.raises(ClientError, match="did you mean 'json'"):
        serde("jsn")
    with pytest.raises(ClientError, match="has no serde"):
        serde(ValueError)


def test_producers_and_consumers_use_serdes(millstream: Kafka) -> None:
    with millstream.producer(key="str", value=Order, idempotent=False) as producer:
        producer.send("orders", ORDER, key="a")
        producer.send("orders", None, key="a")  # a tombstone
        with pytest.raises(
            ClientError, match="the key of a record for 'orders': a str is required, not int"
        ):
            producer.send("orders", ORDER, key=3)
    records = millstream.consume("orders", key="str", value=Order)
    assert [(record.key, record.value) for record in records] == [("a", ORDER), ("a", None)]


def test_undecodable_record_is_raised_after_earlier_ones_and_skipped(
    millstream: Kafka,
) -> None:
    millstream.produce("orders", [b"1", b"{", b"3"])
    consumer = millstream.consumer("orders", group="readers", value="json", until_end=True)
    seen: list[object] = []
    while not consumer.finished:
        try:
            seen += [record.value for record in consumer.poll()]
            consumer.commit()
        except UndecodableRecord as error:
            seen.append(error.record.value)
    assert seen == [1, b"{", 3]
    assert sum(millstream.lag("readers").values()) == 0


def test_loop_that_ended_early_is_continued_by_the_next(millstream: Kafka) -> None:
    millstream.produce("orders", [str(number) for number in range(5)])
    consumer = millstream.consumer(
        "orders", group="readers", value=Functions(str.encode, int), until_end=True
    )
    for record in consumer:
        if record.value == 1:
            break
    consumer.commit()
    assert millstream.lag("readers") == {TopicPartition("orders", 0): 3}
    assert [record.value for record in consumer] == [2, 3, 4]
    assert millstream.lag("readers") == {TopicPartition("orders", 0): 0}


@dataclass
class Price:
    amount: float | None
    count: Annotated[int, msgspec.Meta(ge=0)] = 0


class Reading(msgspec.Struct):
    sensor: str
    celsius: float


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (
            Order,
            Order("a", Line("tea", "2")),
            r"Order\.first\.count: expected int, got str, in Order\(",
        ),  # type: ignore[arg-type]
        (Order, Order("a", Line("tea", 2), tags=[1]), r"Order\.tags\[0\]: expected str, got int"),  # type: ignore[list-item]
        (Order, Order(None, Line("tea", 2)), r"Order\.id: expected str, got null"),  # type: ignore[arg-type]
        (
            Order,
            Order("a", Line("tea", 2), float("nan")),
            r"Order\.amount: expected float, got null",
        ),
        (Price, Price(float("nan")), "not JSON compliant"),
        (Price, Price(1.0, -1), r"Price\.count: expected int >= 0"),
        (Reading, Reading("a", "warm"), r"Reading\.celsius: expected float, got str"),  # type: ignore[arg-type]
    ],
)
def test_value_that_a_reader_would_reject_is_not_encoded(
    kind: type, value: object, reason: str
) -> None:
    chosen = serde(kind)
    assert chosen is not None
    with pytest.raises((TypeError, ValueError), match=reason):
        chosen.encode(value)


def test_producer_rejects_a_dataclass_with_a_wrong_field(quick_broker, topic_name: str) -> None:
    with Admin(quick_broker.bootstrap) as admin:
        admin.topics.create(topic_name)
    with Producer(quick_broker.bootstrap, value=Line) as producer:
        with pytest.raises(
            ClientError, match=r"cannot serialise the value .*: Line\.count: expected int, got str"
        ):
            producer.send(topic_name, Line("tea", "two"))  # type: ignore[arg-type]
        producer.send(topic_name, Line("tea", 2))
    assert [record.value for record in consume(quick_broker.bootstrap, topic_name, value=Line)] == [
        Line("tea", 2)
    ]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"id": "a", "n": 1.5}, r"Order\.n: expected int, got 1\.5"),
        ({"id": "a", "n": 2**40}, r"Order\.n: expected int, got 1099511627776"),
        ({"id": "a"}, r"Order\.n: expected int, got None"),
    ],
)
def test_avro_rejects_values_outside_the_schema(value: object, reason: str) -> None:
    pytest.importorskip("fastavro")
    with pytest.raises(TypeError, match=reason):
        avro(SCHEMA).encode(value)
