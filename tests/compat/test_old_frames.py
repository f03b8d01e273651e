"""Clients of before Kafka 0.11, byte by byte: Produce v0-v2, Fetch v0-v3 and ListOffsets v0, built
and read by hand.

Nothing of the project's own codecs is used for the frames: what stands here is the protocol as
those clients wrote it.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import cramjam
import lz4.block
import lz4.frame
import pytest
import zstandard
from confluent_kafka import Producer

from compat.crafted import GZIP, LZ4, SNAPPY, ZSTD, batch, message, record
from compat.edge_case import AGAINST_KAFKA
from compat.raw_client import RawConnection
from compat.raw_requests import create_topics, errors, fetch, new_topic, produce, stored
from millstream.local.broker import LocalBroker
from millstream.wire.records.batch import parse_header, read_records

pytestmark = pytest.mark.skipif(AGAINST_KAFKA, reason="Apache Kafka 4 has dropped these versions")

PRODUCE, FETCH, LIST_OFFSETS = 0, 1, 2
NO_ERROR, OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE, UNKNOWN_TOPIC, TOO_LARGE, UNSUPPORTED_CODEC = (
    0,
    1,
    2,
    3,
    10,
    76,
)


# ---- frames by hand ----


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


class Reader:
    """Takes an answer apart from the front."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, form: str) -> int:
        (value,) = struct.unpack_from(">" + form, self.data, self.at)
        self.at += struct.calcsize(">" + form)
        assert isinstance(value, int)
        return value

    def string(self) -> str:
        return self.bytes(self.take("h")).decode()

    def bytes(self, size: int) -> bytes:
        self.at += size
        assert self.at <= len(self.data)
        return self.data[self.at - size : self.at]

    def end(self) -> None:
        assert self.at == len(self.data), f"{len(self.data) - self.at} bytes left over"


class Client:
    """Speaks old versions to one topic with one partition."""

    def __init__(self, connection: RawConnection, topic: str) -> None:
        self.connection = connection
        self.topic = topic

    def _ask(self, key: int, version: int, body: bytes) -> Reader:
        self.connection.send_frame(self.connection.header(key, version, flexible=False) + body)
        reader = Reader(self.connection.receive())
        reader.take("i")
        return reader

    def _one_partition(self, reader: Reader) -> None:
        assert (reader.take("i"), reader.string(), reader.take("i"), reader.take("i")) == (
            1,
            self.topic,
            1,
            0,
        )

    def produce(self, messages: bytes, *, version: int, acks: int = 1) -> tuple[int, int]:
        """Error code and base offset."""
        body = struct.pack(">hii", acks, 5000, 1) + string(self.topic)
        body += struct.pack(">iii", 1, 0, len(messages)) + messages
        reader = self._ask(PRODUCE, version, body)
        self._one_partition(reader)
        code, offset = reader.take("h"), reader.take("q")
        if version >= 2:
            assert reader.take("q") == -1  # the time of the append, for LogAppendTime topics
        if version >= 1:
            assert reader.take("i") == 0  # throttle time
        reader.end()
        return code, offset

    def fetch(
        self, offset: int, *, version: int, max_bytes: int = 1 << 20
    ) -> tuple[int, int, bytes]:
        """Error code, high watermark, message set."""
        body = struct.pack(">iii", -1, 100, 0)
        body += struct.pack(">i", max_bytes) if version >= 3 else b""
        body += (
            struct.pack(">i", 1)
            + string(self.topic)
            + struct.pack(">iiqi", 1, 0, offset, max_bytes)
        )
        reader = self._ask(FETCH, version, body)
        if version >= 1:
            assert reader.take("i") == 0
        self._one_partition(reader)
        found = reader.take("h"), reader.take("q"), reader.bytes(reader.take("i"))
        reader.end()
        return found

    def messages(self, offset: int = 0, *, version: int) -> list[Message]:
        code, _high_watermark, data = self.fetch(offset, version=version)
        assert code == NO_ERROR
        return list(messages_in(data))

    def list_offsets(self, timestamp: int, most: int) -> tuple[int, list[int]]:
        body = (
            struct.pack(">ii", -1, 1)
            + string(self.topic)
            + struct.pack(">iiqi", 1, 0, timestamp, most)
        )
        reader = self._ask(LIST_OFFSETS, 0, body)
        self._one_partition(reader)
        found = reader.take("h"), [reader.take("q") for _ in range(reader.take("i"))]
        reader.end()
        return found

    def batches(self) -> bytes:
        """What is stored, as a client of today gets it."""
        return stored(self.connection.call("Fetch", 11, fetch(self.topic)))


