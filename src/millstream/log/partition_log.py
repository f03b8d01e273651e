"""The log of one partition: appending, reading, rolling, truncating, retention and flushing.

Everything runs on the loop's thread and returns at once, except what says that it may wait for the disk: those may
run in a thread (`read` with may_block, `offset_for_timestamp`, `FlushJob.run`, `close`). An append is written to the
page cache before it is acknowledged, so it survives the death of the process; `recovery_point` is the offset below
which everything also survives the death of the machine.
"""

from __future__ import annotations

import logging
import os
import struct
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.log import names, producer_snapshot, reading
from millstream.log.append import AppendResult, Origin, parse_produced, parse_replicated
from millstream.log.config import LONG_MAX, LogConfig
from millstream.log.epochs import LeaderEpochs
from millstream.log.errors import StorageError
from millstream.log.flushing import FlushJob
from millstream.log.host import LogHost
from millstream.log.open_files import OpenFiles
from millstream.log.producer_state import BatchMeta, ProducerState, Verification
from millstream.log.reading import ReadResult
from millstream.log.replay import apply_batch, rebuild_producers
from millstream.log.retention import deletable
from millstream.log.segment import Segment
from millstream.log.transaction_index import AbortedTransaction
from millstream.ports.files import Files, FileSlice
from millstream.wire.batch import BatchHeader, read_marker

logger = logging.getLogger(__name__)

__all__ = ["AppendResult", "Origin", "PartitionLog", "ReadResult"]

_MAX_RELATIVE: Final = 0x7FFFFFFF
_BASE_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_T = TypeVar("_T")


