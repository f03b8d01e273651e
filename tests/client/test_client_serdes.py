"""What keys and values may be, besides bytes."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import msgspec
import pytest

from millstream.client import ClientError, UndecodableRecord, avro
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
def test_values_come_back_as_they_went(kind, value) -> None:
    found = serde(kind)
    assert found is not None
    data = found.encode(value)
    assert isinstance(data, bytes)
    assert found.decode(data) == value


class Payment(msgspec.Struct):
    id: str
    line: Line
    paid: bool = False


PAYMENT = Payment("a", Line("tea", 2), paid=True)


@pytest.fixture(params=["with msgspec", "without"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without":
        monkeypatch.setitem(sys.modules, "msgspec", None)


@pytest.mark.usefixtures("either_way")
def test_dataclasses_are_the_same_with_and_without_msgspec() -> None:
    orders = serde(Order)
    assert orders is not None
    data = orders.encode(ORDER)
    assert data == b'{"id":"a","first":{"product":"tea","count":2},"amount":1.5,"tags":["x"]}'
    assert orders.decode(data) == ORDER
    assert orders.decode(b'{"id":"a","first":{"product":"tea","count":2},"unknown":1}') == Order(
        "a", Line("tea", 2)
    )
    with pytest.raises(TypeError, match="Order is wanted, not Line"):
        orders.encode(ORDER.first)


def test_structs_of_msgspec_travel_as_json_and_are_checked_when_read(millstream: Kafka) -> None:
    with millstream.producer(value=Payment, idempotent=False) as producer:
        producer.send("payments", PAYMENT)
        with pytest.raises(ClientError, match="Payment is wanted, not Line"):
            producer.send("payments", PAYMENT.line)
    millstream.produce("payments", [b'{"id":7}'])
    consumer = millstream.consumer("payments", value=Payment, until_end=True)
    assert next(iter(consumer)).value == PAYMENT
    with pytest.raises(UndecodableRecord, match="Expected `str`, got `int`"):
        consumer.poll()
    (raw, _) = millstream.consume("payments")
    assert raw.value == b'{"id":"a","line":{"product":"tea","count":2},"paid":true}'


def test_avro_and_protobuf() -> None:
    pytest.importorskip("fastavro")
    rows = avro(SCHEMA)
    assert rows.decode(rows.encode({"id": "a", "n": 3})) == {"id": "a", "n": 3}
    message = protobuf_class()(value="hello")
    messages = serde(protobuf_class())
    assert messages is not None
    assert messages.decode(messages.encode(message)) == message


def test_integers_are_those_of_kafkas_long_serializer() -> None:
    longs = serde("int")
    assert longs is not None
    assert longs.encode(258) == b"\0\0\0\0\0\0\1\2"


def test_what_has_no_serde_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ClientError, match="did you mean 'json'"):
        serde("jsn")
    with pytest.raises(ClientError, match="has no serde"):
        serde(ValueError)


def test_producers_and_consumers_use_them(millstream: Kafka) -> None:
    with millstream.producer(key="str", value=Order, idempotent=False) as producer:
        producer.send("orders", ORDER, key="a")
        producer.send("orders", None, key="a")  # a tombstone
        with pytest.raises(ClientError, match="the key of a record for 'orders': a text is wanted, not int"):
            producer.send("orders", ORDER, key=3)
    records = millstream.consume("orders", key="str", value=Order)
    assert [(one.key, one.value) for one in records] == [("a", ORDER), ("a", None)]


def test_a_record_that_cannot_be_read_is_told_after_those_before_it_and_passed_over(
    millstream: Kafka,
) -> None:
    millstream.produce("orders", [b"1", b"{", b"3"])
    consumer = millstream.consumer("orders", group="readers", value="json", until_end=True)
    seen: list[object] = []
    while not consumer.finished:
        try:
            seen += [one.value for one in consumer.poll()]
            consumer.commit()
        except UndecodableRecord as error:
            seen.append(error.record.value)
    assert seen == [1, b"{", 3]
    assert sum(millstream.lag("readers").values()) == 0


def test_a_loop_that_is_left_gets_the_rest_when_it_is_taken_up_again(millstream: Kafka) -> None:
    millstream.produce("orders", [str(number) for number in range(5)])
    consumer = millstream.consumer(
        "orders", group="readers", value=Functions(str.encode, int), until_end=True
    )
    for record in consumer:
        if record.value == 1:
            break
    consumer.commit()
    assert millstream.lag("readers") == {TopicPartition("orders", 0): 3}
    assert [one.value for one in consumer] == [2, 3, 4]
    assert millstream.lag("readers") == {TopicPartition("orders", 0): 0}