class Message(NamedTuple):
    offset: int
    magic: int
    attributes: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None


def messages_in(data: bytes) -> Iterator[Message]:
    """The messages of a set, those in compressed ones too; every checksum is checked."""
    reader = Reader(data)
    while reader.at < len(data):
        offset, size = reader.take("q"), reader.take("i")
        one = Reader(reader.bytes(size))
        crc, magic, attributes = one.take("I"), one.take("b"), one.take("b")
        timestamp = one.take("q") if magic else None
        key, value = nullable(one), nullable(one)
        one.end()
        assert message(key, value, magic=magic, timestamp=timestamp or 0, attributes=attributes)[
            12:16
        ] == (struct.pack(">I", crc))
        if attributes & 7:
            assert value is not None
            yield from inner(offset, magic, attributes, value)
        else:
            yield Message(offset, magic, attributes, timestamp, key, value)


def inner(offset: int, magic: int, attributes: int, value: bytes) -> Iterator[Message]:
    """Magic 0 keeps offsets inside as they are; in magic 1 they count from the start, and the
    wrapper has the last one.
    """
    found = list(messages_in(DECOMPRESS[attributes & 7](value)))
    shift = offset - found[-1].offset if magic else 0
    for one in found:
        yield one._replace(offset=one.offset + shift)


def nullable(reader: Reader) -> bytes | None:
    size = reader.take("i")
    return None if size < 0 else reader.bytes(size)


def old_lz4(data: bytes) -> bytes:
    """Kafka 0.8 and 0.9 computed the frame's header checksum over the magic number too."""
    frame = bytearray(lz4.frame.compress(data, store_size=False))
    frame[6] ^= 0xFF
    return bytes(frame)


def old_unlz4(data: bytes) -> bytes:
    """Block by block, without a look at the checksum of the header."""
    descriptor = data[4]
    at = 7 + (8 if descriptor & 0x08 else 0)
    out = b""
    while True:
        (size,) = struct.unpack_from("<I", data, at)
        at += 4
        if size == 0:
            return out
        block = data[at : at + (size & 0x7FFFFFFF)]
        at += len(block) + (4 if descriptor & 0x10 else 0)
        out += (
            block if size & 0x80000000 else lz4.block.decompress(block, uncompressed_size=1 << 20)
        )


def xerial(data: bytes) -> bytes:
    """Snappy in the framing of the Java library, one block."""
    block = bytes(cramjam.snappy.compress_raw(data))
    return b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, len(block)) + block


def unxerial(data: bytes) -> bytes:
    reader = Reader(data)
    assert reader.bytes(8) == b"\x82SNAPPY\0"
    reader.bytes(8)
    out = b""
    while reader.at < len(data):
        out += bytes(cramjam.snappy.decompress_raw(reader.bytes(reader.take("i"))))
    return out


DECOMPRESS: dict[int, Callable[[bytes], bytes]] = {
    GZIP: gzip.decompress,
    SNAPPY: unxerial,
    LZ4: old_unlz4,
}


@pytest.fixture
def client(shared_broker: LocalBroker, topic_name: str) -> Iterator[Client]:
    with RawConnection(shared_broker.bootstrap) as connection:
        assert errors(connection.call("CreateTopics", 4, create_topics(new_topic(topic_name)))) == [
            0
        ]
        yield Client(connection, topic_name)


