"""The fast path of Produce against the handler: the same requests to two topics.

One topic never uses the fast path. All responses and all bytes of both logs must be equal, and the
fast path must have been used for the other topic.
"""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from millstream.broker.produce.fast_path import ProduceFastPath, Template
from millstream.core.errors import ErrorCode
from millstream.sim.world.disk import SimDisk
from millstream.wire.apis import BY_NAME
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millstream.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.wire.records.batch import Record, build_batch
from support.in_process import InProcessBroker
from support.raw import Closed, RawClient, create_topic, decode_answer, fetch, request_frame

PRODUCE = BY_NAME["Produce"]
FAST, SLOW = "fast-topic", "slow-topic"
NOW_MS = 1_750_000_000_000
VERSIONS = (9, 10, 11, 12, 13)


class Forgetful(dict[bytes, Template]):
    """Remembers nothing about the topics that are named, by name or by id."""

    def __init__(self) -> None:
        super().__init__()
        self.never: set[str | bytes] = set()

    def __setitem__(self, repeated: bytes, usual: Template) -> None:
        if usual.key not in self.never:
            super().__setitem__(repeated, usual)


@dataclass
class World:
    """A broker, a connection for each topic, and the number of uses of the fast path."""

    broker: InProcessBroker
    clients: dict[str, RawClient] = field(default_factory=dict)
    ids: dict[str, bytes] = field(default_factory=dict)
    fast_count: int = 0

    def connect(self) -> None:
        self.close()
        self.clients = {topic: RawClient(self.broker.bootstrap) for topic in (FAST, SLOW)}

    def close(self) -> None:
        for client in self.clients.values():
            client.close()

    def create(self, partitions: int = 2, **settings: object) -> None:
        self.ids = {
            topic: create_topic(self.clients[topic], topic, partitions, **settings)
            for topic in (FAST, SLOW)
        }
        known = self.broker.broker.parts.produce_fast_path.templates
        assert isinstance(known, Forgetful)
        known.clear()
        known.never = {SLOW, self.ids[SLOW]}

    def delete(self) -> None:
        for topic in (FAST, SLOW):
            asked = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=10_000)
            (answer,) = self.clients[topic].call(asked, 6).responses
            assert answer.error_code == 0, answer

    def configure(self, name: str, value: str) -> None:
        for topic in (FAST, SLOW):
            setting = AlterableConfig(name=name, config_operation=0, value=value)
            row = AlterConfigsResource(resource_type=2, resource_name=topic, configs=[setting])
            (answer,) = (
                self.clients[topic]
                .call(IncrementalAlterConfigsRequest(resources=[row]), 1)
                .responses
            )
            assert answer.error_code == 0, answer

    def send(self, make: Callable[[str, bytes], bytes]) -> bytes | None:
        """Send the same frame to both; return the common response (None: connection closed)."""
        answers = [self.ask(topic, make(topic, self.ids[topic])) for topic in (FAST, SLOW)]
        assert answers[0] == answers[1]
        if answers[0] is None:
            self.connect()
        return answers[0]

    def ask(self, topic: str, frame: bytes) -> bytes | None:
        self.clients[topic].write(frame)
        try:
            answer = self.clients[topic].read_frame()
        except Closed:
            return None
        answer = re.sub(rb"\d{13}", b"0" * 13, answer)  # messages tell the time
        return answer.replace(topic.encode(), b"t" * len(topic)).replace(self.ids[topic], bytes(16))

    def produce(
        self, records: bytes | None, *, version: int = 10, acks: int = 1, partition: int = 0
    ) -> int:
        """Return the error code of the only partition."""
        answer = self.send(
            lambda topic, id_: produce_frame(topic, id_, records, version, acks, partition)
        )
        assert answer is not None
        _, message = decode_answer(PRODUCE, version, answer)
        code: int = message.responses[0].partition_responses[0].error_code  # type: ignore[attr-defined]
        return code

    def logs_are_equal(self) -> None:
        for partition in range(2):
            logs = [fetch(self.clients[topic], topic, partition) for topic in (FAST, SLOW)]
            assert logs[0].records == logs[1].records
            assert logs[0].high_watermark == logs[1].high_watermark


def produce_frame(
    topic: str,
    topic_id: bytes,
    records: bytes | None,
    version: int = 10,
    acks: int = 1,
    partition: int = 0,
) -> bytes:
    data = [PartitionProduceData(index=partition, records=records)]
    row = TopicProduceData(name=topic, topic_id=topic_id, partition_data=data)
    return request_frame(
        PRODUCE, version, ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[row]), 7
    )


