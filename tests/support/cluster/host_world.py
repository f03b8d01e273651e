"""Shared by the tests of coordinator hosts: a partition with faults, and a counting shard."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millstream.cluster.coordinators.host import CoordinatorHost
from millstream.cluster.replicas.partition import Partition
from millstream.cluster.replicas.pending_sequences import PendingSequences
from millstream.core.decisions import (
    Arm,
    CoordinatorRecord,
    Decision,
    Reply,
    TimerKey,
    TransactionalAppend,
)
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.log.config import LogConfig
from millstream.log.management.host import LogHost
from millstream.log.partition_log import PartitionLog
from millstream.log.producers.state import Origin
from millstream.log.segments.open_files import OpenFiles
from millstream.ports.clock import SystemClock
from millstream.ports.files import RealFiles
from millstream.wire.records.batch import build_marker

TOPIC = "__counts"
PATIENCE_S = 120.0


def new_log(directory: Path, index: int = 0) -> PartitionLog:
    tp = TopicPartition(TOPIC, index)
    return PartitionLog.create(
        LogHost(RealFiles()),
        OpenFiles(),
        str(directory / str(tp)),
        tp,
        LogConfig(),
        topic_id=uuid.UUID(int=7),
        start_offset=0,
        now_ms=0,
    )


class FaultyPartition(Partition):
    """A partition whose appends raise ``fail``.

    Unless it is ``alone``, its high watermark moves only by ``commit``.
    """

    __slots__ = ("alone", "fail")

    def __init__(self, log: PartitionLog, *, alone: bool = True, index: int = 0) -> None:
        super().__init__(TopicPartition(TOPIC, index), bytes(16), log, PendingSequences(lambda: 0))
        self.alone = alone
        self.leader, self.isr = 0, (0,) if alone else (0, 1)
        self.fail: ErrorCode | None = None
        if alone:
            self.advance_alone()

    @property
    def replica_count(self) -> int:
        return 1 if self.alone else 2

    def append(self, *arguments: Any, **more: Any) -> Any:
        if self.fail is not None:
            raise ApiError(self.fail)
        return super().append(*arguments, **more)

    def commit(self) -> None:
        """Let the followers have all records."""
        log = self.online_log
        if log.advance_high_watermark(log.log_end_offset):
            self.waiters.wake()

    def append_marker(self, producer_id: int, *, commit: bool) -> None:
        marker = build_marker(
            base_offset=0,
            leader_epoch=0,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            commit=commit,
            timestamp=0,
        )
        super().append(
            memoryview(bytearray(marker)), now_ms=0, needs_all=False, origin=Origin.COORDINATOR
        )


@dataclass(frozen=True)
class Sent:
    """An effect that leaves the shard."""

    name: str


@dataclass(frozen=True)
class Seen:
    """An effect on the shard itself."""

    name: str


@dataclass
class CountingShard:
    """Names and numbers: ``durable`` from the log, ``seen`` from effects, ``fired`` from timers."""

    durable: dict[str, int] = field(default_factory=dict)
    pending: dict[int, dict[str, int]] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    fired: list[TimerKey] = field(default_factory=list)
    loaded: int = 0

    def apply(self, record: CoordinatorRecord) -> None:
        self.durable[record.key] = record.value

    def apply_transactional(self, record: CoordinatorRecord, producer_id: int) -> None:
        self.pending.setdefault(producer_id, {})[record.key] = record.value

    def apply_marker(self, producer_id: int, commit: bool) -> None:
        offsets = self.pending.pop(producer_id, {})
        if commit:
            self.durable |= offsets

    def perform(self, effect: Any) -> None:
        self.seen.append(effect.name)

    def on_loaded(self, *, now_ms: int) -> Decision:
        self.loaded += 1
        return Decision()

    def decide_timeout(self, key: TimerKey, *, now_ms: int) -> Decision:
        self.fired.append(key)
        return Decision((CoordinatorRecord(f"timer {key}", len(self.fired)),))

    def decide_count(self, name: str, waiter: Any) -> Decision:
        number = self.durable.get(name, 0) + 1
        return Decision(
            (CoordinatorRecord(name, number),), (Seen(name), Reply(waiter, number), Sent(name))
        )

    def decide_look(self, name: str, waiter: Any) -> Decision:
        return Decision(effects=(Reply(waiter, self.durable.get(name, 0)),))

    def decide_pending(self, name: str, waiter: Any, producer_id: int) -> Decision:
        return Decision(
            (CoordinatorRecord(name, 1),),
            (Reply(waiter, "pending"),),
            TransactionalAppend(producer_id, 0),
        )

    def decide_arm(self, key: TimerKey, waiter: Any, at_ms: int) -> Decision:
        return Decision(effects=(Arm(key, at_ms), Reply(waiter, "armed")))


class NumberCodec:
    """Names as keys, numbers as values; a key that starts with "?" has an unknown type."""

    def encode(self, record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
        return record.key.encode(), b"%d" % record.value

    def decode(self, key: bytes, value: bytes | None) -> CoordinatorRecord | None:
        if key.startswith(b"?") or value is None:
            return None
        return CoordinatorRecord(key.decode(), int(value))


class World:
    """A host with its shards in the order of their creation."""

    def __init__(self, **more: Any) -> None:
        """``more`` are arguments of the host."""
        self.shards: list[CountingShard] = []
        self.sent: list[str] = []
        self.resigned: list[int] = []
        self.host = CoordinatorHost(
            TOPIC,
            SystemClock(),
            NumberCodec(),
            self._make_shard,
            {Sent: lambda index, effect: self.sent.append(effect.name)},
            on_resign=self.resigned.append,
            **more,
        )

    def _make_shard(self, index: int, epoch: int) -> CountingShard:
        self.shards.append(CountingShard())
        return self.shards[-1]

    @property
    def shard(self) -> CountingShard:
        return self.shards[-1]

    def count(self, name: str, index: int = 0) -> asyncio.Future[Any]:
        return self.host.call(index, lambda shard, waiter, now_ms: shard.decide_count(name, waiter))

    def look(self, name: str, index: int = 0) -> asyncio.Future[Any]:
        return self.host.call(index, lambda shard, waiter, now_ms: shard.decide_look(name, waiter))


async def until(condition: Callable[[], object], goal: str) -> None:
    """Let the event loop run until the condition holds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_S
    for _ in itertools.count():
        if condition():
            return
        assert loop.time() < deadline, f"timed out waiting for {goal}"
        await asyncio.sleep(0.001)


def code_of(answer: asyncio.Future[Any]) -> ErrorCode:
    error = answer.exception()
    assert isinstance(error, ApiError)
    return error.code