# ---- produce ----


@pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 1), (2, 0)])
def test_messages_of_an_old_producer_come_back_as_they_were(
    client: Client, version: int, magic: int
):
    pairs = [(b"key", b"value"), (None, b"no key"), (b"tombstone", None), (b"", b""), (None, None)]
    sent = b"".join(message(*pair, magic=magic, timestamp=5000 + i) for i, pair in enumerate(pairs))
    assert client.produce(sent, version=version) == (NO_ERROR, 0)
    assert client.produce(
        message(b"next", b"one", magic=magic, timestamp=6000), version=version
    ) == (
        NO_ERROR,
        5,
    )

    wanted = [
        Message(i, magic, 0, 5000 + i if magic else None, *pair) for i, pair in enumerate(pairs)
    ]
    wanted.append(Message(5, magic, 0, 6000 if magic else None, b"next", b"one"))
    assert client.messages(version=1 if magic == 0 else 2) == wanted


def test_old_messages_are_stored_as_batches_of_today(client: Client):
    client.produce(message(b"k0", b"v0", magic=0) + message(b"k1", b"v1", magic=0), version=0)
    client.produce(message(b"k2", b"v2", magic=1, timestamp=7000), version=2)
    data = client.batches()
    first = parse_header(data)
    records = read_records(data[: first.size], max_bytes=1 << 20)
    records += read_records(data[first.size :], max_bytes=1 << 20)
    assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in records] == [
        (0, -1, b"k0", b"v0", ()),
        (1, -1, b"k1", b"v1", ()),
        (2, 7000, b"k2", b"v2", ()),
    ]


@pytest.mark.parametrize(
    ("codec", "compress"), [(GZIP, gzip.compress), (SNAPPY, xerial), (LZ4, lz4.frame.compress)]
)
@pytest.mark.parametrize("magic", [0, 1])
def test_compressed_sets_keep_their_codec_and_offsets(
    client: Client, magic: int, codec: int, compress: Callable[[bytes], bytes]
):
    if (magic, codec) == (0, LZ4):
        compress = old_lz4
    pairs = [(b"key-%d" % i, b"value" * 20) for i in range(10)]
    sent = b"".join(
        message(*pair, magic=magic, timestamp=9000 + i, offset=i) for i, pair in enumerate(pairs)
    )
    wrapper = message(None, compress(sent), magic=magic, attributes=codec, offset=9, timestamp=9009)
    for base in (0, 10):
        assert client.produce(wrapper, version=magic * 2) == (NO_ERROR, base)

    assert parse_header(client.batches()).codec == codec
    found = client.messages(version=1 if magic == 0 else 3)
    assert [(m.offset, m.key, m.value) for m in found] == [(i, *pairs[i % 10]) for i in range(20)]
    if magic == 1:
        assert [m.timestamp for m in found] == [9000 + i % 10 for i in range(20)]
    _code, _high_watermark, data = client.fetch(0, version=1 if magic == 0 else 3)
    assert Reader(data[17:]).take("b") & 7 == codec, "converted without its codec"


@pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 1)])
def test_a_wrong_checksum_is_refused(client: Client, version: int, magic: int):
    assert client.produce(message(b"k", b"v", magic=magic, crc=1), version=version) == (
        CORRUPT_MESSAGE,
        -1,
    )
    assert client.fetch(0, version=0)[1:] == (0, b"")


def test_a_message_too_large_is_refused(client: Client):
    assert client.produce(message(b"k", b"x" * 1_100_000, magic=0), version=0) == (TOO_LARGE, -1)


def test_an_unknown_topic_is_refused(client: Client):
    client.topic += "-not"
    assert client.produce(message(b"k", b"v"), version=2) == (UNKNOWN_TOPIC, -1)
    assert client.fetch(0, version=0) == (UNKNOWN_TOPIC, -1, b"")
    assert client.list_offsets(-1, 1) == (UNKNOWN_TOPIC, [])


