"""Requests of one connection take effect in the order sent, also when the client does not wait for
answers.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from compat.coordinator_case import failures
from compat.group_requests import commit, join, offset_fetch
from compat.raw_client import API, RawConnection, correlation_id, read_answer
from compat.raw_requests import (
    EARLIEST,
    LATEST,
    SET,
    TOPIC,
    alter_configs,
    alter_incrementally,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_configs,
    fetch,
    init_producer_id,
    list_offsets,
    message,
    metadata,
    new_topic,
    produce,
    values,
)
from millstream.broker.fetch.partition_reader import PartitionReader
from millstream.core.errors import ErrorCode
from millstream.log.errors import ColdRead
from millstream.sim.world.disk import SimDisk
from millstream.testing.waiting import wait_until
from millstream.wire.records.batch import Record, build_batch
from millstream.wire.schema import Struct
from support.in_process import InProcessBroker

PATIENCE_S = 60.0
BATCH = bytes(build_batch([Record(0, 0, None, b"value", ())]))
# A produce to a topic with this setting waits for the disk: a delayed produce.
FLUSHED = {"flush.messages": "1"}
SETTINGS: dict[str, object] = {
    "log.dirs": "/data",
    "group.initial.rebalance.delay.ms": 30,
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
}


class Sent(NamedTuple):
    """A request, and whether later requests may show in its answer."""

    api: str
    version: int
    message: Struct
    passed: bool = False


@pytest.fixture(scope="module")
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture(scope="module")
def broker(disk: SimDisk) -> Iterator[InProcessBroker]:
    with InProcessBroker(SETTINGS, files=disk) as started:
        with RawConnection(started.bootstrap) as connection:  # makes the internal topics
            for kind in (0, 1):
                find = message("FindCoordinator", key_type=kind, coordinator_keys=["any"])
                assert failures(connection.call("FindCoordinator", 4, find)) == []
        yield started


@pytest.fixture
def connection(broker: InProcessBroker) -> Iterator[RawConnection]:
    with RawConnection(broker.bootstrap) as made:
        yield made


def pipelined(connection: RawConnection, *requests: Sent, cut: int = 1 << 20) -> list[Any]:
    """Send all frames without waiting, in pieces of ``cut`` bytes, then read the answers."""
    data, ids = b"", []
    for api, version, body, _ in requests:
        head = connection.header(API[api].key, version, flexible=API[api].flexible(version))
        ids.append(correlation_id(head[4:]))
        frame = head + bytes(body.encode(version))
        data += struct.pack(">i", len(frame)) + frame
    for start in range(0, len(data), cut):
        connection.send_bytes(data[start : start + cut])
    frames = [connection.receive() for _ in requests]
    assert [correlation_id(frame) for frame in frames] == ids
    return [
        read_answer(one.api, one.version, frame)
        for one, frame in zip(requests, frames, strict=True)
    ]


def one_at_a_time(connection: RawConnection, *requests: Sent) -> list[Any]:
    return [connection.call(one.api, one.version, one.message) for one in requests]


def created(connection: RawConnection, name: str, records: int = 0, **configs: str) -> str:
    made = connection.call("CreateTopics", 7, create_topics(new_topic(name, configs=configs)))
    assert failures(made) == []
    for _ in range(records):
        assert failures(connection.call("Produce", 9, produce(name, BATCH))) == []
    return name


def committed(connection: RawConnection, group: str, topic: str, offset: int = 1) -> str:
    asked = message("OffsetCommit", **commit(group, topic, offset=offset))
    assert failures(connection.call("OffsetCommit", 8, asked)) == []
    return group


# ---- pairs of requests ----


def test_list_offsets_behind_delete_records_shows_the_new_start(connection: RawConnection) -> None:
    topic = created(connection, "deleted-records", records=5)
    for offset in range(1, 5):
        _, shown = pipelined(
            connection,
            Sent("DeleteRecords", 2, delete_records(topic, offset)),
            Sent("ListOffsets", 7, list_offsets(topic, EARLIEST)),
        )
        assert values(shown, "offset") == [offset]


def test_metadata_behind_create_topics_shows_the_topic(connection: RawConnection) -> None:
    made, shown, deleted, gone = pipelined(
        connection,
        Sent("CreateTopics", 7, create_topics(new_topic("brand-new", 3))),
        Sent("Metadata", 12, metadata("brand-new")),
        Sent("DeleteTopics", 6, delete_topics("brand-new")),
        Sent("Metadata", 12, metadata("brand-new")),
    )
    assert failures(made) == failures(deleted) == []
    assert (failures(shown), len(values(shown, "partition_index"))) == ([], 3)
    assert failures(gone) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


@pytest.mark.parametrize("api", ["AlterConfigs", "IncrementalAlterConfigs"])
def test_describe_configs_behind_alter_configs_shows_the_new_value(
    connection: RawConnection, api: str
) -> None:
    topic = created(connection, f"altered-by-{api}")
    for retention in ("1001", "1002", "1003"):
        if api == "AlterConfigs":
            alter = Sent(api, 2, alter_configs(TOPIC, topic, ("retention.ms", retention)))
        else:
            alter = Sent(
                api, 1, alter_incrementally(TOPIC, topic, ("retention.ms", SET, retention))
            )
        describe = describe_configs(TOPIC, topic, "retention.ms", synonyms=False)
        _, shown = pipelined(connection, alter, Sent("DescribeConfigs", 4, describe))
        assert values(shown, "value") == [retention]


def test_offset_commit_behind_delete_groups_is_kept(connection: RawConnection) -> None:
    topic = created(connection, "committed-to")
    group = committed(connection, "deleted-and-back", topic)
    deleted, again, shown = pipelined(
        connection,
        Sent("DeleteGroups", 2, message("DeleteGroups", groups_names=[group])),
        Sent("OffsetCommit", 8, message("OffsetCommit", **commit(group, topic, offset=7))),
        Sent("OffsetFetch", 8, message("OffsetFetch", **offset_fetch(group, topic))),
    )
    assert failures(deleted) == failures(again) == []
    assert values(shown, "committed_offset") == [7]


def test_create_partitions_is_seen_by_the_produce_behind_it(connection: RawConnection) -> None:
    topic = created(connection, "grown")
    grown, written = pipelined(
        connection,
        Sent("CreatePartitions", 3, create_partitions(topic, 2)),
        Sent("Produce", 9, produce(topic, BATCH, partition=1)),
    )
    assert failures(grown) == failures(written) == []


# ---- requests that others may pass ----


def test_waiting_fetch_is_answered_by_the_produce_behind_it(connection: RawConnection) -> None:
    """A fetch that held back the produce it waits for would wait for its whole time."""
    topic = created(connection, "fetched")
    waiting = fetch(topic, min_bytes=1, max_wait_ms=int(PATIENCE_S * 1000))
    fetched, written = pipelined(
        connection, Sent("Fetch", 11, waiting), Sent("Produce", 9, produce(topic, BATCH))
    )
    assert (failures(written), len(values(fetched, "records")[0])) == ([], len(BATCH))


def test_produce_passes_a_delayed_produce_and_nothing_else_does(
    broker: InProcessBroker, connection: RawConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = created(connection, "flushed-slowly", **FLUSHED)
    gate = broker.run(asyncio.Event)
    replicas = broker.broker.parts.replicas
    flush = replicas.flush_if_due

    async def flush_later(partition: Any) -> None:
        await gate.wait()
        await flush(partition)

    monkeypatch.setattr(replicas, "flush_if_due", flush_later)
    written = Sent("Produce", 9, produce(topic, BATCH, acks=1))
    create = Sent("CreateTopics", 7, create_topics(new_topic("behind-delayed")))
    with ThreadPoolExecutor(1) as pool, RawConnection(broker.bootstrap) as other:
        answers = pool.submit(pipelined, connection, written, written, create, written)
        try:
            latest = Sent("ListOffsets", 7, list_offsets(topic, LATEST))
            wait_until(
                lambda: values(*one_at_a_time(other, latest), "offset") == [2], "both are appended"
            )
            (shown,) = one_at_a_time(other, Sent("Metadata", 12, metadata("behind-delayed")))
            assert failures(shown) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
            assert values(*one_at_a_time(other, latest), "offset") == [2]
            assert not answers.done()
        finally:
            broker.run(gate.set)
        first, second, made, last = answers.result(PATIENCE_S)
    assert failures(made) == []
    assert [values(one, "base_offset") for one in (first, second, last)] == [[0], [1], [2]]


def test_cold_fetch_is_read_before_the_delete_records_behind_it(
    broker: InProcessBroker, connection: RawConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = created(connection, "cold", records=3)
    log = broker.broker.parts.replicas.leader(topic, 0).online_log
    read = PartitionReader.read

    def slow_read(self: Any, row: Any, taken: int, may_block: bool = False) -> Any:
        """Gives the requests behind the fetch the time to be handled, if they are."""
        if not may_block:
            raise ColdRead
        until = time.monotonic() + 0.3
        while log.log_start_offset == 0 and time.monotonic() < until:
            time.sleep(0.005)
        return read(self, row, taken, may_block)

    monkeypatch.setattr(PartitionReader, "read", slow_read)
    fetched, deleted = pipelined(
        connection,
        Sent("Fetch", 11, fetch(topic, 0, max_wait_ms=0)),
        Sent("DeleteRecords", 2, delete_records(topic, 2)),
    )
    assert failures(fetched) == failures(deleted) == []
    assert values(fetched, "log_start_offset") == [0]


def test_members_that_share_a_connection_join_and_sync_together(connection: RawConnection) -> None:
    """Each JoinGroup waits for the other member's, and a SyncGroup for the leader's: all on one
    connection.
    """
    group = "shared-connection"
    members = [
        connection.call("JoinGroup", 4, message("JoinGroup", **join(group))) for _ in range(2)
    ]
    assert [one.error_code for one in members] == [ErrorCode.MEMBER_ID_REQUIRED] * 2
    joins = [
        Sent("JoinGroup", 4, message("JoinGroup", **join(group, one.member_id))) for one in members
    ]
    first, second = pipelined(connection, *joins)
    assert (first.error_code, second.error_code, first.generation_id) == (
        0,
        0,
        second.generation_id,
    )
    leader = first.leader
    (follower,) = {first.member_id, second.member_id} - {leader}
    generation = first.generation_id
    assigned = [{"member_id": one, "assignment": one.encode()} for one in (leader, follower)]
    sync = {"group_id": group, "generation_id": generation}
    beat = message("Heartbeat", group_id=group, generation_id=generation, member_id=follower)
    of_follower, beaten, of_leader = pipelined(
        connection,
        Sent("SyncGroup", 3, message("SyncGroup", member_id=follower, assignments=[], **sync)),
        Sent("Heartbeat", 3, beat),
        Sent("SyncGroup", 3, message("SyncGroup", member_id=leader, assignments=assigned, **sync)),
    )
    assert bytes(of_follower.assignment) == follower.encode()
    assert bytes(of_leader.assignment) == leader.encode()
    assert beaten.error_code == 0


def test_offset_commit_behind_join_group_is_handled_after_the_join(
    connection: RawConnection,
) -> None:
    """The join is decided: the commit finds a group that prepares a rebalance, and is taken."""
    topic, group = created(connection, "rejoined"), "rejoining"
    member = connection.call("JoinGroup", 3, message("JoinGroup", **join(group)))
    other = connection.call("JoinGroup", 4, message("JoinGroup", **join(group)))
    generation, member_id = member.generation_id, member.member_id
    asked = message("OffsetCommit", **commit(group, topic, member_id, generation))
    rejoin = message("JoinGroup", **join(group, other.member_id))
    # The second member's join waits for the first to come back.
    waiting, answered, back = pipelined(
        connection,
        Sent("JoinGroup", 4, rejoin),
        Sent("OffsetCommit", 8, asked),
        Sent("JoinGroup", 4, message("JoinGroup", **join(group, member_id))),
    )
    assert (waiting.error_code, back.error_code) == (0, 0)
    assert waiting.generation_id == back.generation_id == generation + 1
    # Before the join the group waited for its assignment, where Kafka refuses commits.
    assert failures(answered) == []


# ---- any requests ----

# A step of a sequence: the request it sends, or several, in the names of a run.
Step = Callable[[str, int], Sent | Sequence[Sent]]
TOPICS, GROUPS, PARTITIONS = st.sampled_from("ab"), st.sampled_from("gh"), st.integers(0, 1)
RUNS = itertools.count()


def step(make: Callable[..., Step], *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.builds(make, *arguments)


def _create(topic: str, partitions: int, flushed: bool) -> Step:
    configs = FLUSHED if flushed else {}
    return lambda run, _: Sent(
        "CreateTopics", 7, create_topics(new_topic(run + topic, partitions, configs=configs))
    )


def _create_by_asking(topic: str) -> Step:
    """Brokers create the topic in the background. The request behind waits for that, so later
    answers are certain.
    """
    return lambda run, _: [
        Sent("Metadata", 9, metadata(run + topic, auto_create=True)),
        Sent("CreateTopics", 7, create_topics(new_topic(run + topic))),
    ]


def _produce(topic: str, partition: int, acks: int) -> Step:
    return lambda run, _: Sent(
        "Produce", 9, produce(run + topic, BATCH, partition=partition, acks=acks)
    )


def _fetch(topic: str, partition: int, offset: int, waits: bool) -> Step:
    more = {"min_bytes": 1 << 20, "max_wait_ms": 30} if waits else {"max_wait_ms": 0}
    return lambda run, _: Sent(
        "Fetch", 11, fetch(run + topic, offset, partition=partition, **more), passed=waits
    )


def _delete_records(topic: str, partition: int, offset: int) -> Step:
    return lambda run, _: Sent(
        "DeleteRecords", 2, delete_records(run + topic, offset, partition=partition)
    )


def _list_offsets(topic: str, partition: int, timestamp: int) -> Step:
    return lambda run, _: Sent(
        "ListOffsets", 7, list_offsets(run + topic, timestamp, partition=partition)
    )


def _alter(topic: str, retention: int) -> Step:
    change = ("retention.ms", SET, str(retention))
    return lambda run, _: Sent(
        "IncrementalAlterConfigs", 1, alter_incrementally(TOPIC, run + topic, change)
    )


def _commit(group: str, topic: str, partition: int, offset: int) -> Step:
    return lambda run, _: Sent(
        "OffsetCommit",
        8,
        message(
            "OffsetCommit", **commit(run + group, run + topic, partition=partition, offset=offset)
        ),
    )


def _offset_delete(group: str, topic: str, partition: int) -> Step:
    return lambda run, _: Sent(
        "OffsetDelete",
        0,
        message(
            "OffsetDelete",
            group_id=run + group,
            topics=[{"name": run + topic, "partitions": [{"partition_index": partition}]}],
        ),
    )


def _join(run: str, number: int) -> Sent:
    """A group of its own: this member waits for the initial rebalance delay, and nobody else has
    to.
    """
    return Sent("JoinGroup", 3, message("JoinGroup", **join(f"{run}member-{number}")))


def _of_topic(api: str, version: int, make: Callable[[str], Struct]) -> Callable[[str], Step]:
    return lambda topic: lambda run, _: Sent(api, version, make(run + topic))


def _of_group(api: str, version: int, make: Callable[[str], Struct]) -> Callable[[str], Step]:
    return lambda group: lambda run, _: Sent(api, version, make(run + group))


STEPS: st.SearchStrategy[Step] = st.one_of(
    step(_create, TOPICS, st.integers(1, 2), st.booleans()),
    step(_of_topic("DeleteTopics", 6, delete_topics), TOPICS),
    step(_of_topic("CreatePartitions", 3, lambda name: create_partitions(name, 2)), TOPICS),
    step(_of_topic("Metadata", 9, metadata), TOPICS),
    step(_create_by_asking, TOPICS),
    step(_produce, TOPICS, PARTITIONS, st.sampled_from((1, -1))),
    step(_produce, TOPICS, PARTITIONS, st.sampled_from((1, -1))),
    step(_fetch, TOPICS, PARTITIONS, st.integers(0, 2), st.booleans()),
    step(_delete_records, TOPICS, PARTITIONS, st.integers(-1, 2)),
    step(_list_offsets, TOPICS, PARTITIONS, st.sampled_from((EARLIEST, LATEST, 0))),
    step(_alter, TOPICS, st.integers(1000, 1003)),
    step(
        _of_topic(
            "DescribeConfigs",
            4,
            lambda n: describe_configs(TOPIC, n, "retention.ms", synonyms=False),
        ),
        TOPICS,
    ),
    step(_commit, GROUPS, TOPICS, PARTITIONS, st.integers(0, 9)),
    step(
        lambda group, topic: (
            lambda run, _: Sent(
                "OffsetFetch", 8, message("OffsetFetch", **offset_fetch(run + group, run + topic))
            )
        ),
        GROUPS,
        TOPICS,
    ),
    step(
        _of_group("DeleteGroups", 2, lambda name: message("DeleteGroups", groups_names=[name])),
        GROUPS,
    ),
    step(
        _of_group("DescribeGroups", 5, lambda name: message("DescribeGroups", groups=[name])),
        GROUPS,
    ),
    step(_offset_delete, GROUPS, TOPICS, PARTITIONS),
    step(_of_group("InitProducerId", 4, init_producer_id), GROUPS),
    st.just(_join),
)
# What two runs cannot have in common.
OF_ONE_RUN = {"topic_id", "producer_id", "member_id", "leader"}


@settings(max_examples=60)
@given(
    steps=st.lists(STEPS, min_size=2, max_size=14),
    first=st.lists(step(_create, TOPICS, st.integers(1, 2), st.booleans()), max_size=2),
    cut=st.sampled_from((1 << 20, 1000, 100)),
    cold=st.booleans(),
)
def test_pipelined_requests_are_answered_as_if_sent_one_at_a_time(
    broker: InProcessBroker,
    disk: SimDisk,
    steps: Sequence[Step],
    first: Sequence[Step],
    cut: int,
    cold: bool,
) -> None:
    disk.cold = cold  # fetches wait for the disk
    number = next(RUNS)
    answers = {}
    for run in (f"one-{number}-", f"all-{number}-"):
        requests: list[Sent] = []
        for position, make in enumerate([*first, *steps]):
            made = make(run, position)
            requests += [made] if isinstance(made, Sent) else made
        with RawConnection(broker.bootstrap) as connection:
            if run.startswith("one"):
                given_answers = one_at_a_time(connection, *requests)
            else:
                given_answers = pipelined(connection, *requests, cut=cut)
        answers[run] = [
            # A fetch that waits shows what comes behind it.
            (one.api, None if one.passed else comparable(answer, run))
            for one, answer in zip(requests, given_answers, strict=True)
        ]
    disk.cold = False
    expected, got = answers.values()
    assert got == expected


def comparable(part: Any, run: str) -> Any:
    if isinstance(part, Struct):
        return {
            field.name: comparable(getattr(part, field.name), run)
            for field in part.fields
            if field.name not in OF_ONE_RUN
        }
    if isinstance(part, list | tuple):
        return [comparable(one, run) for one in part]
    if isinstance(part, memoryview):
        return bytes(part)
    return part.replace(run, "") if isinstance(part, str) else part


# ---- librdkafka ----


@pytest.fixture
def admin(broker: InProcessBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def outcome(futures: dict[Any, Any]) -> Any:
    (future,) = futures.values()
    return future.result(PATIENCE_S)


def test_librdkafka_lists_the_start_behind_its_delete_records(
    connection: RawConnection, admin: AdminClient
) -> None:
    topic = created(connection, "rd-deleted-records", records=21)
    earliest = {TopicPartition(topic, 0): OffsetSpec.earliest()}
    assert outcome(admin.list_offsets(earliest)).offset == 0  # knows the leader from here on
    for offset in range(1, 21):
        deleted = admin.delete_records([TopicPartition(topic, 0, offset)])
        shown = admin.list_offsets(earliest)
        assert outcome(deleted).low_watermark == outcome(shown).offset == offset


def test_librdkafka_describes_the_topic_behind_its_create_topics(admin: AdminClient) -> None:
    """By its settings: librdkafka itself may send the Metadata of describe_topics first."""
    admin.list_topics(timeout=PATIENCE_S)  # knows the controller from here on
    for number in range(10):
        name = f"rd-created-{number}"
        made = admin.create_topics([NewTopic(name, 2, 1, config={"retention.ms": "1001"})])
        shown = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)])
        outcome(made)
        assert outcome(shown)["retention.ms"].value == "1001"


def test_librdkafka_describes_the_value_behind_its_alter_configs(
    connection: RawConnection, admin: AdminClient
) -> None:
    topic = created(connection, "rd-altered")
    resource = ConfigResource(ResourceType.TOPIC, topic)
    outcome(admin.describe_configs([resource]))
    for retention in range(1001, 1011):
        entry = ConfigEntry(
            "retention.ms", str(retention), incremental_operation=AlterConfigOpType.SET
        )
        change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        altered = admin.incremental_alter_configs([change])
        shown = admin.describe_configs([resource])
        outcome(altered)
        assert outcome(shown)["retention.ms"].value == str(retention)


def test_librdkafka_keeps_the_offset_behind_its_delete_groups(
    connection: RawConnection, admin: AdminClient
) -> None:
    topic = created(connection, "rd-committed")
    group = committed(connection, "rd-deleted-group", topic)
    for offset in range(10, 20):
        deleted = admin.delete_consumer_groups([group])
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, offset)])
        altered = admin.alter_consumer_group_offsets([wanted])
        outcome(deleted)
        outcome(altered)
        (shown,) = outcome(
            admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
        ).topic_partitions
        assert shown.offset == offset
