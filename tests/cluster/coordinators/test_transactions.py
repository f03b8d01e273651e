"""The transaction coordinator: failed allocations, dropped shards, and repeated markers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.cluster.coordinators import markers as marker_sender
from millstream.cluster.coordinators.markers import MarkerSender
from millstream.cluster.coordinators.producer_ids import ProducerIds
from millstream.cluster.coordinators.transactions import TransactionDriver
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.ports.clock import SystemClock
from millstream.transactions.settings import TransactionSettings
from millstream.transactions.shard import TransactionShard
from millstream.wire.messages.end_txn import EndTxnRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.records.batch import parse_header
from support.cluster.host_world import FaultyPartition, code_of, new_log, until

ID = "payments"
INIT = InitProducerIdRequest(transactional_id=ID, transaction_timeout_ms=60_000)
DATA = TopicPartition("orders", 0)


class Topics:
    """``__transaction_state`` with one partition, or none."""

    def __init__(self) -> None:
        self.count = 1

    def partitions(self, name: str) -> int:
        return self.count

    async def ensure(self, name: str) -> int:
        self.count = self.count or 1
        return self.count


class World:
    """A driver whose producer ids come from ``allocation``, and one partition for transactions."""

    def __init__(self, directory: Path) -> None:
        self.state = FaultyPartition(new_log(directory / "state"))
        self.data = FaultyPartition(new_log(directory / "data"))
        self.topics = Topics()
        self.allocation: asyncio.Future[range] | None = None
        self.allocated = 0
        replicas: Any = self
        topics: Any = self.topics
        self.driver = TransactionDriver(
            topics,
            MarkerSender(replicas, SystemClock()),
            ProducerIds(self._allocate),
            SystemClock(),
            TransactionSettings(),
        )

    def leader(self, topic: str, index: int) -> FaultyPartition:
        return self.data

    def is_deleted(self, tp: TopicPartition) -> bool:
        return False

    async def _allocate(self) -> range:
        self.allocated += 1
        return await self.allocation if self.allocation is not None else range(1000, 2000)

    def hold_allocation(self) -> asyncio.Future[range]:
        self.allocation = asyncio.get_running_loop().create_future()
        return self.allocation

    def init(self) -> asyncio.Future[Any]:
        return asyncio.ensure_future(
            self.driver.call(
                ID,
                lambda shard, waiter, now_ms: shard.decide_init_producer_id(
                    INIT, 5, waiter, now_ms=now_ms
                ),
            )
        )

    async def end(self, producer: tuple[int, int]) -> Any:
        request = EndTxnRequest(
            transactional_id=ID, producer_id=producer[0], producer_epoch=producer[1], committed=True
        )
        return await self.driver.call(
            ID,
            lambda shard, waiter, now_ms: shard.decide_end_txn(request, 5, waiter, now_ms=now_ms),
        )

    async def begun(self) -> tuple[int, int]:
        """A producer with an open transaction in the partition."""
        answer = await self.init()
        producer = answer.producer_id, answer.producer_epoch
        assert await self.driver.verify(ID, *producer, [DATA], verify_only=False) == {
            DATA: ErrorCode.NONE
        }
        return producer

    def state_of(self) -> str:
        ((_, shard),) = self.driver.host.shards() or [
            (0, TransactionShard(0, TransactionSettings()))
        ]
        known = shard.durable.get(ID)
        return known.state.title if known is not None else "none"

    def records(self) -> int:
        return self.state.online_log.log_end_offset

    def markers(self) -> int:
        log = self.data.online_log
        found = log.read(0, 1 << 20, upto=log.log_end_offset, at_least_one=True, may_block=True)
        data = found.slice.read() if found.slice is not None else b""
        count = position = 0
        while position < len(data):
            header = parse_header(data, position)
            count += header.control
            position += header.size
        return count

    def close(self) -> None:
        self.driver.close()
        for partition in (self.state, self.data):
            if partition.log is not None:
                partition.log.close(clean=True)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Callable[[], World]]:
    """Return a function that builds the world, to be called in a running event loop."""
    made: list[World] = []

    def make() -> World:
        made.append(World(tmp_path))
        made[-1].driver.lead(made[-1].state)
        return made[-1]

    yield make
    for built in made:
        built.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_sender, "_RETRY_S", 0.001)


# ---- producer ids ----


@pytest.mark.parametrize(
    "failure", [ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "no disk"), RuntimeError("a bug")]
)
def test_a_failed_allocation_is_reported_to_the_client(
    world: Callable[[], World], caplog: pytest.LogCaptureFixture, failure: Exception
) -> None:
    async def story() -> None:
        here = world()
        here.hold_allocation().set_exception(failure)
        with caplog.at_level(logging.WARNING):
            answer = await here.init()
        assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert "cannot allocate a producer id" in caplog.text
        assert ("Traceback" in caplog.text) is isinstance(failure, RuntimeError)
        here.allocation = None
        assert (await here.init()).producer_id == 1000

    asyncio.run(story())


def test_a_shard_dropped_during_an_allocation_decides_nothing(world: Callable[[], World]) -> None:
    async def story() -> None:
        here = world()
        allocation = here.hold_allocation()
        waiting = here.init()
        await until(lambda: here.allocated, "the allocation begins")
        here.driver.host.resign(0)
        await asyncio.wait([waiting])
        assert code_of(waiting) is ErrorCode.NOT_COORDINATOR
        here.driver.lead(here.state)
        allocation.set_result(range(5, 6))
        await until(lambda: not here.driver._allocating, "the allocation is over")
        assert (here.records(), here.state_of()) == (0, "none")

    asyncio.run(story())


def test_a_client_gone_during_an_allocation_leaves_no_state(world: Callable[[], World]) -> None:
    async def story() -> None:
        here = world()
        allocation = here.hold_allocation()
        waiting = here.init()
        await until(lambda: here.allocated, "the allocation begins")
        waiting.cancel()
        allocation.set_result(range(5, 6))
        await until(lambda: not here.driver._allocating, "the allocation is over")
        assert here.records() == 0

    asyncio.run(story())


def test_a_failed_append_after_an_allocation_is_reported(world: Callable[[], World]) -> None:
    async def story() -> None:
        here = world()
        allocation = here.hold_allocation()
        waiting = here.init()
        await until(lambda: here.allocated, "the allocation begins")
        here.state.fail = ErrorCode.NOT_ENOUGH_REPLICAS
        allocation.set_result(range(5, 6))
        await asyncio.wait([waiting])
        assert code_of(waiting) in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)

    asyncio.run(story())


def test_a_bug_after_an_allocation_is_reported_and_logged(
    world: Callable[[], World], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("a bug")

    async def story() -> None:
        here = world()
        monkeypatch.setattr(TransactionShard, "decide_producer_id", broken)
        waiting = here.init()
        await asyncio.wait([waiting])
        assert code_of(waiting) is ErrorCode.UNKNOWN_SERVER_ERROR
        assert "KeyError" in caplog.text

    asyncio.run(story())


def test_close_cancels_allocations(world: Callable[[], World]) -> None:
    async def story() -> None:
        here = world()
        here.hold_allocation()
        waiting = here.init()
        await until(lambda: here.allocated, "the allocation begins")
        here.driver.close()
        await asyncio.wait([waiting])
        assert code_of(waiting) is ErrorCode.NOT_COORDINATOR
        await until(lambda: not here.driver._allocating, "the allocation is given up")

    asyncio.run(story())


# ---- markers ----


def test_the_next_shard_sends_the_markers_of_a_dropped_one(world: Callable[[], World]) -> None:
    async def story() -> None:
        here = world()
        producer = await here.begun()
        here.data.fail = ErrorCode.KAFKA_STORAGE_ERROR
        assert (await here.end(producer)).error_code == 0
        assert here.state_of() == "PrepareCommit"
        here.driver.host.resign(0)
        here.data.fail = None
        for _ in range(20):  # time enough for a sender that was not cancelled
            await asyncio.sleep(0.001)
        assert here.markers() == 0
        here.driver.lead(here.state)
        await until(lambda: here.state_of() == "CompleteCommit", "the outcome is carried out")
        assert here.markers() == 1

    asyncio.run(story())


def test_markers_written_for_a_dropped_shard_are_ignored(world: Callable[[], World]) -> None:
    """The completion reaches the next shard, whose own markers are still in flight."""

    async def story() -> None:
        here = world()
        producer = await here.begun()
        here.data.fail = ErrorCode.KAFKA_STORAGE_ERROR
        await here.end(producer)
        before = here.records()
        here.driver.host.run(
            0,
            lambda shard, now_ms: shard.decide_markers_written(
                ID, producer[0], producer[1], now_ms=now_ms
            ),
        )
        assert (here.records(), here.state_of()) == (before, "PrepareCommit")
        here.data.fail = None
        await until(lambda: here.state_of() == "CompleteCommit", "the outcome is carried out")

    asyncio.run(story())


def test_outcome_is_repeated_if_its_completion_cannot_be_written(
    world: Callable[[], World],
) -> None:
    async def story() -> None:
        here = world()
        producer = await here.begun()
        here.data.fail = ErrorCode.KAFKA_STORAGE_ERROR
        await here.end(producer)
        here.state.fail, here.data.fail = ErrorCode.NOT_ENOUGH_REPLICAS, None
        await until(here.markers, "the marker is written")
        here.state.fail = None
        await until(lambda: here.state_of() == "CompleteCommit", "the outcome is carried out")

    asyncio.run(story())


# ---- requests ----


def test_without_its_topic_no_broker_coordinates(world: Callable[[], World]) -> None:
    async def story() -> None:
        here = world()
        here.topics.count = 0
        with pytest.raises(ApiError) as refused:
            here.init()
        assert refused.value.code is ErrorCode.NOT_COORDINATOR
        codes = await here.driver.verify(ID, 1, 0, [DATA], verify_only=True)
        assert codes == {DATA: ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert await here.driver.find(ID) == 0
        assert (await here.init()).error_code == 0

    asyncio.run(story())


def test_listing_fails_while_a_shard_is_loading(world: Callable[[], World]) -> None:
    async def story() -> None:
        here = world()
        await here.init()
        here.driver.host.resign(0)
        here.driver.lead(here.state)
        with pytest.raises(ApiError) as refused:
            await here.driver.list_all(lambda ids: pytest.fail("asked"))
        assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        codes = await here.driver.verify(ID, 1000, 0, [DATA], verify_only=False)
        assert codes == {DATA: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        await until(lambda: not here.driver.host.loading, "the shard is read")
        assert here.state_of() == "Empty"

    asyncio.run(story())


def test_new_settings_reach_running_shards(world: Callable[[], World]) -> None:
    async def story() -> None:
        here = world()
        here.driver.reconfigure(TransactionSettings(transaction_max_timeout_ms=1000))
        assert (await here.init()).error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT

    asyncio.run(story())
