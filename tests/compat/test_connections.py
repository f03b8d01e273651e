"""What a connection does with frames that are wrong, out of place or many: it answers in order, or
it is closed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from compat.crafted import batch
from compat.edge_case import AGAINST_KAFKA
from compat.raw_client import API, Closed, RawConnection, correlation_id, read_answer
from compat.raw_requests import (
    UNKNOWN_ID,
    errors,
    fetch,
    list_offsets,
    metadata,
    produce,
    stored,
    values,
)
from compat.raw_requests import message as request
from millstream.core.errors import ErrorCode as E
from millstream.local.broker import LocalBroker
from millstream.wire.schema import Struct

NAMED = {"client_software_name": "tests", "client_software_version": "1"}


def is_closed(connection: RawConnection) -> bool:
    try:
        connection.receive()
    except Closed:
        return True
    return False


def answers(connection: RawConnection) -> bool:
    """Whether the next request of the connection is answered."""
    try:
        connection.call("Metadata", 12, metadata())
    except Closed:
        return False
    return True


# ---- versions ----


@pytest.mark.parametrize("version", [-1, 6, 99, 32767])
def test_an_unknown_version_of_api_versions_is_answered_in_v0(
    connection: RawConnection, version: int
):
    header = connection.header(API["ApiVersions"].key, version, flexible=True)
    connection.send_frame(header + b"\x06tests\x021\0")
    answer = read_answer("ApiVersions", 0, connection.receive())
    assert answer.error_code == E.UNSUPPORTED_VERSION
    assert {key.api_key for key in answer.api_keys} >= {API["ApiVersions"].key}
    assert connection.call("ApiVersions", 3, request("ApiVersions", **NAMED)).error_code == 0


@pytest.mark.skipif(AGAINST_KAFKA, reason="the versions of this project")
def test_every_version_that_is_offered_is_served(connection: RawConnection):
    offered = connection.call("ApiVersions", 4, request("ApiVersions", **NAMED)).api_keys
    served = {key.api_key: (key.min_version, key.max_version) for key in offered}
    assert served == {
        api.key: (api.min_version, api.newest) for api in API.values() if not api.internal
    }


@pytest.mark.parametrize(
    ("key", "version"),
    [(3, 99), (0, 14), (1, 19), (2, 12), (19, 1), (19, 8), (22, 6), (23, 1), (32, 0), (10, 7)],
)
def test_a_version_that_is_not_served_closes_the_connection(
    connection: RawConnection, key: int, version: int
):
    connection.send_frame(connection.header(key, version, flexible=True) + bytes(40))
    assert is_closed(connection)


@pytest.mark.parametrize("key", [999, -1, 4, 5, 6, 7, 54, 58, 62])
def test_an_unknown_api_closes_the_connection(connection: RawConnection, key: int):
    connection.send_frame(connection.header(key, 0, flexible=False) + bytes(20))
    assert is_closed(connection)


# ---- frames ----


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", 0),
        struct.pack(">i", -1),
        struct.pack(">i", 200 << 20),
        struct.pack(">i", 3) + b"abc",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["no size", "negative size", "too large", "too small", "HTTP"],
)
def test_bytes_that_are_no_request_close_the_connection(connection: RawConnection, data: bytes):
    connection.send_bytes(data)
    assert is_closed(connection)


def test_a_body_that_ends_too_soon_closes_the_connection(connection: RawConnection):
    connection.send_body("Metadata", 12, b"\x05")
    assert is_closed(connection)


def test_bytes_behind_the_body_are_ignored(connection: RawConnection):
    connection.send_body("Metadata", 1, struct.pack(">i", 0) + b"extra!")
    assert read_answer("Metadata", 1, connection.receive()).topics == []


def test_a_client_without_a_name_is_served(connection: RawConnection):
    body = bytes(metadata().encode(12))
    connection.send_frame(connection.header(3, 12, flexible=True, client_id=None) + body)
    assert read_answer("Metadata", 12, connection.receive()).topics == []


def test_a_frame_may_come_in_pieces(connection: RawConnection):
    frame = connection.header(3, 12, flexible=True) + bytes(metadata().encode(12))
    data = struct.pack(">i", len(frame)) + frame
    for at in range(len(data)):
        connection.send_bytes(data[at : at + 1])
    assert read_answer("Metadata", 12, connection.receive()).topics == []


# ---- order ----


def test_pipelined_requests_are_answered_in_order(
    connection: RawConnection, new_topic: Callable[..., str]
):
    topic = new_topic()
    waiting = fetch(topic, min_bytes=1, max_wait_ms=100_000)
    asked: list[tuple[str, int, Struct]] = [
        ("Metadata", 12, metadata(topic)),
        ("ApiVersions", 0, request("ApiVersions")),
        ("Produce", 9, produce(topic, batch(), acks=1)),
        ("Fetch", 12, waiting),
        ("ListOffsets", 7, list_offsets(topic, -1)),
        ("Produce", 9, produce(topic, batch())),
        ("ListOffsets", 7, list_offsets(topic, -1)),
    ]
    sent = [connection.send(*one) for one in asked]
    frames = [connection.receive() for _ in asked]
    assert [correlation_id(frame) for frame in frames] == sent
    found = [
        read_answer(name, version, frame)
        for (name, version, _), frame in zip(asked, frames, strict=True)
    ]
    assert [values(answer, "offset") for answer in (found[4], found[6])] == [[1], [2]]
    assert stored(found[3])


def test_a_thousand_pipelined_produces_keep_their_order(
    connection: RawConnection, new_topic: Callable[..., str]
):
    topic = new_topic()
    asked = produce(topic, batch(), acks=1)
    for _ in range(1000):
        connection.send("Produce", 9, asked)
    offsets = [
        values(read_answer("Produce", 9, connection.receive()), "base_offset")[0]
        for _ in range(1000)
    ]
    assert offsets == list(range(1000))


def test_a_produce_that_is_converted_does_not_overtake_or_fall_back(
    connection: RawConnection, new_topic: Callable[..., str]
):
    """One partition needs a child process (gzip), the other does not: requests of a connection
    still happen in order.
    """
    slow, quick = new_topic(compression_type="gzip", max_message_bytes=8_000_000), new_topic()
    large = batch([(None, bytes(7_000_000))])
    for number in range(6):
        target, records = (slow, large) if number % 3 == 0 else (quick, batch())
        connection.send("Produce", 9, produce(target, records))
    frames = [connection.receive() for _ in range(6)]
    assert [errors(read_answer("Produce", 9, frame)) for frame in frames] == [[0]] * 6
    found = [values(read_answer("Produce", 9, frame), "base_offset") for frame in frames]
    assert found == [[0], [0], [1], [1], [2], [3]]


# ---- acks 0 ----


def test_acks_0_is_not_answered(connection: RawConnection, new_topic: Callable[..., str]):
    topic = new_topic()
    for _ in range(3):
        connection.send("Produce", 9, produce(topic, batch(), acks=0))
    assert values(connection.call("ListOffsets", 7, list_offsets(topic, -1)), "offset") == [3]


def test_acks_0_without_topics_is_fine(connection: RawConnection):
    connection.send("Produce", 12, request("Produce", acks=0, timeout_ms=1))
    assert answers(connection)


@pytest.mark.parametrize("wrong", ["topic", "partition", "records", "size", "id"])
def test_acks_0_that_fails_closes_the_connection(
    shared_broker: LocalBroker, new_topic: Callable[..., str], wrong: str
):
    """The only way to tell a producer that does not listen."""
    topic = new_topic(max_message_bytes=1000)
    asked = {
        "topic": produce(f"{topic}-not", batch(), acks=0),
        "partition": produce(topic, batch(), acks=0, partition=9),
        "records": produce(topic, batch(crc=1), acks=0),
        "size": produce(topic, batch([(b"k", b"x" * 2000)]), acks=0),
        "id": produce(UNKNOWN_ID, batch(), acks=0),
    }[wrong]
    with RawConnection(shared_broker.bootstrap) as connection:
        connection.send("Produce", 13 if wrong == "id" else 12, asked)
        assert not answers(connection)