class PartitionLog:
    """One partition's log. `recovery.load` opens one from its directory, `create` begins one."""

    __slots__ = (
        "__weakref__",
        "_active",
        "_flush_at",
        "_generation",
        "_host",
        "_name",
        "_parent_synced",
        "_pool",
        "_positions",
        "_segments",
        "_snapshots",
        "_unsynced",
        "_writeback_at",
        "cleaned_offset",
        "config",
        "directory",
        "epochs",
        "failed",
        "files",
        "flushed_ms",
        "high_watermark",
        "last_append_ms",
        "log_end_offset",
        "log_start_offset",
        "producer_expiration_ms",
        "producer_state",
        "recovery_point",
        "topic_id",
        "tp",
        "verify_transactions",
    )

    def __init__(
        self,
        host: LogHost,
        pool: OpenFiles,
        directory: str,
        tp: TopicPartition,
        config: LogConfig,
        segments: list[Segment],
        *,
        topic_id: uuid.UUID | None,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        epochs: LeaderEpochs,
        producer_state: ProducerState,
        snapshots: list[int],
        new: bool = False,
    ) -> None:
        self._host = host
        self.files: Files = host.files
        self._pool = pool
        self.directory = directory
        self.tp = tp
        self._name = str(tp)
        self.config = config
        self.topic_id = topic_id
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.high_watermark = log_start_offset
        self.recovery_point = recovery_point
        self.cleaned_offset = -1  # compaction goes on here; -1: it has not begun
        self.epochs = epochs
        self.producer_state = producer_state
        self.producer_expiration_ms = 24 * 3600 * 1000
        self.verify_transactions = False
        self.failed: StorageError | None = None
        self.last_append_ms = 0
        self.flushed_ms = 0
        self._segments = segments
        self._active = segments[-1]
        self._active.active = True
        self._snapshots = snapshots
        self._positions: dict[int, tuple[Segment, int]] = {}
        self._generation = 0  # grows with every truncation, so that an older flush does not count
        self._unsynced: set[str] = set()  # small files written since the last flush
        self._parent_synced = not new
        self._flush_at = LONG_MAX
        self._writeback_at = host.writeback_bytes
        self._set_flush_at()
        if config.flush_ms != LONG_MAX:
            host.flush_by_time(self)

    @classmethod
    def create(
        cls,
        host: LogHost,
        pool: OpenFiles,
        directory: str,
        tp: TopicPartition,
        config: LogConfig,
        *,
        topic_id: uuid.UUID | None = None,
        start_offset: int = 0,
        now_ms: int = 0,
    ) -> PartitionLog:
        """A new, empty log in a directory that is made for it."""
        from millstream.log.checkpoints import format_partition_metadata

        files = host.files
        try:
            files.makedirs(directory)
            metadata = os.path.join(directory, names.PARTITION_METADATA)
            if topic_id is not None:
                files.write_bytes(metadata, format_partition_metadata(topic_id))
            segment = Segment(
                files, pool, directory, start_offset,
                index_interval=config.index_interval_bytes, created_ms=now_ms, new=True,
            )  # fmt: skip
        except OSError as error:
            raise StorageError(os.path.dirname(directory), f"cannot create the log of {tp}", error) from error
        log = cls(
            host, pool, directory, tp, config, [segment], topic_id=topic_id,
            log_start_offset=start_offset, log_end_offset=start_offset, recovery_point=start_offset,
            epochs=LeaderEpochs(), producer_state=ProducerState(str(tp), start_offset), snapshots=[], new=True,
        )  # fmt: skip
        if topic_id is not None:
            log._unsynced.add(metadata)
        return log

    # -- what it is

    @property
    def log_dir(self) -> str:
        """The data directory (one of log.dirs) that holds the partition's directory."""
        return os.path.dirname(self.directory)

    @property
    def segments(self) -> list[Segment]:
        """From oldest to active; the list is never changed in place."""
        return self._segments

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided and replicated."""
        unstable = self.producer_state.first_unstable_offset
        return self.high_watermark if unstable is None else min(unstable, self.high_watermark)

    @property
    def cleanable_end(self) -> int:
        """Compaction may touch what is below: closed, decided, replicated and flushed (recovery takes a gap above the
        recovery point for a loss)."""
        return min(self._active.base_offset, self.last_stable_offset, self.recovery_point)

    @property
    def flush_due(self) -> bool:
        """flush.messages is reached: acknowledge only after a flush."""
        return self.log_end_offset >= self._flush_at

    def update_config(self, config: LogConfig) -> None:
        self.config = config
        for segment in self._segments:
            segment.index_interval = config.index_interval_bytes
        self._set_flush_at()
        if config.flush_ms != LONG_MAX:
            self._host.flush_by_time(self)

    def assign_topic_id(self, topic_id: uuid.UUID) -> None:
        """For a log that has none yet (a directory of a very old Kafka, or a lost partition.metadata)."""
        from millstream.log.checkpoints import format_partition_metadata

        if self.topic_id == topic_id:
            return
        if self.topic_id is not None:
            raise ApiError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"{self.directory} belongs to the topic id {self.topic_id}, not {topic_id}",
            )
        path = os.path.join(self.directory, names.PARTITION_METADATA)
        self._guard(
            "cannot write partition.metadata",
            self.files.write_bytes,
            path,
            format_partition_metadata(topic_id),
        )
        self._unsynced.add(path)
        self.topic_id = topic_id

    # -- appending

    def append(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        guard: Verification | None = None,
        transaction_version: int = 0,
    ) -> AppendResult:
        """Check and write. A client or coordinator appends one batch, whose offsets and leader epoch are stamped in
        place (so `records` must be writable); a replica appends whole batches as they are. Raises ApiError."""
        if self.failed is not None:
            raise self.failed
        if origin is Origin.REPLICATION:
            return self._append_replicated(records, leader_epoch, now_ms)
        header = parse_produced(records, self.config, origin, now_ms, self._name)
        if header.producer_id >= 0:
            repeated = self._check_producer(header, records, origin, guard, transaction_version)
            if repeated is not None:
                return self._repeated(repeated, header)
        base_offset = self.log_end_offset
        last_offset = base_offset + header.last_offset_delta
        try:
            segment = self._segment_for(len(records), base_offset, last_offset, header.max_timestamp, now_ms)
            _BASE_OFFSET.pack_into(records, 0, base_offset)
            _LEADER_EPOCH.pack_into(records, 12, leader_epoch)
            position = segment.write(records)
        except OSError as error:
            raise self._failure("cannot append", error) from error
        if header.producer_id >= 0:
            self._remember_producer(segment, position, header, base_offset, records)
        segment.note(position, len(records), last_offset, header.max_timestamp)
        self.log_end_offset = last_offset + 1
        self.last_append_ms = now_ms
        epochs = self.epochs.epochs
        if not epochs or epochs[-1] != leader_epoch:
            self.epochs.assign(leader_epoch, base_offset)
        if segment._size >= self._writeback_at or last_offset >= self._flush_at:
            self._note_progress(segment)
        append_time = header.max_timestamp if header.attributes & 8 else -1
        return AppendResult(base_offset, last_offset, append_time, self.log_start_offset, False, header.count)

    def _check_producer(
        self,
        header: BatchHeader,
        records: memoryview,
        origin: Origin,
        guard: Verification | None,
        transaction_version: int,
    ) -> BatchMeta | None:
        state = self.producer_state
        if header.attributes & _CONTROL:
            marker = read_marker(records)
            if marker is not None:
                state.check_marker(header, marker, transaction_version)
            return None
        repeated = state.check(header, origin)
        if repeated is None and header.attributes & _TRANSACTIONAL and self.verify_transactions:
            state.check_verified(header, guard)
        return repeated

    def _repeated(self, batch: BatchMeta, header: BatchHeader) -> AppendResult:
        return AppendResult(
            batch.first_offset, batch.last_offset, batch.timestamp, self.log_start_offset, True, header.count
        )

    def _remember_producer(
        self, segment: Segment, position: int, header: BatchHeader, base_offset: int, records: memoryview
    ) -> None:
        if not header.attributes & _CONTROL:
            self.producer_state.apply(header, base_offset)
            return
        try:
            apply_batch(self.producer_state, segment, header._replace(base_offset=base_offset), records)
        except OSError as error:
            # The marker without its entry in the transaction index would show aborted records: take it back.
            segment.unwrite(position)
            raise self._failure("cannot write the transaction index", error) from error

    def _append_replicated(self, records: memoryview, leader_epoch: int, now_ms: int) -> AppendResult:
        headers = parse_replicated(records, self.log_end_offset, leader_epoch, self._name)
        if not headers:
            end = self.log_end_offset
            return AppendResult(end, end - 1, -1, self.log_start_offset, False, 0)
        size = sum(header.size for header in headers)
        newest = max(header.max_timestamp for header in headers)
        first, last = headers[0].base_offset, headers[-1].last_offset
        try:
            segment = self._segment_for(size, first, last, newest, now_ms)
            position = segment.write(records[:size])
        except OSError as error:
            raise self._failure("cannot append", error) from error
        at = 0
        for header in headers:
            self.epochs.assign(header.leader_epoch, header.base_offset)
            if header.producer_id >= 0:
                self._remember_producer(
                    segment, position, header, header.base_offset, records[at : at + header.size]
                )
            segment.note(position + at, header.size, header.last_offset, header.max_timestamp)
            at += header.size
        self.log_end_offset = last + 1
        self.last_append_ms = now_ms
        if segment._size >= self._writeback_at or last >= self._flush_at:
            self._note_progress(segment)
        count = sum(header.count for header in headers)
        return AppendResult(first, last, -1, self.log_start_offset, False, count)

    def _note_progress(self, segment: Segment) -> None:
        if segment.size >= self._writeback_at:
            self._host.writeback_due(self)
        if self.flush_due:
            self._host.flush_wanted(self)

    # -- rolling

    def _segment_for(
        self, size: int, first_offset: int, last_offset: int, timestamp: int, now_ms: int
    ) -> Segment:
        """The segment to append to; rolls where the batch does not fit the active one."""
        segment, config = self._active, self.config
        held = segment.size
        if held + size <= config.segment_bytes and last_offset - segment.base_offset <= _MAX_RELATIVE:
            if not held:
                return segment
            offsets, times = segment.index_entries()
            limit = config.segment_ms - (
                config.jitter_ms(self.directory, segment.base_offset) if config.segment_jitter_ms else 0
            )
            if (
                offsets < config.segment_index_bytes >> 3
                and times < config.segment_index_bytes // 12 - 1
                and segment.waited_ms(now_ms, timestamp) <= limit
            ):
                return segment
        # Named by the end of the log even where replicated batches leave a gap: so a gap between two segments always
        # means that something was lost. Only a gap too wide for an index entry forces the batch's own offset.
        base_offset = self.log_end_offset
        if last_offset - base_offset > _MAX_RELATIVE:
            base_offset = first_offset
        return self._roll(base_offset, now_ms)

    def roll(self, *, now_ms: int) -> None:
        """Begin a new segment, unless the active one is empty."""
        self._guard("cannot roll", self._roll, self.log_end_offset, now_ms)

    def _roll(self, base_offset: int, now_ms: int) -> Segment:
        old = self._active
        if not old.size and old.base_offset == base_offset:
            return old
        new = Segment(
            self.files, self._pool, self.directory, base_offset,
            index_interval=self.config.index_interval_bytes, created_ms=now_ms, new=True,
        )  # fmt: skip
        try:
            self._take_snapshot(base_offset)
            old.finish()
        except OSError:
            self._host.discard(self, (new,), ())
            raise
        if not old.size:  # an empty active segment that began too early for the offsets to come
            self._segments = [*self._segments[:-1], new]
            self._host.discard(self, (old,), ())
        else:
            self._segments = [*self._segments, new]
        self._active = new
        self._writeback_at = self._host.writeback_bytes
        self._host.flush_wanted(self)
        return new

    def _take_snapshot(self, offset: int) -> None:
        """Save the state of the producers as of this offset, so that recovery need not begin further back."""
        if self._snapshots and self._snapshots[-1] >= offset:
            return
        path = self._snapshot_path(offset)
        self.files.write_bytes(path, producer_snapshot.encode(self.producer_state.snapshot()))
        self._snapshots = [*self._snapshots, offset]
        self._unsynced.add(path)

    def _snapshot_path(self, offset: int) -> str:
        return os.path.join(self.directory, names.segment_name(offset) + names.SNAPSHOT)

    # -- reading

    def read(
        self, offset: int, max_bytes: int, *, upto: int, at_least_one: bool = True, may_block: bool = True
    ) -> ReadResult:
        """Whole batches from the one that holds `offset`, every one of them ending below `upto`. Raises
        ApiError(OFFSET_OUT_OF_RANGE); with may_block=False also ColdRead, where the disk would have to be waited for:
        then do it again in a thread, with may_block=True."""
        end = self.log_end_offset
        if offset < self.log_start_offset or offset > end:
            raise self._out_of_range(offset)
        if self.failed is not None:
            raise self.failed
        if upto > end:
            upto = end
        if offset >= upto:
            return ReadResult(None, 0, offset)
        try:
            segment = self._active
            if offset < segment.base_offset:
                return reading.read_older(
                    self._segments, offset, max_bytes, upto, at_least_one, end, may_block, self._positions
                )
            span = segment.span(offset, max_bytes, upto, at_least_one, end, may_block)
            if span is None or span.end == span.start:
                return ReadResult(None, 0, offset)
            length = span.end - span.start
            return ReadResult(FileSlice(segment.file(), span.start, length), length, span.end_offset)
        except OSError as error:
            raise self._failure("cannot read", error) from error

    def _out_of_range(self, offset: int) -> ApiError:
        return ApiError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} of {self.tp} is outside {self.log_start_offset} to {self.log_end_offset}",
        )

    def timestamp_search(self, timestamp: int | None) -> Callable[[], tuple[int, int] | None]:
        """A search to be run in a thread (it may wait, and decode records): (timestamp, offset) of the first record at
        or after a time, or, for None, of the one with the largest timestamp."""
        segments, start = self._segments, self.log_start_offset
        if timestamp is None:
            return lambda: self._guard("cannot search", reading.largest_timestamp, segments)
        return lambda: self._guard("cannot search", reading.offset_for_timestamp, segments, timestamp, start)

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        return self.timestamp_search(timestamp)()

    def max_timestamp_offset(self) -> tuple[int, int] | None:
        return self.timestamp_search(None)()

    def aborted_transactions(self, first_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of aborted transactions that touch the range, by first offset."""
        found: list[AbortedTransaction] = self._guard(
            "cannot read the transaction index",
            reading.aborted_transactions, self._segments, first_offset, end_offset,
        )  # fmt: skip
        return sorted(((txn.producer_id, txn.first_offset) for txn in found), key=lambda pair: pair[1])

    # -- high watermark, log start, retention

    def advance_high_watermark(self, offset: int) -> bool:
        """Move it forward, never beyond the log end; whether it moved."""
        offset = min(offset, self.log_end_offset)
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        self.producer_state.on_high_watermark(offset)
        return True

    def restore_high_watermark(self, offset: int) -> None:
        """From the checkpoint, at start."""
        self.high_watermark = max(self.log_start_offset, min(offset, self.log_end_offset))
        self.producer_state.on_high_watermark(self.high_watermark)

    def delete_records(self, before_offset: int) -> int:
        """Move the log start up to an offset (-1: the high watermark); the log start then. The caller waits for the
        log-start checkpoint before it answers."""
        if not self.config.delete:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"records of {self.tp} cannot be deleted: cleanup.policy is not delete",
            )
        if before_offset == -1:
            before_offset = self.high_watermark
        if before_offset < 0 or before_offset > self.high_watermark:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {before_offset} of {self.tp} is outside 0 to the high watermark {self.high_watermark}",
            )
        self.advance_log_start(before_offset)
        return self.log_start_offset

    def advance_log_start(self, offset: int) -> bool:
        """Forward only; followers use it with their leader's log start."""
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.high_watermark = max(self.high_watermark, offset)
        self.epochs.truncate_start(offset)
        self.producer_state.on_high_watermark(self.high_watermark)
        self._host.log_start_moved(self)
        return True

    def delete_old_segments(self, now_ms: int) -> int:
        """Apply retention; how many segments went. Their files go later, when nobody reads them any more."""
        count = self._guard("cannot look at the segments", self._deletable, now_ms)
        if not count:
            return 0
        if count == len(self._segments):
            self.roll(now_ms=now_ms)
        gone, self._segments = self._segments[:count], self._segments[count:]
        first = self._segments[0].base_offset
        self.advance_log_start(first)
        logger.info("%s: retention deleted %d segments below offset %d", self.tp, count, first)
        self._positions = {}
        self._host.discard(self, gone, self._drop_snapshots(lambda offset: offset < first))
        return count

    def _deletable(self, now_ms: int) -> int:
        return deletable(
            self._segments,
            self.config,
            log_start=self.log_start_offset,
            high_watermark=self.high_watermark,
            end=self.log_end_offset,
            now_ms=now_ms,
        )

    def _drop_snapshots(self, doomed: Callable[[int], bool]) -> list[str]:
        paths = [self._snapshot_path(offset) for offset in self._snapshots if doomed(offset)]
        self._snapshots = [offset for offset in self._snapshots if not doomed(offset)]
        self._unsynced.difference_update(paths)
        return paths

    def expire_producers(self, now_ms: int) -> int:
        return self.producer_state.expire(now_ms, self.producer_expiration_ms)

    # -- truncating

    def truncate_to(self, offset: int, *, now_ms: int = 0) -> bool:
        """Drop what is at or after the offset, as a follower does whose tail the leader never had. A batch that holds
        the offset goes whole: the log ends with the last batch before it. Waits for the disk."""
        if offset >= self.log_end_offset:
            self.epochs.truncate_end(self.log_end_offset)
            return False
        if offset < self.high_watermark:
            logger.warning(
                "%s: truncating to %d, below the high watermark %d", self.tp, offset, self.high_watermark
            )
        self._guard("cannot truncate", self._truncate, offset, now_ms)
        return True

    def _truncate(self, offset: int, now_ms: int) -> None:
        kept = reading.floor_segment(self._segments, offset)
        last = self._segments[kept]
        position = last.find(offset)
        end = last.end_before(last.size if position is None else position)
        if offset < last.base_offset or end < self.log_start_offset:
            # Nothing that can be read is left.
            self._truncate_fully(min(offset, self.log_start_offset), None, now_ms)
            return
        self._before_truncation(end)
        gone, self._segments = self._segments[kept + 1 :], self._segments[: kept + 1]
        self._host.discard(self, gone[::-1], self._drop_snapshots(lambda at: at > end))
        self.files.sync_dir(self.directory)  # else a crash could bring the later segments back behind a gap
        last.active = True
        last.truncate(offset)
        last.file().sync()  # else a crash could bring the old end back under what is appended next
        self._active = last
        self._ends_at(end, now_ms)

    def truncate_fully_and_start_at(
        self, offset: int, *, log_start_offset: int | None = None, now_ms: int = 0
    ) -> None:
        """Drop everything; the log goes on at the offset."""
        self._guard("cannot truncate", self._truncate_fully, offset, log_start_offset, now_ms)

    def _truncate_fully(self, offset: int, log_start_offset: int | None, now_ms: int) -> None:
        self._before_truncation(offset, log_start=offset if log_start_offset is None else log_start_offset)
        gone = self._segments
        self._host.discard(self, gone[::-1], self._drop_snapshots(lambda at: True))
        self._active = Segment(
            self.files, self._pool, self.directory, offset,
            index_interval=self.config.index_interval_bytes, created_ms=now_ms, new=True,
        )  # fmt: skip
        self._segments = [self._active]
        self.files.sync_dir(self.directory)
        self.epochs.clear()
        self._ends_at(offset, now_ms)

    def _before_truncation(self, offset: int, log_start: int | None = None) -> None:
        self._generation += 1
        self.recovery_point = min(self.recovery_point, offset)
        self.cleaned_offset = min(self.cleaned_offset, offset)
        if log_start is not None:
            self.recovery_point, self.log_start_offset = offset, log_start
        self.log_start_offset = min(self.log_start_offset, offset)
        self._set_flush_at()
        self._host.before_truncation(self, offset, everything=log_start is not None)

    def _ends_at(self, offset: int, now_ms: int) -> None:
        self._positions = {}
        self._writeback_at = self._active.size + self._host.writeback_bytes
        self.log_end_offset = offset
        self.high_watermark = min(self.high_watermark, offset)
        self.epochs.truncate_end(offset)
        self._snapshots = rebuild_producers(
            self.files, self.directory, self._segments, self._snapshots, self.producer_state,
            end=offset, expired_before_ms=now_ms - self.producer_expiration_ms,
        )  # fmt: skip
        self.producer_state.on_high_watermark(self.high_watermark)

    # -- flushing and closing

    def flush_job(self) -> FlushJob | None:
        """What makes the log durable up to its present end: run it in a thread, then call `flushed` on the loop.
        None where nothing is unflushed."""
        if self.recovery_point >= self.log_end_offset and not self.epochs.changed and not self._unsynced:
            return None
        return self._guard("cannot write the indexes", self._flush_job)

    def _flush_job(self) -> FlushJob:
        first = reading.floor_segment(self._segments, self.recovery_point)
        unflushed = [segment for segment in self._segments[first:] if segment.size or segment.active]
        for segment in unflushed:
            segment.trim()
            segment.write_indexes()
        job = FlushJob(
            self.files, self.directory, self.log_end_offset, self._generation,
            [segment.file() for segment in unflushed],
            [path for segment in unflushed for path in segment.paths()[1:]] + sorted(self._unsynced),
            self.epochs.encode() if self.epochs.changed else None,
            sync_parent=not self._parent_synced,
        )  # fmt: skip
        self.epochs.changed = False
        self._unsynced = set()
        return job

    def flushed(self, job: FlushJob, *, now_ms: int = 0) -> None:
        """A flush job has run: the recovery point moves up, unless the log was truncated meanwhile."""
        self._parent_synced = True
        self.flushed_ms = now_ms
        if job.generation == self._generation and job.offset > self.recovery_point:
            self.recovery_point = job.offset
        self._set_flush_at()

    def flush_failed(self, error: OSError) -> StorageError:
        """After a failed sync nobody knows what is on disk, so the whole directory goes offline."""
        return self._failure("cannot flush", error)

    def flush(self) -> None:
        """Waits for the disk."""
        job = self.flush_job()
        if job is not None:
            self._guard("cannot flush", job.run)
            self.flushed(job)

    def _set_flush_at(self) -> None:
        self._flush_at = self.recovery_point + self.config.flush_messages

    def writeback_job(self) -> Callable[[], None] | None:
        """Starts writing out what was appended since the last time, so that dirty pages never pile up until the
        kernel stops the writer. Run it in a thread; it promises nothing."""
        step, segment = self._host.writeback_bytes, self._active
        begin, end = max(self._writeback_at - step, 0), segment.size
        if end <= begin or self.failed is not None:
            return None
        self._writeback_at = end + step
        return partial(segment.file().start_writeback, begin, end - begin)

    def close(self, *, clean: bool = True) -> None:
        """Waits for the disk. A clean close leaves nothing to recover: everything synced, producers saved."""
        if clean and self.failed is None:
            self._guard("cannot close", self._finish)
        for segment in self._segments:
            segment.close()

    def _finish(self) -> None:
        active = self._active
        active.trim()
        if active._time_index is not None or self.recovery_point < self.log_end_offset:
            active.time_index().maybe_append(*active.largest())
        self._take_snapshot(self.log_end_offset)
        self.flush()

    # -- compaction and moving

    def replace_segments(self, new: Sequence[int], old: Sequence[int]) -> None:
        """Put cleaned segments (files `<base>.*.cleaned`, or `.swap` after `stage_swap`) in the place of old ones."""
        from millstream.log.swapping import stage_swap

        self._guard("cannot stage compacted segments", stage_swap, self.files, self.directory, new)
        self._guard("cannot swap in compacted segments", self._swap, sorted(new), set(old))

    def _swap(self, new: list[int], old: set[int]) -> None:
        replaced = [segment for segment in self._segments if segment.base_offset in old]
        if self._active in replaced:
            raise ValueError(f"the active segment {self._active.base_offset} of {self.tp} cannot be replaced")
        # From here on a crash is completed by recovery, which finds the .swap files.
        self._host.discard(self, replaced, self._drop_snapshots(lambda at: at in old and at not in new))
        fresh = [
            Segment(
                self.files, self._pool, self.directory, base, index_interval=self.config.index_interval_bytes
            )
            for base in new
        ]
        for segment in fresh:
            segment.suffix = names.SWAP
            segment.rename("")
        kept = [segment for segment in self._segments if segment.base_offset not in old]
        self._segments = sorted((*kept, *fresh), key=lambda segment: segment.base_offset)
        self._positions = {}
        self._unsynced.add(self.directory)

    def moved_to(self, directory: str) -> None:
        """The directory was renamed."""
        self.directory = directory
        for segment in self._segments:
            segment.directory = directory
        self._unsynced = {os.path.join(directory, os.path.basename(path)) for path in self._unsynced}

    # -- failing

    def _guard(self, what: str, function: Callable[..., _T], *args: object) -> _T:
        if self.failed is not None:
            raise self.failed
        try:
            return function(*args)
        except OSError as error:
            raise self._failure(what, error) from error

    def _failure(self, what: str, error: OSError) -> StorageError:
        failure = StorageError(self.log_dir, f"{what} {self.tp}", error)
        self._host.storage_failed(self, failure)
        return failure

    def __repr__(self) -> str:
        return f"PartitionLog({self.directory}, {self.log_start_offset}..{self.log_end_offset})"
