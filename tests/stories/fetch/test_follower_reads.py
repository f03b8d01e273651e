"""Consumers that read from followers (KIP-392), and followers that hear of the high watermark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from millstream.broker.fetch.delayed import DelayedFetch
from millstream.broker.fetch.state import Fetch
from millstream.cluster.replicas import fetcher
from millstream.core.errors import ErrorCode as E
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from millstream.wire.records.batch import Record, build_batch
from support.clusters import InProcessCluster
from support.processes import wait_until
from support.raw import RawClient, produce_request

TOPIC = "read-anywhere"
LEADER, FOLLOWER, STRANGER = 0, 1, 2


@pytest.fixture(scope="module")
def topic_id(shared_cluster: InProcessCluster) -> bytes:
    return shared_cluster.create_topic(TOPIC, at={0: (LEADER, FOLLOWER)}, min_insync_replicas=1)


@pytest.fixture
def cluster(shared_cluster: InProcessCluster, topic_id: bytes) -> Iterator[InProcessCluster]:
    yield shared_cluster


def write(cluster: InProcessCluster, count: int = 1) -> int:
    """Records that the follower has too; the offset behind them."""
    records = [Record(n, time.time_ns() // 1_000_000, None, b"v", ()) for n in range(count)]
    with cluster.client(LEADER) as client:
        answer = client.call(produce_request(TOPIC, 0, build_batch(records), acks=-1), 9)
    (row,) = answer.responses[0].partition_responses
    assert row.error_code == 0
    return int(row.base_offset) + count


def read(
    client: RawClient,
    topic_id: bytes,
    offset: int,
    *,
    rack: str = "",
    epoch: int = -1,
    version: int = 13,
    max_wait_ms: int = 0,
    session: tuple[int, int] = (0, -1),
) -> Any:
    """The row of the partition; None where a session has nothing to tell."""
    row = FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=epoch
    )
    by_id = version >= 13
    topic = FetchTopic(
        topic=None if by_id else TOPIC, topic_id=topic_id if by_id else bytes(16), partitions=[row]
    )
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        rack_id=rack,
        session_id=session[0],
        session_epoch=session[1],
        topics=[topic],
    )
    answer = client.call(request, version)
    assert answer.error_code == 0
    return answer.responses[0].partitions[0] if answer.responses else None


# ---- where to read ----


def test_the_leader_tells_which_replica_is_near(cluster: InProcessCluster, topic_id: bytes) -> None:
    """At once, and without records; who is elsewhere gets the records."""
    end = write(cluster)
    wait_until(lambda: cluster.in_sync(TOPIC) == 2, "both in sync")
    with cluster.client(LEADER) as client:
        near = read(client, topic_id, end - 1, rack="east")
        assert (near.preferred_read_replica, near.records or b"") == (FOLLOWER, b"")
        assert near.high_watermark == end
        for rack in ("", "north", "south", "nowhere"):
            here = read(client, topic_id, end - 1, rack=rack)
            assert here.preferred_read_replica == -1 and here.records


def test_a_waiting_consumer_is_sent_away_at_once(
    cluster: InProcessCluster, topic_id: bytes
) -> None:
    end = write(cluster)
    with cluster.client(LEADER) as client:
        wait_until(
            lambda: read(client, topic_id, end, rack="east").preferred_read_replica == FOLLOWER,
            "the follower to be at the end",
        )
        row = read(client, topic_id, end, rack="east", max_wait_ms=60_000)
        assert row.preferred_read_replica == FOLLOWER


def test_a_session_tells_of_the_near_replica_again(
    cluster: InProcessCluster, topic_id: bytes
) -> None:
    end = write(cluster)
    with cluster.client(LEADER) as client:
        request = FetchRequest(
            max_bytes=1 << 20,
            rack_id="east",
            session_epoch=0,
            topics=[
                FetchTopic(
                    topic_id=topic_id,
                    partitions=[FetchPartition(fetch_offset=end - 1, partition_max_bytes=1 << 20)],
                )
            ],
        )
        opened = client.call(request, 13)
        again = client.call(
            FetchRequest(
                max_bytes=1 << 20, rack_id="east", session_id=opened.session_id, session_epoch=1
            ),
            13,
        )
        told = [one.responses[0].partitions[0].preferred_read_replica for one in (opened, again)]
        assert told == [FOLLOWER, FOLLOWER]


def test_a_consumer_reads_from_the_broker_in_its_rack(
    cluster: InProcessCluster, topic_id: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka, as every client, follows what it is told."""
    end = write(cluster, 5)
    fetched: list[int] = []
    served_by: set[int] = set()
    respond = Fetch.respond

    def note_and_respond(fetch: Fetch) -> Any:
        if fetch.replica_id < 0 and fetch.size:
            served_by.add(fetch.services.node_id)
        return respond(fetch)

    monkeypatch.setattr(Fetch, "respond", note_and_respond)
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "near",
            "client.rack": "east",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
        }
    )
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])

        def all_read() -> bool:
            fetched.extend(
                message.offset()
                for message in consumer.consume(100, 0.2)
                if message.error() is None
            )
            return len(fetched) >= end

        wait_until(all_read, "all records")
        assert fetched == list(range(end)) and served_by == {FOLLOWER}
    finally:
        consumer.close()


