"""The machine dies under a broker: what it promised to be on disk is there, and what it deleted
stays deleted.

The disk is a simulated one that loses what was not synced, tears files and forgets names. Only
flushed records are promised to survive that (``flush.messages=1``); of the others a prefix is
there.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

import pytest

from millstream.core.errors import ErrorCode
from millstream.sim.world.disk import SimDisk, io_error
from millstream.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.records.batch import Record, build_batch, parse_header, read_records
from support.in_process import InProcessBroker
from support.raw import RawClient, create_topic, fetch, produce

SETTINGS = {
    "log.dirs": "/a,/b",
    "log.flush.offset.checkpoint.interval.ms": 20,
    "log.flush.start.offset.checkpoint.interval.ms": 20,
    "replica.high.watermark.checkpoint.interval.ms": 20,
    "log.cleaner.enable": "false",
    "auto.create.topics.enable": "false",
}


@dataclass
class Promise:
    """What is known of one topic."""

    topic_id: bytes
    flushed: bool
    values: list[bytes] = field(default_factory=list)
    start: int = 0
    retention: str | None = None


@dataclass
class World:
    """Everything that a client was told, over all lives of the broker."""

    topics: dict[str, Promise] = field(default_factory=dict)
    deleted: set[bytes] = field(default_factory=set)
    producer_ids: list[int] = field(default_factory=list)
    made: int = 0


@pytest.mark.parametrize("seed", range(20))
def test_promises_outlive_the_machine(seed: int) -> None:
    dice = random.Random(seed)
    disk = SimDisk(seed)
    world = World()
    for _ in range(4):
        with InProcessBroker(SETTINGS, files=disk) as broker, RawClient(broker.bootstrap) as client:
            check(world, client)
            for _ in range(dice.randrange(5, 40)):
                dice.choice((make, make, delete, write, write, write, write, trim, alter, number))(
                    world, client, dice
                )
            disk.fault = lambda op, path: io_error(path)
            broker.die()
        disk.crash()
        disk.fault = lambda op, path: None
    with InProcessBroker(SETTINGS, files=disk) as broker, RawClient(broker.bootstrap) as client:
        check(world, client)
    assert len(set(world.producer_ids)) == len(world.producer_ids)


# ---- what a client does ----


def make(world: World, client: RawClient, dice: random.Random) -> None:
    flushed = dice.random() < 0.6
    name = f"t{world.made % 6}-{world.made}" if dice.random() < 0.7 else f"again-{world.made % 3}"
    world.made += 1
    if name not in world.topics:
        config = {"internal_segment_bytes": 400} | ({"flush_messages": 1} if flushed else {})
        world.topics[name] = Promise(create_topic(client, name, 1, **config), flushed)


def delete(world: World, client: RawClient, dice: random.Random) -> None:
    if not world.topics:
        return
    name = dice.choice(sorted(world.topics))
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=5000)
    assert client.call(request, 6).responses[0].error_code == 0
    world.deleted.add(world.topics.pop(name).topic_id)


def write(world: World, client: RawClient, dice: random.Random) -> None:
    if not world.topics:
        return
    name = dice.choice(sorted(world.topics))
    promise = world.topics[name]
    values = [
        b"%s-%d" % (name.encode(), len(promise.values) + n) for n in range(dice.randrange(1, 5))
    ]
    answer = produce(
        client, name, 0, build_batch([Record(n, -1, None, v, ()) for n, v in enumerate(values)])
    )
    assert (answer.error_code, answer.base_offset) == (0, len(promise.values))
    promise.values += values


def trim(world: World, client: RawClient, dice: random.Random) -> None:
    """Deletes records: of flushed topics, whose offsets are sure."""
    names = [name for name, promise in world.topics.items() if promise.flushed and promise.values]
    if not names:
        return
    name = dice.choice(sorted(names))
    promise = world.topics[name]
    offset = dice.randint(promise.start, len(promise.values))
    row = DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=name, partitions=[row])], timeout_ms=5000
    )
    (told,) = client.call(request, 2).topics[0].partitions
    assert (told.error_code, told.low_watermark) == (0, offset)
    promise.start = offset


def alter(world: World, client: RawClient, dice: random.Random) -> None:
    if not world.topics:
        return
    name = dice.choice(sorted(world.topics))
    value = str(dice.randrange(10**9, 10**10))
    row = AlterableConfig(name="retention.ms", config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=2, resource_name=name, configs=[row])
    answer = client.call(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert answer.responses[0].error_code == 0
    world.topics[name].retention = value


def number(world: World, client: RawClient, dice: random.Random) -> None:
    given = client.call(
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4
    )
    assert given.error_code == 0
    world.producer_ids.append(given.producer_id)


# ---- what must hold ----


def check(world: World, client: RawClient) -> None:
    found = {
        t.name: bytes(t.topic_id) for t in client.call(MetadataRequest(topics=None), 12).topics
    }
    assert found == {name: promise.topic_id for name, promise in world.topics.items()}
    assert not set(found.values()) & world.deleted
    for name, promise in world.topics.items():
        check_records(name, promise, client)


def check_records(name: str, promise: Promise, client: RawClient) -> None:
    if promise.start:
        assert fetch(client, name, 0, promise.start - 1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    values, end = [], promise.start
    for _ in range(
        2000
    ):  # a fetch reads one segment; after a crash readers wait for the log to be flushed again
        answer = fetch(client, name, 0, end)
        assert answer.error_code == 0, ErrorCode.of(answer.error_code)
        if end == answer.high_watermark:
            if not promise.flushed or end == len(promise.values):
                break
            time.sleep(0.01)
            continue
        values += values_from(answer.records, end)
        end = promise.start + len(values)
    assert values == promise.values[promise.start : end]
    if promise.flushed:
        assert end == len(promise.values), f"{name} lost flushed records"
    else:
        promise.values = promise.values[:end]


def values_from(records: bytes, offset: int) -> list[bytes | None]:
    found, position = [], 0
    while position < len(records):
        header = parse_header(records, position)
        batch = bytes(records[position : position + header.size])
        found += [
            record.value
            for record in read_records(batch, max_bytes=1 << 20)
            if record.offset >= offset
        ]
        position += header.size
    return found
