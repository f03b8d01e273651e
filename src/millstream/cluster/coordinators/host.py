"""Runs coordinator shards on the partitions of an internal topic.

For every decision, in one turn of the loop: encode and size-check its records, apply them to the shard, append them. Effects and
answers, also those of decisions without records, follow when the high watermark has passed the shard's last record: what a fail-over
could forget is never told. Whoever waits too long for that is told to come again. When an append fails, the shard is dropped and read
again from its log; while there are too few replicas in sync nothing is decided at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from millstream.cluster.coordinators.timers import Timers
from millstream.cluster.replicas.partition import Partition
from millstream.core.decisions import (
    APPEND_ERRORS,
    Arm,
    CoordinatorRecord,
    Decision,
    Disarm,
    Reply,
    Response,
    TimerKey,
)
from millstream.core.errors import ApiError, ErrorCode
from millstream.log.errors import DamagedBatch, StorageError
from millstream.log.producers.state import Origin, Verification
from millstream.log.rate_limited_logging import RateLimitedLog
from millstream.ports.clock import Clock
from millstream.ports.turns import Pace
from millstream.wire.records.batch import (
    CorruptBatch,
    Record,
    build_batch,
    crc_matches,
    parse_header,
    read_marker,
    read_records,
)

log = logging.getLogger("millstream.coordinator")

_LOAD_CHUNK = 1024 * 1024
_MAX_DECOMPRESSED = 256 * 1024 * 1024
# How long replay may hold the loop at a time.
_SLICE_S = 0.004
# Retry of a decision that the log refuses: its cause may have passed by then.
_REFUSED_RETRY_S = 5.0
# Retry of a decision without a waiting client, after too few replicas were in sync.
_RETRY_S = 0.2
# When a decision that the log refused is made again: what it depends on may have changed by then.
_REFUSED_RETRY_S = 5.0
COMMIT_TIMEOUT_S = 5.0
# Names that a shard lists in one decision, in a few milliseconds.
_LISTED_AT_ONCE = 1000

Decide = Callable[[Any, asyncio.Future[Any], int], Decision]


class Shard(Protocol):
    """What the host needs of a coordinator shard."""

    def apply(self, record: CoordinatorRecord) -> None: ...
    def apply_transactional(self, record: CoordinatorRecord, producer_id: int) -> None: ...
    def apply_marker(self, producer_id: int, commit: bool) -> None: ...
    def perform(self, effect: Any) -> None: ...
    def on_loaded(self, *, now_ms: int) -> Decision: ...
    def decide_timeout(self, key: TimerKey, *, now_ms: int) -> Decision: ...


S = TypeVar("S", bound=Shard)


class Codec(Protocol):
    """How the records of a shard look in the log."""

    def encode(self, record: CoordinatorRecord) -> tuple[bytes, bytes | None]: ...
    def decode(self, key: bytes, value: bytes | None) -> CoordinatorRecord | None: ...


class _Slot(Generic[S]):
    """A shard at work on one partition."""

    def __init__(self, partition: Partition, shard: S, reign: int, fire: Callable[[TimerKey], None]) -> None:
        self.partition = partition
        self.shard = shard
        self.reign = reign
        self.last_offset = -1
        self.timers = Timers(fire)
        # Offset, effects, and until when they are waited for.
        self.held: deque[tuple[int, tuple[Any, ...], float]] = deque()
        self.expiry: asyncio.TimerHandle | None = None
        # Between a decision's first record and its last effect: nothing else may be decided.
        self.busy = False
        self.loading: asyncio.Task[None] | None = None
        self.waiters: set[asyncio.Future[Any]] = set()
        self.wake: Callable[[], None] = lambda: None


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
        """``make_shard(partition, epoch)``. ``outward`` carries out the effects that leave this shard, by type; all
        others are the shard's own (``perform``). ``on_ready(partition, shard)`` may tell a loaded shard what it missed."""
        self._name = name
        self._rate_limited = RateLimitedLog(log)
        self._clock = clock
        self._codec = codec
        self._make_shard = make_shard
        self._outward = dict(outward or {})
        self._on_resign = on_resign
        self._on_ready = on_ready
        self._commit_timeout_s = commit_timeout_s
        self._slots: dict[int, _Slot[S]] = {}

    # ---- leadership ------------------------------------------------------------------------------

    def lead(self, partition: Partition) -> None:
        """This broker leads the partition from now on: read its log, then serve."""
        index = partition.tp.partition
        slot = self._slots.get(index)
        if slot is not None and slot.reign == partition.reign and slot.partition is partition:
            return
        self.resign(index)
        self._open(index, partition)

    def _open(self, index: int, partition: Partition, *, after_s: float = 0.0) -> None:
        shard = self._make_shard(index, partition.reign)
        slot = _Slot(partition, shard, partition.reign, lambda key: self._on_timer(index, key))
        self._slots[index] = slot
        slot.wake = lambda: self._on_progress(index, slot)
        partition.wait(slot.wake)
        if partition.online_log.log_start_offset == partition.online_log.log_end_offset:
            self._begin(index, slot)
        else:
            slot.loading = asyncio.get_running_loop().create_task(self._load(index, slot, after_s))

    def resign(self, index: int) -> None:
        """Another broker leads the partition, or it is gone: whoever waits must look for it again."""
        slot = self._slots.pop(index, None)
        if slot is None:
            return
        self._on_resign(index)
        slot.timers.close()
        slot.partition.forget(slot.wake)
        if slot.loading is not None:
            slot.loading.cancel()
        if slot.expiry is not None:
            slot.expiry.cancel()
        for waiter in list(slot.waiters):
            if not waiter.done():
                waiter.set_exception(ApiError(ErrorCode.NOT_COORDINATOR))

    def close(self) -> None:
        for index in list(self._slots):
            self.resign(index)

    # ---- loading ---------------------------------------------------------------------------------

    async def _load(self, index: int, slot: _Slot[S], after_s: float) -> None:
        try:
            await asyncio.sleep(after_s)
            while (full := await self._read_and_begin(index, slot)) is not None:
                text = f"{self._name}-{index} cannot be loaded yet: {full}"
                self._rate_limited.log(logging.WARNING, "load", text)
                await asyncio.sleep(_RETRY_S)
                slot.shard = self._make_shard(index, slot.reign)
        except Exception as error:
            # Whatever it is: a shard that cannot be read must not look for ever as if it were being read.
            log.error("cannot load %s-%d: %s", self._name, index, error, exc_info=_unless_expected(error))
            if self._slots.get(index) is slot:
                slot.loading = None
                self.resign(index)

    async def _read_and_begin(self, index: int, slot: _Slot[S]) -> StorageError | None:
        """What is wrong while a full disk keeps the log from being read: nobody would tell when it can be again."""
        try:
            await self._read_all(slot, slot.partition.online_log.log_start_offset)
            while not self._begin(index, slot):
                await asyncio.sleep(_RETRY_S)
                await self._read_all(slot, slot.last_offset + 1)
        except StorageError as error:
            if not error.passing or slot.partition.log is None:
                raise
            return error
        return None

    async def _read_all(self, slot: _Slot[S], offset: int) -> None:
        """Up to the log's end as it is in the turn in which the shard becomes active: markers are written meanwhile."""
        loop = asyncio.get_running_loop()
        journal = slot.partition.online_log
        until = loop.time() + _SLICE_S
        while offset < (end := journal.log_end_offset):
            batches, offset = await loop.run_in_executor(None, _read_chunk, slot.partition, offset, end)
            for step in self._replay(slot.shard, batches):
                step()
                if loop.time() > until:
                    await asyncio.sleep(0)
                    until = loop.time() + _SLICE_S
        slot.last_offset = offset - 1

    def _replay(self, shard: S, batches: list[bytes]) -> Iterator[Callable[[], None]]:
        for batch in batches:
            header = parse_header(batch)
            if header.control:
                marker = read_marker(batch)
                if marker is not None:
                    yield lambda pid=header.producer_id, m=marker: shard.apply_marker(pid, m.commit)  # type: ignore[misc]
                continue
            for row in read_records(batch, max_bytes=_MAX_DECOMPRESSED):
                record = self._codec.decode(row.key, row.value) if row.key is not None else None
                if record is None:
                    continue
                if header.transactional:
                    yield lambda r=record, pid=header.producer_id: shard.apply_transactional(r, pid)  # type: ignore[misc]
                else:
                    yield lambda r=record: shard.apply(r)  # type: ignore[misc]

    def _begin(self, index: int, slot: _Slot[S]) -> bool:
        """What is left to do of what was read; False where that cannot be written now, and nothing else may come before it."""
        decision = slot.shard.on_loaded(now_ms=self._clock.now_ms())
        try:
            if decision.records:
                slot.partition.check_in_sync()
        except ApiError as error:
            if error.code is not ErrorCode.NOT_ENOUGH_REPLICAS:
                raise
            return False
        slot.loading = None
        try:
            self._execute(index, slot, decision)
        except ApiError:
            pass  # said where it happened; the shard is read again
        if self._slots.get(index) is slot:
            self._on_ready(index, slot.shard)
        return True

    # ---- deciding --------------------------------------------------------------------------------

    def call(
        self,
        index: int,
        decide: Callable[[S, asyncio.Future[Response], int], Decision],
        guard: Verification | None = None,
    ) -> asyncio.Future[Response]:
        """Runs ``decide(shard, waiter, now_ms)``; the future gets the response, or an ApiError. ``guard`` comes with offsets of a
        transaction that the coordinator has just verified."""
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
        """Noted only now: one whose own append failed is told why, not just that the shard went."""
        if waiter.done():
            return
        if self._slots.get(index) is not slot:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        slot.waiters.add(waiter)
        waiter.add_done_callback(slot.waiters.discard)

    def tell(self, index: int, decide: Callable[[S, int], Decision]) -> None:
        """Runs a decision nobody waits for; nothing happens where this broker does not lead. One that cannot be written is
        made again: later, or by the shard that is then read from the log."""
        slot = self._slots.get(index)
        if slot is not None and slot.loading is None:
            self._tell(index, slot, decide)

    def _tell(self, index: int, slot: _Slot[S], decide: Callable[[S, int], Decision]) -> None:
        if self._slots.get(index) is not slot:
            return
        try:
            self._execute(index, slot, decide(slot.shard, self._clock.now_ms()))
        except ApiError as error:
            delay_s = _RETRY_S
            if error.code is not ErrorCode.COORDINATOR_NOT_AVAILABLE:
                text = f"a decision of {self._name}-{index} cannot be written, and is tried again: {error}"
                self._rate_limited.log(logging.ERROR, f"decision {error.code.name}", text)
                delay_s = _REFUSED_RETRY_S
            asyncio.get_running_loop().call_later(delay_s, self._tell, index, slot, decide)

    def note_marker(self, index: int, offset: int, producer_id: int, commit: bool) -> None:
        """A marker was written to the partition; no answer tells of it before it is safe."""
        slot = self._slots.get(index)
        if slot is not None and slot.loading is None:
            slot.shard.apply_marker(producer_id, commit)
            slot.last_offset = max(slot.last_offset, offset)

    def go_on(
        self, index: int, waiter: asyncio.Future[Any] | None, decide: Callable[[S, int], Decision]
    ) -> None:
        """A decision that had to wait for something outside. Whoever waits for it hears of every failure; where nobody does any
        more, because the shard has gone or the client has, there is nothing to decide."""
        if waiter is None:
            self.tell(index, decide)
        elif not waiter.done():
            try:
                slot = self._active(index)
                self._execute(index, slot, decide(slot.shard, self._clock.now_ms()))
            except Exception as error:
                log.error(
                    "cannot go on with a decision of %s-%d: %s",
                    self._name,
                    index,
                    error,
                    exc_info=_unless_expected(error),
                )
                if not waiter.done():
                    known = isinstance(error, ApiError)
                    waiter.set_exception(error if known else ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))

    def shards(self) -> list[tuple[int, S]]:
        """Those that are loaded, for listings and for changes that concern all."""
        return [(index, slot.shard) for index, slot in self._slots.items() if slot.loading is None]

    async def list_all(
        self, names: Callable[[Any], list[str]], decide: Callable[[list[str]], Decide]
    ) -> list[Any]:
        """Return the answers of every shard here, each for a chunk of its names: a shard may hold
        hundreds of thousands. Raise ApiError while a shard is being loaded."""
        if self.loading:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        pace, answers = Pace(), []
        for index, shard in self.shards():
            known = names(shard)
            for start in range(0, len(known), _LISTED_AT_ONCE):
                answers.append(await self.call(index, decide(known[start : start + _LISTED_AT_ONCE])))
                await pace.rest()
        return answers

    @property
    def loading(self) -> bool:
        return any(slot.loading is not None for slot in self._slots.values())

    async def confirm(self, index: int, timeout_s: float) -> None:
        """Returns when this broker coordinates here for certain, or did so after this call began. Raises ApiError."""
        partition = self._active(index).partition
        try:
            await partition.confirm_leadership(timeout_s)
        except ApiError as error:
            # Clients ask again for the one, and somebody else after the other.
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
        self.tell(index, lambda shard, now_ms: shard.decide_timeout(key, now_ms=now_ms))

    def _execute(
        self, index: int, slot: _Slot[S], decision: Decision, guard: Verification | None = None
    ) -> None:
        slot.busy = True
        try:
            held = self._carry_out(index, slot, decision, guard)
        finally:
            slot.busy = False
        if held and not slot.held and self._is_safe(index, slot):
            self._send(index, held)
            return
        if held:
            slot.held.append((slot.last_offset, held, _loop_time() + self._commit_timeout_s()))
        if slot.held:
            self._release(index, slot)
        if slot.held and slot.expiry is None:
            self._watch_held(index, slot)

    def _carry_out(
        self, index: int, slot: _Slot[S], decision: Decision, guard: Verification | None
    ) -> tuple[Any, ...]:
        """Records, then what is the shard's own; returns the effects that have to wait until the records are safe."""
        if decision.records:
            batch = self._encode(slot, decision)
            if decision.transactional is not None:
                self._append_transactional(slot, decision, batch, guard)
            else:
                self._append(index, slot, decision, batch)
        held = []
        for effect in decision.effects:
            if isinstance(effect, Reply) or type(effect) in self._outward:
                held.append(effect)
            else:
                self._perform(slot, effect)
        return tuple(held)

    def _encode(self, slot: _Slot[S], decision: Decision) -> memoryview:
        """One batch of the records; where it is refused here, nothing has happened yet."""
        now_ms = self._clock.now_ms()
        rows: list[Record] = []
        for record in decision.records:
            key, value = self._codec.encode(record)
            rows.append(Record(len(rows), now_ms, key, value, ()))
        transaction = decision.transactional
        batch = build_batch(
            rows,
            max_timestamp=now_ms,
            producer_id=transaction.producer_id if transaction is not None else -1,
            producer_epoch=transaction.producer_epoch if transaction is not None else -1,
            transactional=transaction is not None,
        )
        if len(batch) > slot.partition.online_log.config.max_message_bytes:
            raise ApiError(
                APPEND_ERRORS[ErrorCode.RECORD_LIST_TOO_LARGE],
                f"what was to be written has {len(batch)} bytes, more than max.message.bytes of {self._name} allows",
            )
        return memoryview(bytearray(batch))

    def _append(self, index: int, slot: _Slot[S], decision: Decision, batch: memoryview) -> None:
        """Applied first: a record that cannot be applied never reaches the log. Too few replicas are no reason to lose the shard."""
        try:
            slot.partition.check_in_sync()
        except ApiError as error:
            raise _as_coordinator(error) from None
        for record in decision.records:
            slot.shard.apply(record)
        try:
            self._write(slot, batch, None)
        except ApiError as error:
            self._lost(index, slot, error)
            raise _as_coordinator(error) from None

    def _append_transactional(
        self, slot: _Slot[S], decision: Decision, batch: memoryview, guard: Verification | None
    ) -> None:
        """Written first: the log refuses a fenced producer, and that must not cost the shard."""
        transaction = decision.transactional
        assert transaction is not None
        try:
            self._write(slot, batch, guard)
        except ApiError as error:
            raise _as_coordinator(error) from None
        for record in decision.records:
            slot.shard.apply_transactional(record, transaction.producer_id)

    def _write(self, slot: _Slot[S], batch: memoryview, guard: Verification | None) -> None:
        result = slot.partition.append(
            batch, now_ms=self._clock.now_ms(), needs_all=True, origin=Origin.COORDINATOR, guard=guard
        )
        slot.last_offset = result.last_offset

    def _lost(self, index: int, slot: _Slot[S], error: ApiError) -> None:
        """The shard may hold what its log does not: begin again from the log."""
        # While the disk is full, every partition tries again once a second or so.
        text = f"cannot write {self._name}-{index}: {error.message}"
        self._rate_limited.log(logging.ERROR, f"write {error.code.name}", text)
        partition = slot.partition
        self.resign(index)
        if partition.log is not None:
            # What it has to write first would fail again, and so on without a rest, while the disk is full.
            full = error.code is ErrorCode.KAFKA_STORAGE_ERROR
            self._open(index, partition, after_s=_RETRY_S if full else 0.0)

    # ---- effects ---------------------------------------------------------------------------------

    def _perform(self, slot: _Slot[S], effect: Any) -> None:
        """What concerns this broker's memory alone happens at once, in the turn of the append."""
        if isinstance(effect, Arm):
            slot.timers.arm(effect.key, (effect.at_ms - self._clock.now_ms()) / 1000)
        elif isinstance(effect, Disarm):
            slot.timers.disarm(effect.key)
        else:
            slot.shard.perform(effect)

    def _on_progress(self, index: int, slot: _Slot[S]) -> None:
        """The high watermark has moved, or the log has gone offline."""
        if slot.busy:
            return  # the decision that moved it is not finished; it releases what it may
        if slot.partition.log is None:
            self.resign(index)
        else:
            self._release(index, slot)

    def _release(self, index: int, slot: _Slot[S]) -> None:
        """Answers and sends what the high watermark has passed."""
        if self._slots.get(index) is not slot or slot.partition.log is None:
            return
        committed = slot.partition.log.high_watermark
        while slot.held and slot.held[0][0] < committed:
            self._send(index, slot.held.popleft()[1])

    def _is_safe(self, index: int, slot: _Slot[S]) -> bool:
        """Everything the shard has written is below the high watermark: an answer that adds nothing need not wait."""
        log = slot.partition.log
        return log is not None and slot.last_offset < log.high_watermark and self._slots.get(index) is slot

    def _send(self, index: int, effects: tuple[Any, ...]) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                if not effect.to.done():
                    effect.to.set_result(effect.response)
            else:
                self._outward[type(effect)](index, effect)

    def _watch_held(self, index: int, slot: _Slot[S]) -> None:
        """Until the first who still waits has waited long enough; which may be now, where the loop was held up meanwhile."""
        waiting = (until for _, effects, until in slot.held if any(map(_is_awaited, effects)))
        at = next(waiting, None)
        if at is not None:
            slot.expiry = asyncio.get_running_loop().call_at(at, self._expire, index, slot)

    def _expire(self, index: int, slot: _Slot[S]) -> None:
        """Whether what they wait for survives is not known yet: whoever asked may come again. What leaves the shard goes on waiting."""
        slot.expiry = None
        if self._slots.get(index) is not slot:
            return
        now = _loop_time()
        for _, effects, until in slot.held:
            if until > now:
                break
            for effect in effects:
                if _is_awaited(effect):
                    effect.to.set_exception(ApiError(APPEND_ERRORS[ErrorCode.REQUEST_TIMED_OUT]))
        self._watch_held(index, slot)