def batch(
    count: int = 1, *, value: bytes = b"v" * 100, key: bytes | None = b"k", **more: object
) -> bytes:
    records = [Record(i, NOW_MS + i, key, value, ()) for i in range(count)]
    return bytes(build_batch(records, **more))  # type: ignore[arg-type]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with InProcessBroker({"log.dirs": "/data"}, files=SimDisk()) as started:
        made = World(started)
        again = ProduceFastPath.again

        def counted(*args):
            answer = again(*args)
            made.fast_count += answer is not None
            return answer

        monkeypatch.setattr(ProduceFastPath, "again", counted)
        started.broker.parts.produce_fast_path.templates = Forgetful()
        made.connect()
        yield made
        made.close()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [1, -1])
def test_repeated_request_uses_the_fast_path(world: World, version: int, acks: int) -> None:
    world.create()
    for i in range(6):
        assert world.produce(batch(1 + i), version=version, acks=acks, partition=i % 2) == 0
    assert world.fast_count == 4  # all but the first of each partition
    world.logs_are_equal()


@pytest.mark.parametrize("codec", range(5))
def test_every_codec_uses_the_fast_path(world: World, codec: int) -> None:
    world.create()
    for _ in range(3):
        assert world.produce(batch(20, codec=codec)) == 0
    assert world.fast_count == 2
    world.logs_are_equal()


def test_batch_of_any_size_uses_the_fast_path(world: World) -> None:
    world.create()
    for size in (0, 30, 100, 5000, 200_000):
        assert world.produce(batch(value=b"v" * size)) == 0
    assert world.fast_count == 4
    world.logs_are_equal()


def test_sequences_are_checked_as_ever(world: World) -> None:
    world.create()
    outcomes = [
        world.produce(batch(2, producer_id=7, producer_epoch=epoch, base_sequence=sequence))
        for epoch, sequence in [
            (0, 0),
            (0, 2),
            (0, 2),
            (0, 0),
            (0, 9),
            (1, 0),
            (0, 4),
            (1, 2),
            (2, 5),
        ]
    ]
    order, fenced = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH
    assert outcomes == [0, 0, 0, 0, order, 0, fenced, 0, order]
    assert world.fast_count == 8
    world.logs_are_equal()


def corrupt(at: int, value: int) -> bytes:
    data = bytearray(batch())
    data[at] = value
    return bytes(data)


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (corrupt(80, 0xFF), ErrorCode.CORRUPT_MESSAGE),  # does not fit its checksum
        (corrupt(16, 1), ErrorCode.INVALID_RECORD),  # magic
        (corrupt(22, 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (corrupt(11, 0xFF), ErrorCode.CORRUPT_MESSAGE),  # says that it is longer
        (batch(control=True), ErrorCode.INVALID_RECORD),
        (batch(transactional=True, producer_id=1, producer_epoch=0, base_sequence=0), 53),
        (batch(base_offset=3), ErrorCode.INVALID_RECORD),
        (batch() + batch(), ErrorCode.INVALID_RECORD),
        (batch()[:61], ErrorCode.CORRUPT_MESSAGE),
        (batch()[:40], ErrorCode.INVALID_RECORD),
        (batch(value=b"v" * 2_000_000), ErrorCode.MESSAGE_TOO_LARGE),
        (b"", ErrorCode.INVALID_RECORD),
        (None, ErrorCode.INVALID_RECORD),
    ],
)
def test_errors_are_those_of_the_handler(world: World, records: bytes | None, code: int) -> None:
    world.create()
    assert world.produce(batch()) == 0
    assert world.produce(records) == code
    assert world.produce(batch()) == 0
    assert world.fast_count >= 1
    world.logs_are_equal()


def test_deleted_and_recreated_topic(world: World) -> None:
    world.create()
    assert world.produce(batch()) == world.produce(batch()) == 0
    world.delete()
    assert world.produce(batch()) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    world.create()
    assert world.produce(batch()) == world.produce(batch()) == 0
    world.logs_are_equal()


@pytest.mark.parametrize(
    ("setting", "value", "records", "code"),
    [
        ("cleanup.policy", "compact", batch(key=None), ErrorCode.INVALID_RECORD),
        ("compression.type", "gzip", batch(50), 0),
        ("max.message.bytes", "100", batch(50), ErrorCode.MESSAGE_TOO_LARGE),
        ("message.timestamp.before.max.ms", "1000", batch(), ErrorCode.INVALID_TIMESTAMP),
        ("flush.messages", "1", batch(), 0),
        ("min.insync.replicas", "2", batch(), 0),  # of the one that there is
    ],
)
def test_changed_setting_applies_to_the_next_request(
    world: World, setting: str, value: str, records: bytes, code: int
) -> None:
    world.create()
    assert world.produce(batch(), acks=-1) == world.produce(batch(), acks=-1) == 0
    world.configure(setting, value)
    assert world.produce(records, acks=-1) == code
    assert world.fast_count >= 1
    world.logs_are_equal()


