"""Markers reach every partition of a transaction: at once, again where a partition is offline, never for a shard that has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from host_world import FaultyPartition, new_log, until

from millstream.cluster import marker_sender
from millstream.cluster.marker_sender import MarkerSender
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.ports.clock import SystemClock
from millstream.transactions.effects import SendMarkers
from millstream.wire.batch import parse_header, read_marker


class Replicas:
    """The partitions that exist; the sender asks for nothing else."""

    def __init__(self, partitions: dict[int, FaultyPartition]) -> None:
        self._partitions = partitions

    def leader(self, topic: str, index: int) -> FaultyPartition:
        if index not in self._partitions:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return self._partitions[index]


@pytest.fixture
def partitions(tmp_path: Path) -> Iterator[dict[int, FaultyPartition]]:
    made = {index: FaultyPartition(new_log(tmp_path, index), index=index) for index in range(2)}
    yield made
    for partition in made.values():
        partition.online_log.close(clean=True)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_sender, "_RETRY_S", 0.001)


def outcome(*indexes: int, commit: bool = True) -> SendMarkers:
    return SendMarkers("id", 7, 3, 5, commit, tuple(TopicPartition("__counts", n) for n in indexes), 1)


def sender(partitions: dict[int, FaultyPartition]) -> MarkerSender:
    replicas: Any = Replicas(partitions)
    return MarkerSender(replicas, SystemClock())


def markers(partition: FaultyPartition) -> list[tuple[int, int, bool, int]]:
    """(producer, epoch, committed, coordinator epoch) of every control batch."""
    log = partition.online_log
    found = log.read(0, 1 << 20, upto=log.log_end_offset, at_least_one=True, may_block=True)
    data = found.slice.read() if found.slice is not None else b""
    rows, position = [], 0
    while position < len(data):
        header = parse_header(data, position)
        marker = read_marker(bytes(data[position : position + header.size]))
        assert marker is not None
        rows.append((header.producer_id, header.producer_epoch, marker.commit, marker.coordinator_epoch))
        position += header.size
    return rows


@pytest.mark.parametrize("commit", [True, False])
def test_markers_are_written_to_every_partition(partitions: dict[int, FaultyPartition], commit: bool) -> None:
    async def story() -> None:
        done: list[str] = []
        told: list[tuple[int, int, int, bool]] = []
        made = sender(partitions)
        made.on_marker = {"__counts": lambda *what: told.append(what)}
        made.send(0, outcome(0, 1, commit=commit), lambda: done.append("done"))
        assert done == ["done"]
        assert told == [(0, 0, 7, commit), (1, 0, 7, commit)]
        assert [markers(one) for one in partitions.values()] == [[(7, 3, commit, 5)]] * 2

    asyncio.run(story())


def test_a_partition_that_is_gone_needs_no_marker(partitions: dict[int, FaultyPartition]) -> None:
    async def story() -> None:
        done: list[str] = []
        sender(partitions).send(0, outcome(0, 99), lambda: done.append("done"))
        assert done == ["done"] and markers(partitions[0]) == [(7, 3, True, 5)]

    asyncio.run(story())


@pytest.mark.parametrize("failure", [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_ENOUGH_REPLICAS])
def test_an_offline_partition_is_tried_until_it_is_back(
    partitions: dict[int, FaultyPartition], failure: ErrorCode
) -> None:
    """Each partition gets its marker once, and the outcome is complete when the last one has it."""

    async def story() -> None:
        done: list[str] = []
        attempts = 0
        made = sender(partitions)
        partitions[1].fail = failure
        append = made.append

        def counted(*arguments: Any) -> Any:
            nonlocal attempts
            attempts += 1
            return append(*arguments)

        made.append = counted  # type: ignore[method-assign]
        made.send(0, outcome(0, 1), lambda: done.append("done"))
        await until(lambda: attempts > 4, "some attempts")
        assert done == []
        partitions[1].fail = None
        await until(lambda: done, "the outcome")
        assert [markers(one) for one in partitions.values()] == [[(7, 3, True, 5)]] * 2

    asyncio.run(story())


def test_markers_of_a_shard_that_was_dropped_are_called_off(partitions: dict[int, FaultyPartition]) -> None:
    """Those of other shards go on."""

    async def story() -> None:
        done: list[str] = []
        made = sender(partitions)
        partitions[1].fail = ErrorCode.KAFKA_STORAGE_ERROR
        made.send(0, outcome(1), lambda: done.append("dropped"))
        made.send(1, outcome(1), lambda: done.append("kept"))
        made.call_off(0)
        made.call_off(0)
        await asyncio.sleep(0)
        partitions[1].fail = None
        await until(lambda: done, "the other outcome")
        assert done == ["kept"] and markers(partitions[1]) == [(7, 3, True, 5)]
        made.close()

    asyncio.run(story())


def test_a_marker_above_the_high_watermark_is_waited_for(partitions: dict[int, FaultyPartition]) -> None:
    """What a fail-over or a power cut could take back is not told; where it was taken back it is written again."""

    async def story() -> None:
        done: list[str] = []
        made = sender(partitions)
        replicas: Any = made._replicas
        waits: list[asyncio.Future[None]] = []

        async def wait_high_watermark(partition: Any, offset: int, timeout_s: float) -> None:
            waits.append(asyncio.get_running_loop().create_future())
            await waits[-1]

        replicas.wait_high_watermark = wait_high_watermark
        partitions[0].isr = (0, 1)  # nobody moves the high watermark
        made.send(0, outcome(0), lambda: done.append("done"))
        await until(lambda: len(waits) == 1, "the wait")
        assert done == []
        waits[0].set_exception(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        await until(lambda: len(waits) == 2, "another marker")
        waits[1].set_result(None)
        await until(lambda: done, "the outcome")
        assert len(markers(partitions[0])) == 2

    asyncio.run(story())