def _is_awaited(effect: Any) -> bool:
    return isinstance(effect, Reply) and not effect.to.done()


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


def _unless_expected(error: Exception) -> Exception | None:
    """A failed disk explains itself; of anything else the log shall show where it came from."""
    return None if isinstance(error, ApiError) else error


def _as_coordinator(error: ApiError) -> ApiError:
    """A failed append in words that clients take for the coordinator's."""
    return ApiError(APPEND_ERRORS.get(error.code, error.code), error.message)


def _read_chunk(partition: Partition, offset: int, end: int) -> tuple[list[bytes], int]:
    """Whole batches from an offset on, and the offset behind them. Waits for the disk: for a thread.

    Every batch is verified, whatever log.read.verification.enable says: a committed offset or the state of a
    transaction is believed for as long as the broker runs.
    """
    log = partition.online_log
    result = log.read(offset, _LOAD_CHUNK, upto=end, at_least_one=True, may_block=True)
    if result.slice is None:
        return [], end
    data = result.slice.read()
    batches = []
    position, before = 0, 0
    try:
        while position < len(data):
            header = parse_header(data, position)
            if position + header.size > len(data) or not crc_matches(data, position, header):
                raise CorruptBatch("a batch that does not match its checksum")
            if not before <= header.base_offset <= header.last_offset < end:
                raise CorruptBatch(f"a batch at offset {header.base_offset} after offset {before}")
            batches.append(bytes(data[position : position + header.size]))
            position, before = position + header.size, header.next_offset
    except CorruptBatch as error:
        damage = DamagedBatch(result.slice.file.path, result.slice.position + position, error.reason)
        raise log.host.damage_found(log, damage) from None
    return batches, result.end_offset
