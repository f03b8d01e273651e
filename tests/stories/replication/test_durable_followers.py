"""flush.messages on followers: what a replica says it has is on its disk, so that acks=all outlives
a power cut everywhere at once.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable
from typing import Any

from millstream.core.errors import ErrorCode
from millstream.log.flush.job import FlushJob
from millstream.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.wire.records.batch import Record, build_batch
from support.clusters import InProcessCluster
from support.processes import wait_until

TOPIC = "durable"


def write(cluster: InProcessCluster, timeout_ms: int) -> ErrorCode:
    batch = build_batch([Record(0, time.time_ns() // 1_000_000, None, b"v", ())])
    data = [
        TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])
    ]
    with cluster.client(0) as client:
        answer = client.call(ProduceRequest(acks=-1, timeout_ms=timeout_ms, topic_data=data), 9)
    return ErrorCode.of(answer.responses[0].partition_responses[0].error_code)


def test_a_follower_tells_what_it_has_when_its_disk_has_it(
    in_process_cluster: Callable[..., InProcessCluster],
) -> None:
    with in_process_cluster(2, {"auto.leader.rebalance.enable": "false"}) as cluster:
        cluster.create_topic(TOPIC, at={0: (0, 1)}, min_insync_replicas=2, flush_messages=1)
        assert write(cluster, 20_000) is ErrorCode.NONE
        follower = cluster.brokers[1]
        housekeeping: Any = follower.broker.parts.housekeeping
        flush, may_flush = housekeeping.flush, asyncio.Event()

        async def slow(log: Any) -> None:
            await may_flush.wait()
            await flush(log)

        housekeeping.flush = slow
        assert write(cluster, 500) is ErrorCode.REQUEST_TIMED_OUT
        follower.run(may_flush.set)
        assert write(cluster, 20_000) is ErrorCode.NONE


def test_what_a_follower_cannot_write_to_its_disk_it_does_not_tell(
    in_process_cluster: Callable[..., InProcessCluster],
) -> None:
    settings = {"auto.leader.rebalance.enable": "false", "replica.fetch.backoff.ms": "10"}
    with in_process_cluster(2, settings) as cluster:
        cluster.create_topic(TOPIC, at={0: (0, 1)}, min_insync_replicas=2, flush_messages=1)
        assert write(cluster, 20_000) is ErrorCode.NONE
        housekeeping: Any = cluster.brokers[1].broker.parts.housekeeping
        blocking, tried = housekeeping.blocking, []

        async def full(call: Any) -> Any:
            if isinstance(getattr(call, "__self__", None), FlushJob):
                tried.append(call)
                raise OSError(errno.ENOSPC, "full")
            return await blocking(call)

        housekeeping.blocking = full
        assert write(cluster, 1_000) is ErrorCode.REQUEST_TIMED_OUT
        assert len(tried) > 1, "held back, and tried again"
        housekeeping.blocking = blocking
        # It has left the ISR, and joins again when its disk has room.
        wait_until(lambda: write(cluster, 20_000) is ErrorCode.NONE, "the follower in sync")