# ---- what a follower serves ----


def test_a_follower_serves_what_is_below_its_high_watermark(
    cluster: InProcessCluster, topic_id: bytes
) -> None:
    end = write(cluster)
    log = cluster.brokers[FOLLOWER].broker.parts.replicas.replica(TOPIC, 0).online_log
    wait_until(lambda: log.high_watermark == end, "the follower to hear of it")
    epoch = cluster.brokers[FOLLOWER].broker.parts.replicas.replica(TOPIC, 0).leader_epoch
    with cluster.client(FOLLOWER) as client:
        row = read(client, topic_id, end - 1, epoch=epoch)
        assert (row.error_code, row.high_watermark, row.last_stable_offset) == (0, end, end)
        assert row.records and row.preferred_read_replica == -1
        assert not read(client, topic_id, end).records
        assert read(client, topic_id, end - 1, version=11).records
        refused = [
            (read(client, topic_id, end + 1000), E.OFFSET_OUT_OF_RANGE),
            (read(client, topic_id, 0, epoch=epoch - 1), E.FENCED_LEADER_EPOCH)
            if epoch
            else (read(client, topic_id, 0, epoch=epoch + 1), E.UNKNOWN_LEADER_EPOCH),
            (read(client, topic_id, 0, epoch=epoch + 1), E.UNKNOWN_LEADER_EPOCH),
            # Clients of before v11 expect to talk to the leader.
            (read(client, topic_id, 0, version=10), E.NOT_LEADER_OR_FOLLOWER),
        ]
        assert [row.error_code for row, _ in refused] == [code for _, code in refused]
    with cluster.client(STRANGER) as client:
        assert read(client, topic_id, 0).error_code == E.NOT_LEADER_OR_FOLLOWER


def test_a_consumer_waits_at_a_follower(cluster: InProcessCluster, topic_id: bytes) -> None:
    """And gets what comes when the follower knows that it is committed."""
    end = write(cluster)
    with cluster.client(FOLLOWER) as client:
        writer = threading.Timer(0.1, lambda: write(cluster))
        writer.start()
        row = read(client, topic_id, end, max_wait_ms=30_000)
        writer.join()
    assert row.records and row.high_watermark == end + 1


# ---- how a follower hears of the high watermark ----


def test_a_follower_hears_of_the_high_watermark_without_new_records(
    in_process_cluster: Callable[..., InProcessCluster],
) -> None:
    """Its fetch waits for a minute, but is answered as soon as the leader knows
    more than it does.
    """
    with in_process_cluster(
        2, {"replica.fetch.wait.max.ms": 60_000, "min.insync.replicas": 1}
    ) as cluster:
        cluster.create_topic(TOPIC, at={0: (0, 1)})
        log = cluster.brokers[1].broker.parts.replicas.replica(TOPIC, 0).online_log
        for _ in range(3):
            end = write(cluster)
            wait_until(lambda: log.high_watermark == end, "the follower's high watermark")  # noqa: B023


