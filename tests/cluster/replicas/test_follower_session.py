"""The fetch session of a follower, and leaders that have no room for one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millstream.cluster.replicas.partition import Partition
from millstream.cluster.replicas.pending_sequences import PendingSequences
from millstream.control.znodes import PartitionState
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition
from millstream.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from support.cluster.following_world import fetchers_before
from support.cluster.host_world import new_log

PATIENCE_S = 120.0
TOPIC_ID = bytes(15) + b"\x01"
PARTITIONS = 3

Answer = int | ErrorCode | OSError


class Leader:
    """Responds with these sessions or errors, and then no more."""

    def __init__(self, *answers: Answer) -> None:
        self._answers: Iterator[Answer] = iter(answers)
        # By request: its session id and epoch, and its number of partitions.
        self.asked: list[tuple[int, int, int]] = []
        self.done = asyncio.Event()

    async def ask(
        self, purpose: str, host: str, port: int, request: FetchRequest, **more: Any
    ) -> FetchResponse:
        answer = next(self._answers, None)
        if answer is None:
            self.done.set()
            await asyncio.Event().wait()
        rows = [row.partition for topic in request.topics for row in topic.partitions]
        self.asked.append((request.session_id, request.session_epoch, len(rows)))
        if isinstance(answer, OSError):
            raise answer
        if isinstance(answer, ErrorCode):
            return FetchResponse(error_code=answer)
        data = [
            PartitionData(partition_index=row, high_watermark=0, log_start_offset=0) for row in rows
        ]
        topics = [FetchableTopicResponse(topic_id=TOPIC_ID, partitions=data)]
        return FetchResponse(session_id=answer or 0, responses=topics)

    def drop(self, purposes: tuple[str, ...]) -> None:
        pass


def asked(directory: Path, *answers: Answer) -> list[tuple[int, int, int]]:
    async def story() -> list[tuple[int, int, int]]:
        leader = Leader(*answers)
        fetchers = fetchers_before(leader)
        for index in range(PARTITIONS):
            tp = TopicPartition("orders", index)
            partition = Partition(
                tp, TOPIC_ID, new_log(directory, index), PendingSequences(lambda: 0)
            )
            partition.follow(PartitionState(1, 1, (0, 1)))
            fetchers.follow(partition)
        async with asyncio.timeout(PATIENCE_S):
            await leader.done.wait()
        await fetchers.close()
        return leader.asked

    return asyncio.run(story())


def test_a_session_continues_with_changed_rows(tmp_path: Path) -> None:
    assert asked(tmp_path, 7, 7, 7) == [(0, 0, PARTITIONS), (7, 1, 0), (7, 2, 0)]


def test_without_a_session_every_request_has_all_rows(tmp_path: Path) -> None:
    """It used to continue a session that did not exist, and was rejected every second time."""
    assert asked(tmp_path, 0, 0, 7, 7) == [(0, 0, PARTITIONS)] * 3 + [(7, 1, 0)]


def test_an_evicted_session_starts_over(tmp_path: Path) -> None:
    assert asked(tmp_path, 7, 0, 8) == [(0, 0, PARTITIONS), (7, 1, 0), (0, 0, PARTITIONS)]


def test_a_new_session_names_the_one_it_replaces(tmp_path: Path) -> None:
    """The leader would keep it for minutes, without room for a consumer's."""
    for failure in (OSError("connection lost"), ErrorCode.INVALID_FETCH_SESSION_EPOCH):
        requests = asked(tmp_path / type(failure).__name__, 7, failure, 8, 8)
        assert requests == [(0, 0, PARTITIONS), (7, 1, 0), (7, 0, PARTITIONS), (8, 1, 0)]
