"""DeleteRecords in a cluster: answered when the records are gone from every replica whose broker is
there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition
from millstream.log.directories import file_names
from millstream.log.directories.checkpoints import read_offsets
from millstream.ports.files import RealFiles
from millstream.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from millstream.wire.records.batch import Record, build_batch
from support.clusters import InProcessCluster
from support.in_process import InProcessBroker
from support.processes import wait_until
from support.raw import produce_request

TOPIC = "short"
LEADER = 0


def write(cluster: InProcessCluster, count: int) -> None:
    for _ in range(count):
        record = Record(0, time.time_ns() // 1_000_000, None, b"v", ())
        with cluster.client(LEADER) as client:
            answer = client.call(produce_request(TOPIC, 0, build_batch([record]), acks=-1), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0


def delete(cluster: InProcessCluster, before: int, timeout_ms: int = 20_000) -> Any:
    partition = DeleteRecordsPartition(partition_index=0, offset=before)
    topic = DeleteRecordsTopic(name=TOPIC, partitions=[partition])
    with cluster.client(LEADER) as client:
        answer = client.call(DeleteRecordsRequest(topics=[topic], timeout_ms=timeout_ms), 2)
    return answer.topics[0].partitions[0]


def start_at(cluster: InProcessCluster, node: int) -> int:
    broker = cluster.brokers[node]
    partition = broker.broker.parts.replicas.replica
    return int(broker.run(lambda: partition(TOPIC, 0).online_log.log_start_offset))


def slow_checkpoints(broker: InProcessBroker) -> asyncio.Event:
    """Log starts are written down when this is set."""
    housekeeping: Any = broker.broker.parts.housekeeping
    write_checkpoint, may_write = housekeeping.log_starts_durable, asyncio.Event()

    async def slow() -> None:
        await may_write.wait()
        await write_checkpoint()

    housekeeping.log_starts_durable = slow
    return may_write


def test_deleted_records_are_gone_everywhere_when_it_is_answered(
    in_process_cluster: Callable[..., InProcessCluster],
) -> None:
    with in_process_cluster(3, {"auto.leader.rebalance.enable": "false"}) as cluster:
        cluster.create_topic(TOPIC, at={0: (0, 1, 2)})
        write(cluster, 10)
        row = delete(cluster, 4)
        assert (row.error_code, row.low_watermark) == (0, 4)
        assert [start_at(cluster, node) for node in range(3)] == [4, 4, 4]

        # One that is there but does not move is waited for in vain.
        slow = cluster.brokers[2]
        slow.run(lambda: slow.broker.parts.fetchers.forget(TopicPartition(TOPIC, 0)))
        row = delete(cluster, 6, timeout_ms=300)
        assert ErrorCode.of(row.error_code) is ErrorCode.REQUEST_TIMED_OUT
        wait_until(lambda: start_at(cluster, 1) == 6, "the others to move")

        # One that is not there is not waited for.
        leader = cluster.brokers[LEADER].broker
        slow.wait(slow.broker.parts.coordination.close())
        wait_until(lambda: 2 not in leader.image.brokers, "it to be missed")
        row = delete(cluster, 7)
        assert (row.error_code, row.low_watermark) == (0, 7)


def test_a_follower_says_that_records_are_gone_when_a_crash_cannot_bring_them_back(
    in_process_cluster: Callable[..., InProcessCluster],
) -> None:
    with in_process_cluster(2, {"auto.leader.rebalance.enable": "false"}) as cluster:
        cluster.create_topic(TOPIC, at={0: (0, 1)})
        write(cluster, 10)
        assert delete(cluster, 4).error_code == 0
        follower = cluster.brokers[1]
        (log_dir,) = follower.broker.parts.logs.dirs.values()
        checkpoint = log_dir.file(file_names.LOG_STARTS)
        assert read_offsets(RealFiles(), checkpoint) == {TopicPartition(TOPIC, 0): 4}

        may_write = slow_checkpoints(follower)
        row = delete(cluster, 6, timeout_ms=500)
        assert ErrorCode.of(row.error_code) is ErrorCode.REQUEST_TIMED_OUT
        assert start_at(cluster, 1) == 6
        write(cluster, 1)  # its replication goes on meanwhile
        follower.run(may_write.set)
        assert delete(cluster, 6).error_code == 0
        assert read_offsets(RealFiles(), checkpoint) == {TopicPartition(TOPIC, 0): 6}


def test_a_leader_that_was_replaced_while_it_wrote_the_deletion_down_does_not_vouch_for_the_others(
    in_process_cluster: Callable[..., InProcessCluster],
) -> None:
    with in_process_cluster(2, {"auto.leader.rebalance.enable": "false"}) as cluster:
        cluster.create_topic(TOPIC, at={0: (0, 1)})
        write(cluster, 10)
        follower, leader = cluster.brokers[1], cluster.brokers[LEADER]
        follower.run(
            lambda: follower.broker.parts.fetchers.forget(TopicPartition(TOPIC, 0))
        )  # it hears of nothing
        may_write = slow_checkpoints(leader)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(delete, cluster, 4)
            wait_until(lambda: start_at(cluster, LEADER) == 4, "the leader to delete")
            cluster.move_leader(TOPIC, 0, 1)
            leader.run(may_write.set)
            assert ErrorCode.of(answer.result().error_code) is ErrorCode.NOT_LEADER_OR_FOLLOWER
