"""A follower with a full disk, whose leader has deleted the next records.

It starts over when there is room, and follows other partitions all the time.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from millstream.cluster.replicas.partition import Partition
from millstream.cluster.replicas.pending_sequences import PendingSequences
from millstream.control.znodes import PartitionState
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition
from millstream.log import truncation
from millstream.log.config import LogConfig
from millstream.log.management.manager import LogManager
from millstream.sim.world.disk import SimDisk, no_space
from millstream.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from support.cluster.following_world import fetchers_before

PATIENCE_S = 120.0
TP, TOPIC_ID = TopicPartition("orders", 0), bytes(15) + b"\x01"
BEGIN = 100


class Leader:
    """A leader whose log starts beyond the follower's log end."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.fails = False

    async def ask(
        self, purpose: str, host: str, port: int, request: FetchRequest, **more: Any
    ) -> FetchResponse:
        await asyncio.sleep(0.001)
        rows = []
        for topic in request.topics:
            for wanted in topic.partitions:
                self.asked.append(wanted.fetch_offset)
                outside = wanted.fetch_offset < BEGIN
                code = ErrorCode.OFFSET_OUT_OF_RANGE if outside else ErrorCode.NONE
                row = PartitionData(
                    partition_index=0, error_code=code, high_watermark=BEGIN, log_start_offset=BEGIN
                )
                rows.append(FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[row]))
        if self.fails:
            self.fails = False
            raise ValueError("nobody knows why")
        return FetchResponse(session_id=1, responses=rows)

    def drop(self, purposes: tuple[str, ...]) -> None:
        pass


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("trouble", ["a full disk", "anything else"])
def test_other_partitions_are_fetched_while_the_disk_is_full(trouble: str) -> None:
    async def story() -> None:
        disk = SimDisk(1)
        logs = LogManager(disk, ["/a"], config_for=lambda topic: LogConfig(), clock=lambda: 0)
        logs.open()
        logs.identify("cluster", 0)
        log = logs.create(TP, uuid.UUID(bytes=TOPIC_ID))
        leader = Leader()
        fetchers = fetchers_before(leader)
        partition = Partition(TP, TOPIC_ID, log, PendingSequences(lambda: 0))
        partition.follow(PartitionState(1, 1, (0, 1)))
        if trouble == "a full disk":
            disk.fault = lambda what, path: no_space(path) if what != "read" else None
        else:
            leader.fails = True
        fetchers.follow(partition)
        await until(lambda: len(leader.asked) >= 3)
        disk.fault = lambda what, path: None
        truncation.finish(log)  # as housekeeping does
        await until(lambda: log.log_end_offset == BEGIN and leader.asked[-1] == BEGIN)
        await fetchers.close()

    asyncio.run(story())