def test_acks_0_gets_no_answer_and_keeps_order(client: Client):
    body = struct.pack(">hii", 0, 5000, 1) + string(client.topic)
    sent = message(b"k", b"quiet", magic=0)
    body += struct.pack(">iii", 1, 0, len(sent)) + sent
    client.connection.send_frame(client.connection.header(PRODUCE, 0, flexible=False) + body)
    assert client.produce(message(b"k", b"loud", magic=0), version=0) == (NO_ERROR, 1)
    assert [m.value for m in client.messages(version=0)] == [b"quiet", b"loud"]


# ---- fetch ----


@pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_batches_of_today_are_converted_for_an_old_reader(client: Client, version: int, magic: int):
    body = (
        record(0, b"a", b"1", headers=[(b"h", b"dropped")])
        + record(1, None, b"2")
        + record(2, b"c", None)
    )
    sent = batch([(b"", b"")] * 3, body=body, timestamp=4000)
    assert errors(client.connection.call("Produce", 9, produce(client.topic, sent))) == [0]
    stamp = 4000 if magic else None
    assert client.messages(version=version) == [
        Message(0, magic, 0, stamp, b"a", b"1"),
        Message(1, magic, 0, stamp, None, b"2"),
        Message(2, magic, 0, stamp, b"c", None),
    ]
    assert [m.offset for m in client.messages(2, version=version)] == [2]


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_the_ends_of_the_log(client: Client, version: int):
    assert client.fetch(0, version=version) == (NO_ERROR, 0, b"")
    client.produce(message(b"k", b"v", magic=0), version=0)
    assert client.fetch(1, version=version) == (NO_ERROR, 1, b"")
    assert client.fetch(2, version=version) == (OFFSET_OUT_OF_RANGE, -1, b"")


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_a_limit_below_the_first_message_does_not_block_its_reader(client: Client, version: int):
    for number in range(3):
        client.produce(message(b"k", b"%d" % number * 1000, magic=0), version=0)
    offset, seen = 0, []
    while offset < 3:
        _code, _high_watermark, data = client.fetch(offset, version=version, max_bytes=100)
        found = list(messages_in(data))
        assert found, "no progress"
        seen += [m.value for m in found]
        offset = found[-1].offset + 1
    assert seen == [b"0" * 1000, b"1" * 1000, b"2" * 1000]


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_small_limit_does_not_stop_a_reader_at_a_control_batch(
    client: Client, shared_broker: LocalBroker, version: int
):
    """A control batch converts to nothing, so it must not use up the limit."""
    settings = {"bootstrap.servers": shared_broker.bootstrap, "transactional.id": client.topic}
    producer = Producer(settings)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(client.topic, b"first")
    producer.commit_transaction(30)
    client.produce(message(b"k", b"second", magic=0), version=0)
    [first] = messages_in(client.fetch(0, version=version, max_bytes=10)[2])
    [second] = messages_in(client.fetch(1, version=version, max_bytes=10)[2])
    assert (first.value, second.value, second.offset) == (b"first", b"second", 2)


def test_zstd_is_refused_to_readers_that_cannot_know_it(client: Client):
    sent = batch(attributes=ZSTD, compress=zstandard.ZstdCompressor().compress)
    assert errors(client.connection.call("Produce", 9, produce(client.topic, sent))) == [0]
    for version in (0, 1, 2, 3):
        assert client.fetch(0, version=version)[0] == UNSUPPORTED_CODEC


# ---- list offsets ----


def test_list_offsets_v0(client: Client):
    assert client.list_offsets(-1, 1) == (NO_ERROR, [0])
    for number in range(3):
        client.produce(message(b"k", b"%d" % number, magic=1, timestamp=1000 * number), version=2)
    assert client.list_offsets(-1, 1) == (NO_ERROR, [3])
    assert client.list_offsets(-2, 1) == (NO_ERROR, [0])
    assert client.list_offsets(-1, 5) == (NO_ERROR, [3, 0])
    assert client.list_offsets(-1, 0) == (NO_ERROR, [])
