"""Runs coordinator shards on the partitions of an internal topic.

Every decision takes one turn of the event loop: its records are encoded, applied to the shard, and
appended. Effects and replies follow when the high watermark has passed the shard's last record,
even for decisions without records: a client never sees state that a failover could undo. A client
that waits too long gets a retriable error. If an append fails, the shard is dropped and reloaded
from its log. While too few replicas are in sync, no decision is made.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from millstream.cluster.coordinators.held_effects import Effects, HeldEffects
from millstream.cluster.coordinators.replay import Codec, DurableState, replay
from millstream.cluster.coordinators.shard_writer import (
    AppendFailed,
    ShardWriter,
    coordinator_error,
)
from millstream.cluster.coordinators.timers import Timers
from millstream.cluster.replicas.partition import Partition
from millstream.core.decisions import (
    Arm,
    Decision,
    Disarm,
    Reply,
    Response,
    TimerKey,
)
from millstream.core.errors import ApiError, ErrorCode
from millstream.log.errors import StorageError
from millstream.log.producers.state import Verification
from millstream.log.rate_limited_logging import RateLimitedLog
from millstream.ports.clock import Clock
from millstream.ports.turns import Pace

log = logging.getLogger("millstream.coordinator")

# Retry of a decision without a waiting client, after too few replicas were in sync.
_RETRY_S = 0.2
# Retry of a decision that the log rejects: its cause may have passed by then.
_REJECTED_RETRY_S = 5.0
COMMIT_TIMEOUT_S = 5.0
# Names that a shard lists in one decision, which takes a few milliseconds.
_NAMES_PER_DECISION = 1000

Decide = Callable[[Any, asyncio.Future[Any], int], Decision]


class Shard(DurableState, Protocol):
    """The interface of a coordinator shard to its host."""

    def perform(self, effect: Any) -> None: ...
    def on_loaded(self, *, now_ms: int) -> Decision: ...
    def decide_timeout(self, key: TimerKey, *, now_ms: int) -> Decision: ...


S = TypeVar("S", bound=Shard)


class _Slot(Generic[S]):
    """A shard on one partition."""

    def __init__(
        self,
        partition: Partition,
        shard: S,
        fire: Callable[[TimerKey], None],
        send: Callable[[Effects], None],
    ) -> None:
        self.partition = partition
        self.shard = shard
        self.leader_since_epoch = partition.leader_since_epoch
        self.last_offset = -1
        self.timers = Timers(fire)
        self.held = HeldEffects(send)
        # Set between a decision's first record and its last effect: no other decision may start.
        self.busy = False
        self.loading: asyncio.Task[None] | None = None
        self.waiters: set[asyncio.Future[Any]] = set()
        self.wake: Callable[[], None] = lambda: None

    @property
    def is_durable(self) -> bool:
        """Whether all records are below the high watermark: replies need not wait."""
        log = self.partition.log
        return log is not None and self.last_offset < log.high_watermark

    def close(self) -> None:
        """Stop the shard; clients that wait must find its next coordinator."""
        self.timers.close()
        self.partition.waiters.remove(self.wake)
        if self.loading is not None:
            self.loading.cancel()
        self.held.close()
        for waiter in list(self.waiters):
            if not waiter.done():
                waiter.set_exception(ApiError(ErrorCode.NOT_COORDINATOR))


class CoordinatorHost(Generic[S]):
    """The shards of one internal topic that this broker leads."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        codec: Codec,
        make_shard: Callable[[int, int], S],
        outward: Mapping[type, Callable[[int, Any], None]] | None = None,
        *,
        on_resign: Callable[[int], None] = lambda index: None,
        on_ready: Callable[[int, S], None] = lambda index, shard: None,
        commit_timeout_s: Callable[[], float] = lambda: COMMIT_TIMEOUT_S,
    ) -> None:
        """``make_shard(partition, epoch)`` creates a shard.

        ``outward`` performs effects that leave the shard, by type. All others are the shard's own
        (``perform``). ``on_ready(partition, shard)`` may bring a loaded shard up to date.
        """
        self._name = name
        self._rate_limited = RateLimitedLog(log)
        self._clock = clock
        self._codec = codec
        self._writer = ShardWriter(name, clock, codec)
        self._make_shard = make_shard
        self._outward = dict(outward or {})
        self._on_resign = on_resign
        self._on_ready = on_ready
        self._commit_timeout_s = commit_timeout_s
        self._slots: dict[int, _Slot[S]] = {}

    # ---- leadership ----

    def lead(self, partition: Partition) -> None:
        """Load the shard of a partition that this broker leads now, then serve it."""
        index = partition.tp.partition
        slot = self._slots.get(index)
        if (
            slot is not None
            and slot.leader_since_epoch == partition.leader_since_epoch
            and slot.partition is partition
        ):
            return
        self.resign(index)
        self._open(index, partition)

    def _open(self, index: int, partition: Partition, *, after_s: float = 0.0) -> None:
        shard = self._make_shard(index, partition.leader_since_epoch)
        slot = _Slot(
            partition,
            shard,
            fire=lambda key: self._on_timer(index, key),
            send=partial(self._send, index),
        )
        self._slots[index] = slot
        slot.wake = lambda: self._on_progress(index, slot)
        partition.waiters.add(slot.wake)
        if partition.online_log.log_start_offset == partition.online_log.log_end_offset:
            self._start(index, slot)
        else:
            slot.loading = asyncio.get_running_loop().create_task(self._load(index, slot, after_s))

    def resign(self, index: int) -> None:
        """Drop the shard of a partition that another broker leads, or that is gone."""
        slot = self._slots.pop(index, None)
        if slot is not None:
            self._on_resign(index)
            slot.close()

    def close(self) -> None:
        for index in list(self._slots):
            self.resign(index)

    # ---- loading ----

    async def _load(self, index: int, slot: _Slot[S], after_s: float) -> None:
        try:
            await asyncio.sleep(after_s)
            while (full := await self._read_and_start(index, slot)) is not None:
                text = f"{self._name}-{index} cannot be loaded yet: {full}"
                self._rate_limited.log(logging.WARNING, "load", text)
                await asyncio.sleep(_RETRY_S)
                slot.shard = self._make_shard(index, slot.leader_since_epoch)
        except Exception as error:
            # Catch everything: otherwise a shard that cannot be read would seem to load forever.
            log.error(
                "cannot load %s-%d: %s", self._name, index, error, exc_info=_unless_expected(error)
            )
            if self._slots.get(index) is slot:
                slot.loading = None
                self.resign(index)

    async def _read_and_start(self, index: int, slot: _Slot[S]) -> StorageError | None:
        """Read the log and start the shard; return the error while a full disk prevents it.

        No event shows when the log can be read again, so the caller retries.
        """
        partition = slot.partition
        try:
            offset = partition.online_log.log_start_offset
            slot.last_offset = await replay(partition, slot.shard, self._codec, offset)
            while not self._start(index, slot):
                await asyncio.sleep(_RETRY_S)
                offset = slot.last_offset + 1
                slot.last_offset = await replay(partition, slot.shard, self._codec, offset)
        except StorageError as error:
            if not error.temporary or partition.log is None:
                raise
            return error
        return None

    def _start(self, index: int, slot: _Slot[S]) -> bool:
        """Finish the unfinished work of a loaded shard, and serve it.

        Return False if that work cannot be written now; nothing else may precede it.
        """
        decision = slot.shard.on_loaded(now_ms=self._clock.now_ms())
        try:
            if decision.records:
                slot.partition.check_min_isr()
        except ApiError as error:
            if error.code is not ErrorCode.NOT_ENOUGH_REPLICAS:
                raise
            return False
        slot.loading = None
        try:
            self._execute(index, slot, decision)
        except ApiError:
            pass  # logged already; the shard is reloaded
        if self._slots.get(index) is slot:
            self._on_ready(index, slot.shard)
        return True

    # ---- deciding ----

    def call(
        self,
        index: int,
        decide: Callable[[S, asyncio.Future[Response], int], Decision],
        guard: Verification | None = None,
    ) -> asyncio.Future[Response]:
        """Run ``decide(shard, waiter, now_ms)``; the future gets the response, or an ApiError.

        ``guard`` comes with offsets of a transaction that the coordinator has just verified.
        """
        waiter: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        try:
            slot = self._active(index)
            self._execute(index, slot, decide(slot.shard, waiter, self._clock.now_ms()), guard)
            self._keep_waiting(index, slot, waiter)
        except ApiError as error:
            if not waiter.done():
                waiter.set_exception(error)
        return waiter

    def _keep_waiting(self, index: int, slot: _Slot[S], waiter: asyncio.Future[Any]) -> None:
        """Register a waiter, after its decision.

        If its own append failed it gets that error, and not just NOT_COORDINATOR.
        """
        if waiter.done():
            return
        if self._slots.get(index) is not slot:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        slot.waiters.add(waiter)
        waiter.add_done_callback(slot.waiters.discard)

    def run(self, index: int, decide: Callable[[S, int], Decision]) -> None:
        """Run a decision without a waiter, if this broker leads the partition.

        A decision that cannot be written is retried, or repeated by the reloaded shard.
        """
        slot = self._slots.get(index)
        if slot is not None and slot.loading is None:
            self._run(index, slot, decide)

    def _run(self, index: int, slot: _Slot[S], decide: Callable[[S, int], Decision]) -> None:
        if self._slots.get(index) is not slot:
            return
        try:
            self._execute(index, slot, decide(slot.shard, self._clock.now_ms()))
        except ApiError as error:
            delay_s = _RETRY_S
            if error.code is not ErrorCode.COORDINATOR_NOT_AVAILABLE:
                text = (
                    f"a decision of {self._name}-{index} cannot be written, and is retried: {error}"
                )
                self._rate_limited.log(logging.ERROR, f"decision {error.code.name}", text)
                delay_s = _REJECTED_RETRY_S
            asyncio.get_running_loop().call_later(delay_s, self._run, index, slot, decide)

    def marker_written(self, index: int, offset: int, producer_id: int, commit: bool) -> None:
        """Apply a marker that was written to the partition; replies wait until it is durable."""
        slot = self._slots.get(index)
        if slot is not None and slot.loading is None:
            slot.shard.apply_marker(producer_id, commit)
            slot.last_offset = max(slot.last_offset, offset)

    def resume(
        self, index: int, waiter: asyncio.Future[Any] | None, decide: Callable[[S, int], Decision]
    ) -> None:
        """Run a decision that had to wait for an external event.

        A waiter gets every failure. If it is done, because the shard or the client has gone, there
        is nothing to decide.
        """
        if waiter is None:
            self.run(index, decide)
        elif not waiter.done():
            try:
                slot = self._active(index)
                self._execute(index, slot, decide(slot.shard, self._clock.now_ms()))
            except Exception as error:
                log.error(
                    "cannot resume a decision of %s-%d: %s",
                    self._name,
                    index,
                    error,
                    exc_info=_unless_expected(error),
                )
                if not waiter.done():
                    known = isinstance(error, ApiError)
                    waiter.set_exception(
                        error if known else ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
                    )

    def shards(self) -> list[tuple[int, S]]:
        """Return the loaded shards, for listings and for changes that concern all."""
        return [(index, slot.shard) for index, slot in self._slots.items() if slot.loading is None]

    async def list_all(
        self, names: Callable[[Any], list[str]], decide: Callable[[list[str]], Decide]
    ) -> list[Any]:
        """Return the responses of every shard here, each for a chunk of its names.

        A shard may have hundreds of thousands. Raise ApiError while a shard is being loaded.
        """
        if self.loading:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        pace, responses = Pace(), []
        for index, shard in self.shards():
            known = names(shard)
            for start in range(0, len(known), _NAMES_PER_DECISION):
                chunk = known[start : start + _NAMES_PER_DECISION]
                responses.append(await self.call(index, decide(chunk)))
                await pace.rest()
        return responses

    @property
    def loading(self) -> bool:
        return any(slot.loading is not None for slot in self._slots.values())

    async def confirm(self, index: int, timeout_s: float) -> None:
        """Return when this broker certainly coordinated at some time after this call began.

        Raise ApiError otherwise.
        """
        partition = self._active(index).partition
        try:
            await partition.confirm_leadership(timeout_s)
        except ApiError as error:
            # Clients retry after the first, and look for another coordinator after the second.
            late = error.code is ErrorCode.REQUEST_TIMED_OUT
            raise ApiError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if late else ErrorCode.NOT_COORDINATOR
            ) from None

    def _active(self, index: int) -> _Slot[S]:
        slot = self._slots.get(index)
        if slot is None:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        if slot.loading is not None:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return slot

    def _on_timer(self, index: int, key: TimerKey) -> None:
        self.run(index, lambda shard, now_ms: shard.decide_timeout(key, now_ms=now_ms))

    def _execute(
        self, index: int, slot: _Slot[S], decision: Decision, guard: Verification | None = None
    ) -> None:
        slot.busy = True
        try:
            if decision.records:
                slot.last_offset = self._writer.write(slot.partition, slot.shard, decision, guard)
            waiting = self._perform(slot, decision)
        except AppendFailed as failed:
            self._reload(index, slot, failed.error)
            raise coordinator_error(failed.error) from None
        finally:
            slot.busy = False
        held = slot.held
        if waiting:
            if not held.queue and slot.is_durable and self._slots.get(index) is slot:
                self._send(index, waiting)
                return
            held.hold(slot.last_offset, waiting, self._commit_timeout_s())
        if held.queue and self._slots.get(index) is slot:
            log = slot.partition.log
            if log is not None:
                held.release(log.high_watermark)
            if held.queue and held.expiry is None:
                held.schedule_expiry()

    def _reload(self, index: int, slot: _Slot[S], error: ApiError) -> None:
        """Start over from the log: the shard may have records that the log lacks."""
        # Rate-limited: while the disk is full, every partition retries about once a second.
        text = f"cannot write {self._name}-{index}: {error.message}"
        self._rate_limited.log(logging.ERROR, f"write {error.code.name}", text)
        partition = slot.partition
        self.resign(index)
        if partition.log is not None:
            # While the disk is full, the first write after the load fails as well. Without a delay
            # this would be a tight loop.
            full = error.code is ErrorCode.KAFKA_STORAGE_ERROR
            self._open(index, partition, after_s=_RETRY_S if full else 0.0)

    # ---- effects ----

    def _perform(self, slot: _Slot[S], decision: Decision) -> Effects:
        """Perform the effects on this broker's memory, in the turn of the append.

        Return the others, which have to wait until the records are durable.
        """
        waiting = []
        for effect in decision.effects:
            if isinstance(effect, Reply) or type(effect) in self._outward:
                waiting.append(effect)
            elif isinstance(effect, Arm):
                slot.timers.arm(effect.key, (effect.at_ms - self._clock.now_ms()) / 1000)
            elif isinstance(effect, Disarm):
                slot.timers.disarm(effect.key)
            else:
                slot.shard.perform(effect)
        return tuple(waiting)

    def _on_progress(self, index: int, slot: _Slot[S]) -> None:
        """React to a new high watermark, or to a log that has gone offline."""
        if slot.busy:
            return  # the decision that moved it is not finished, and releases the effects itself
        log = slot.partition.log
        if log is None:
            self.resign(index)
        elif self._slots.get(index) is slot:
            slot.held.release(log.high_watermark)

    def _send(self, index: int, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                if not effect.to.done():
                    effect.to.set_result(effect.response)
            else:
                self._outward[type(effect)](index, effect)


def _unless_expected(error: Exception) -> Exception | None:
    """Return an unexpected error, for the traceback; an ApiError explains itself."""
    return None if isinstance(error, ApiError) else error