def test_broker_times_are_stamped(world: World) -> None:
    world.create(message_timestamp_type="LogAppendTime")
    for topic in (FAST, SLOW):
        times = []
        for _ in range(3):
            frame = produce_frame(topic, world.ids[topic], batch())
            world.clients[topic].write(frame)
            _, answer = decode_answer(PRODUCE, 10, world.clients[topic].read_frame())
            (row,) = answer.responses[0].partition_responses  # type: ignore[attr-defined]
            times.append(row.log_append_time_ms)
        assert NOW_MS < times[0] <= times[1] <= times[2]
    assert world.fast_count == 2


def test_internal_topics_stay_closed(world: World) -> None:
    world.create()
    frame = produce_frame("__consumer_offsets", bytes(16), batch())
    for _ in range(3):
        world.clients[FAST].write(frame)
        _, answer = decode_answer(PRODUCE, 10, world.clients[FAST].read_frame())
        (row,) = answer.responses[0].partition_responses  # type: ignore[attr-defined]
        assert row.error_code in (
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
    assert world.fast_count == 0


def test_request_with_a_long_repeated_prefix_is_not_remembered(world: World) -> None:
    """Templates stay in memory: an unknown field in the request header could make
    each a megabyte.
    """
    world.create()
    intact = produce_frame(FAST, world.ids[FAST], batch())
    assert intact[14:18] == b"raw\0"
    for size in (100, 2000):
        field = b"\x01\x63" + bytes((size & 0x7F | 0x80, size >> 7)) + bytes(size)
        frame = intact[:17] + field + intact[18:]
        for _ in range(3):
            world.clients[FAST].write(struct.pack(">i", len(frame) - 4) + frame[4:])
            world.clients[FAST].read_frame()
        assert world.fast_count == 2
    assert max(map(len, world.broker.broker.parts.produce_fast_path.templates)) < 1000


def test_responses_to_pipelined_requests_keep_their_order(world: World) -> None:
    world.create()
    world.produce(batch())
    frames = [produce_frame(FAST, world.ids[FAST], batch()) for _ in range(50)]
    for number, frame in enumerate(frames):
        frames[number] = frame[:8] + struct.pack(">i", number) + frame[12:]
    world.clients[FAST].write(b"".join(frames))
    for number in range(50):
        got, answer = decode_answer(PRODUCE, 10, world.clients[FAST].read_frame())
        (row,) = answer.responses[0].partition_responses  # type: ignore[attr-defined]
        assert (got, row.base_offset) == (number, number + 1)


def damage(frame: bytes, dice: random.Random) -> bytes:
    """Change, remove or repeat some bytes of a request; its size prefix stays correct."""
    body = bytearray(frame[4:])
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(body))
        kind = dice.random()
        if kind < 0.6:
            body[at] = dice.choice((0, 1, 2, 0x7F, 0x80, 0xFF, dice.randrange(256)))
        elif kind < 0.8:
            del body[at : at + dice.randint(1, 4)]
        else:
            body[at:at] = body[at : at + dice.randint(1, 4)]
    return struct.pack(">i", len(body)) + bytes(body)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_requests_have_the_same_outcome(world: World, seed: int) -> None:
    """Keep requests that are still a Produce: other APIs would not concern these topics."""
    world.create()
    world.produce(batch())
    refused = 0
    for number in range(150):
        dice = random.Random(f"{seed}/{number}")
        version = dice.choice(VERSIONS)
        intact = {
            topic: produce_frame(topic, world.ids[topic], batch(3), version)
            for topic in (FAST, SLOW)
        }
        spoilt = damage(intact[FAST], dice)
        if spoilt[4:6] != b"\x00\x00" or b"\x00\x00\x03\xe8" not in spoilt:
            continue
        # The same damage to the request of the other topic, which differs only in name and id.
        other = spoilt.replace(FAST.encode(), SLOW.encode()).replace(
            world.ids[FAST], world.ids[SLOW]
        )
        assert world.produce(batch(), version=version) == 0
        if len(spoilt) != len(other) or other == spoilt:
            continue  # the name itself was hit
        answer = world.send(lambda topic, _, a=spoilt, b=other: a if topic == FAST else b)  # type: ignore[misc]
        refused += answer is None
    assert refused and world.fast_count
    world.logs_are_equal()
