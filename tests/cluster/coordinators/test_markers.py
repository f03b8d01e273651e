"""Markers reach every partition of a transaction, after retries, but not for a dropped shard."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.cluster.coordinators import markers as marker_sender
from millstream.cluster.coordinators.markers import MarkerSender
from millstream.cluster.events import NO_LISTENER, MarkerEvents
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.ports.clock import SystemClock
from millstream.transactions.effects import SendMarkers
from millstream.wire.records.batch import parse_header, read_marker
from support.cluster.host_world import FaultyPartition, new_log, until


class Replicas:
    """The partitions that exist; the sender needs nothing else."""

    def __init__(
        self, partitions: dict[int, FaultyPartition], gone: frozenset[int] = frozenset({99})
    ) -> None:
        self._partitions = partitions
        self.gone = gone

    def is_deleted(self, tp: TopicPartition) -> bool:
        return tp.partition in self.gone

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
    return SendMarkers(
        "id", 7, 3, 5, commit, tuple(TopicPartition("__counts", n) for n in indexes), 1
    )


def sender(
    partitions: dict[int, FaultyPartition], events: MarkerEvents = NO_LISTENER
) -> MarkerSender:
    replicas: Any = Replicas(partitions)
    return MarkerSender(replicas, SystemClock(), events=events)


class Elsewhere:
    """The leaders, and other brokers that respond with ``answers``: codes, or an exception."""

    node_id = 0

    def __init__(self, leaders: dict[int, int]) -> None:
        self.leaders = leaders
        self.answers: list[ErrorCode | Exception] = []
        self.asked: list[tuple[int, list[int]]] = []

    def leader(self, tp: TopicPartition) -> int:
        if tp.partition not in self.leaders:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return self.leaders[tp.partition]

    async def write_markers(self, node: int, sent: SendMarkers, partitions: Any) -> Any:
        self.asked.append((node, [tp.partition for tp in partitions]))
        answer = self.answers.pop(0) if self.answers else ErrorCode.NONE
        await asyncio.sleep(0)
        if isinstance(answer, Exception):
            raise answer
        return dict.fromkeys(partitions, answer)


def test_a_partition_not_hosted_yet_gets_its_marker_later(partitions: dict[int, FaultyPartition]):
    """A starting broker hosts one topic after another; a missing partition is not deleted."""

    async def story() -> None:
        late = partitions.pop(1)
        replicas: Any = Replicas(partitions)
        done: list[bool] = []
        MarkerSender(replicas, SystemClock()).send(0, outcome(0, 1), lambda: done.append(True))
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not done
        partitions[1] = late
        await until(lambda: bool(done), "the end")
        assert len(markers(partitions[0])) == len(markers(late)) == 1

    asyncio.run(story())


def markers(partition: FaultyPartition) -> list[tuple[int, int, bool, int]]:
    """Return (producer, epoch, committed, coordinator epoch) of every control batch."""
    log = partition.online_log
    found = log.read(0, 1 << 20, upto=log.log_end_offset, at_least_one=True, may_block=True)
    data = found.slice.read() if found.slice is not None else b""
    rows, position = [], 0
    while position < len(data):
        header = parse_header(data, position)
        marker = read_marker(bytes(data[position : position + header.size]))
        assert marker is not None
        rows.append(
            (header.producer_id, header.producer_epoch, marker.commit, marker.coordinator_epoch)
        )
        position += header.size
    return rows


@pytest.mark.parametrize("commit", [True, False])
def test_markers_are_written_to_every_partition(
    partitions: dict[int, FaultyPartition], commit: bool
) -> None:
    async def story() -> None:
        done: list[str] = []
        events_seen: list[tuple[int, int, int, bool]] = []

        class Listener:
            def marker_written(
                self, tp: TopicPartition, offset: int, producer_id: int, commit: bool
            ) -> None:
                events_seen.append((tp.partition, offset, producer_id, commit))

        made = sender(partitions, Listener())
        made.send(0, outcome(0, 1, commit=commit), lambda: done.append("done"))
        assert done == ["done"]
        assert events_seen == [(0, 0, 7, commit), (1, 0, 7, commit)]
        assert [markers(partition) for partition in partitions.values()] == [
            [(7, 3, commit, 5)]
        ] * 2

    asyncio.run(story())


def test_a_deleted_partition_needs_no_marker(partitions: dict[int, FaultyPartition]) -> None:
    async def story() -> None:
        done: list[str] = []
        sender(partitions).send(0, outcome(0, 99), lambda: done.append("done"))
        assert done == ["done"] and markers(partitions[0]) == [(7, 3, True, 5)]

    asyncio.run(story())


@pytest.mark.parametrize("failure", [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_ENOUGH_REPLICAS])
def test_the_marker_of_an_offline_partition_is_retried(
    partitions: dict[int, FaultyPartition], failure: ErrorCode
) -> None:
    """Each partition gets its marker once, and the outcome completes with the last one."""

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
        assert [markers(partition) for partition in partitions.values()] == [[(7, 3, True, 5)]] * 2

    asyncio.run(story())


def test_markers_of_a_dropped_shard_are_cancelled(partitions: dict[int, FaultyPartition]) -> None:
    """Markers of other shards are not affected."""

    async def story() -> None:
        done: list[str] = []
        made = sender(partitions)
        partitions[1].fail = ErrorCode.KAFKA_STORAGE_ERROR
        made.send(0, outcome(1), lambda: done.append("dropped"))
        made.send(1, outcome(1), lambda: done.append("kept"))
        made.cancel(0)
        made.cancel(0)
        await asyncio.sleep(0)
        partitions[1].fail = None
        await until(lambda: done, "the other outcome")
        assert done == ["kept"] and markers(partitions[1]) == [(7, 3, True, 5)]
        made.close()

    asyncio.run(story())


def test_an_outcome_waits_until_its_markers_are_durable(
    partitions: dict[int, FaultyPartition], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failover or a power cut could undo it; then it is written again."""

    async def story() -> None:
        done: list[str] = []
        made = sender(partitions)
        waits: list[asyncio.Future[None]] = []

        async def wait_high_watermark(
            partition: Any, offset: int, leader_since_epoch: int, timeout_s: float
        ) -> None:
            waits.append(asyncio.get_running_loop().create_future())
            await waits[-1]

        monkeypatch.setattr(marker_sender, "wait_high_watermark", wait_high_watermark)
        partitions[0].isr = (0, 1)  # the high watermark does not move
        made.send(0, outcome(0), lambda: done.append("done"))
        await until(lambda: len(waits) == 1, "the wait")
        assert done == []
        waits[0].set_exception(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        await until(lambda: len(waits) == 2, "another marker")
        waits[1].set_result(None)
        await until(lambda: done, "the outcome")
        assert len(markers(partitions[0])) == 2

    asyncio.run(story())


# ---- partitions that other brokers lead ----


async def sent(
    partitions: dict[int, FaultyPartition], elsewhere: Elsewhere, *indexes: int
) -> list[str]:
    """Send markers; return once they are written, or the sender has given up."""
    replicas: Any = Replicas(partitions)
    replicas.is_deleted = lambda tp: tp.partition not in elsewhere.leaders
    made = MarkerSender(replicas, SystemClock(), elsewhere)
    done: list[str] = []
    made.send(0, outcome(*indexes), lambda: done.append("done"))
    await until(lambda: done or not made._tasks[0], "the outcome, or the end of the attempts")
    return done


def test_markers_are_sent_to_the_leaders(partitions: dict[int, FaultyPartition]) -> None:
    async def story() -> None:
        elsewhere = Elsewhere({0: 0, 1: 0, 2: 1, 3: 2, 4: 1})
        assert await sent(partitions, elsewhere, 0, 1, 2, 3, 4, 99) == ["done"]
        assert sorted(elsewhere.asked) == [(1, [2, 4]), (2, [3])]
        assert [markers(partition) for partition in partitions.values()] == [[(7, 3, True, 5)]] * 2

    asyncio.run(story())


@pytest.mark.parametrize(
    "failure",
    [
        ConnectionError("gone"),
        ApiError(ErrorCode.NOT_CONTROLLER),
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # its metadata may be older
    ],
)
def test_a_broker_that_cannot_write_is_retried(
    partitions: dict[int, FaultyPartition], failure: ErrorCode | Exception
) -> None:
    async def story() -> None:
        elsewhere = Elsewhere({2: 1})
        elsewhere.answers = [failure, failure]
        assert await sent(partitions, elsewhere, 2) == ["done"]
        assert elsewhere.asked == [(1, [2])] * 3

    asyncio.run(story())


def test_a_retry_goes_to_the_current_leader(partitions: dict[int, FaultyPartition]) -> None:
    """No leader, another broker, this one, and finally none because the topic was deleted."""

    async def story() -> None:
        elsewhere = Elsewhere({0: 1, 1: -1, 2: 1})
        elsewhere.answers = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        partitions[1].fail = ErrorCode.NOT_LEADER_OR_FOLLOWER
        replicas: Any = Replicas(partitions)
        replicas.is_deleted = lambda tp: tp.partition not in elsewhere.leaders
        made = MarkerSender(replicas, SystemClock(), elsewhere)
        done: list[str] = []
        made.send(0, outcome(0, 1, 2), lambda: done.append("done"))
        await until(lambda: elsewhere.asked, "the first attempt")
        del elsewhere.leaders[2]
        elsewhere.leaders[0] = 0
        await until(lambda: markers(partitions[0]), "the marker that is written here")
        assert done == [] and elsewhere.asked == [(1, [0, 2])]
        elsewhere.leaders[1] = 2
        await until(lambda: done, "the outcome")
        assert elsewhere.asked[1:] == [(2, [1])] and markers(partitions[1]) == []

    asyncio.run(story())


def test_a_fenced_coordinator_stops(partitions: dict[int, FaultyPartition]) -> None:
    """On this broker or another: its successor has decided, and completes the transaction."""

    async def story() -> None:
        elsewhere = Elsewhere({0: 0, 2: 1, 3: 1})
        elsewhere.answers = [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
        assert await sent(partitions, elsewhere, 2, 3) == []
        assert len(elsewhere.asked) == 1
        partitions[0].fail = ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert await sent(partitions, elsewhere, 0, 2) == []
        assert len(elsewhere.asked) == 1

    asyncio.run(story())


def test_a_producer_with_a_newer_epoch_needs_no_marker(
    partitions: dict[int, FaultyPartition],
) -> None:
    async def story() -> None:
        elsewhere = Elsewhere({2: 1})
        elsewhere.answers = [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert await sent(partitions, elsewhere, 2) == ["done"]

    asyncio.run(story())