def test_records_that_come_just_before_a_follower_waits_are_not_overlooked(
    in_process_cluster: Callable[..., InProcessCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its read, which found nothing, and the moment from which it is told of changes."""
    watch = DelayedFetch._watch
    appended: list[int] = []

    def append_and_watch(delayed: Any) -> None:
        if delayed._fetch.replica_id >= 0 and not appended:
            partition = delayed._fetch.services.replicas.leader(TOPIC, 0)
            batch = build_batch([Record(0, 0, None, b"v", ())])
            partition.append(memoryview(bytearray(batch)), now_ms=0, needs_all=False)
            appended.append(partition.online_log.log_end_offset)
        watch(delayed)

    with in_process_cluster(
        2, {"replica.fetch.wait.max.ms": 60_000, "min.insync.replicas": 1}
    ) as cluster:
        cluster.create_topic(TOPIC, at={0: (0, 1)})
        log = cluster.brokers[1].broker.parts.replicas.replica(TOPIC, 0).online_log
        monkeypatch.setattr(DelayedFetch, "_watch", append_and_watch)
        write(cluster)  # after it the follower fetches again, and finds nothing
        leader = cluster.brokers[0].broker.parts.replicas.replica(TOPIC, 0).online_log
        wait_until(
            lambda: appended and log.log_end_offset == leader.log_end_offset > 1,
            "the record in between",
        )


def test_a_new_leader_does_not_tell_its_end_too_early(
    in_process_cluster: Callable[..., InProcessCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-207: what its predecessor had committed lies above the high watermark that it knows."""
    with in_process_cluster(3, {"min.insync.replicas": 1}) as cluster:
        cluster.create_topic(TOPIC, at={0: (0, 1, 2)})
        end = write(cluster, 3)
        wait_until(lambda: cluster.in_sync(TOPIC) == 3, "all in sync")
        held = True
        take = fetcher._LeaderLoop._fetch

        async def fetch_unless_held(loop: Any) -> None:
            if held and 1 in (loop._leader, loop._node_id):
                await loop._pause(0.05)
            else:
                await take(loop)

        monkeypatch.setattr(fetcher._LeaderLoop, "_fetch", fetch_unless_held)
        log = cluster.brokers[1].broker.parts.replicas.replica(TOPIC, 0).online_log
        wait_until(
            lambda: log.high_watermark == end,
            "the high watermark, of which nothing more is told then",
        )
        cluster.brokers[1].run(lambda: setattr(log, "high_watermark", 0))
        cluster.move_leader(TOPIC, 0, 1)
        with cluster.client(1) as client:
            wait_until(lambda: latest(client)[0] != E.NOT_LEADER_OR_FOLLOWER, "the new leader")
            assert latest(client) == (E.OFFSET_NOT_AVAILABLE, -1)
            assert latest(client, version=4) == (E.LEADER_NOT_AVAILABLE, -1)
            held = False
            wait_until(lambda: latest(client) == (0, end), "the followers")


def latest(client: RawClient, version: int = 7, replica_id: int = -1) -> tuple[int, int]:
    row = ListOffsetsPartition(partition_index=0, timestamp=-1)
    topics = [ListOffsetsTopic(name=TOPIC, partitions=[row])]
    request = ListOffsetsRequest(replica_id=replica_id, topics=topics)
    (found,) = client.call(request, version).topics[0].partitions
    return found.error_code, found.offset


def test_tools_that_look_at_replicas_are_told_the_end_of_any(cluster: InProcessCluster) -> None:
    """As Kafka does for replica id -2; replicas, too, are told the end of the log."""
    end = write(cluster)
    with cluster.client(FOLLOWER) as client:
        assert latest(client)[0] == E.NOT_LEADER_OR_FOLLOWER
        assert latest(client, replica_id=LEADER)[0] == E.NOT_LEADER_OR_FOLLOWER
        assert latest(client, replica_id=-2) == (0, end)
    with cluster.client(STRANGER) as client:
        assert latest(client, replica_id=-2)[0] == E.NOT_LEADER_OR_FOLLOWER
    partition: Any = cluster.brokers[LEADER].broker.parts.replicas.leader(TOPIC, 0)

    leader = cluster.brokers[LEADER]

    def latest_below_the_end(client: RawClient) -> bool:
        # A follower's fetch between the two steps would raise the high watermark again.
        leader.run(lambda: setattr(partition.log, "high_watermark", end - 1))
        return latest(client) == (0, end - 1)

    try:
        with cluster.client(LEADER) as client:
            wait_until(lambda: latest_below_the_end(client), "consumers to get the high watermark")
            assert latest(client, replica_id=FOLLOWER) == (0, end)
            assert latest(client, replica_id=-2) == (0, end)
    finally:
        leader.run(lambda: setattr(partition.log, "high_watermark", end))
