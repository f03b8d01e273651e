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
from millstream.core.settings import LONG_MAX
from millstream.core.types import TopicPartition
from millstream.log import reading, truncation
from millstream.log.append import AppendResult, Origin, parse_produced, parse_replicated
from millstream.log.cleaner.swap import stage_swap
from millstream.log.config import LogConfig
from millstream.log.directories import file_names
from millstream.log.directories.checkpoints import format_partition_metadata
from millstream.log.errors import DamagedBatch, StorageError
from millstream.log.flushing import FlushJob, FlushPlan
from millstream.log.host import LogHost
from millstream.log.integrity.checksums import ChecksumFile, Checksums, Small
from millstream.log.integrity.verification import verified
from millstream.log.leader_epochs import LeaderEpochs
from millstream.log.producers.replay import apply_batch, apply_replicated, rebuild_producers
from millstream.log.producers.state import BatchMeta, ProducerState, Verification
from millstream.log.reading import ReadResult
from millstream.log.retention import deletable, deletion_end
from millstream.log.segments.open_files import OpenFiles
from millstream.log.segments.segment import Segment
from millstream.log.segments.segment_list import MAX_RELATIVE, LogFiles
from millstream.ports.files import Files, FileSlice
from millstream.wire.records.batch import BatchHeader, read_marker
from millstream.wire.records.layout import CONTROL, LEADER_EPOCH_AT, TRANSACTIONAL

logger = logging.getLogger(__name__)

__all__ = ["AppendResult", "Origin", "PartitionLog", "ReadResult"]

_BASE_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")
_T = TypeVar("_T")


class PartitionLog:
    """One partition's log. `recovery.load` opens one from its directory, `create` begins one."""

    __slots__ = (
        "__weakref__",
        "_flushes",
        "_local",
        "_name",
        "cleaned_offset",
        "config",
        "epochs",
        "failed",
        "files",
        "flushed_ms",
        "high_watermark",
        "host",
        "last_append_ms",
        "log_end_offset",
        "log_start_offset",
        "may_forget_deletions",
        "producer_expiration_ms",
        "producer_state",
        "recovery_point",
        "topic_id",
        "tp",
        "unfinished_cut",
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
        self.host = host
        self.files: Files = host.files
        self._local = LogFiles(host, pool, directory, config, segments, snapshots)
        self.tp = tp
        self._name = str(tp)
        self.config = config
        self.topic_id = topic_id
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.high_watermark = log_start_offset
        self.recovery_point = recovery_point
        self.cleaned_offset = -1  # compaction goes on here; -1: it has not begun
        self.may_forget_deletions = True  # not while a replica is away that may lack tombstones and markers
        self.epochs, self.producer_state = epochs, producer_state
        self.producer_expiration_ms = 24 * 3600 * 1000
        self.verify_transactions = False
        self.failed: StorageError | None = None
        self.unfinished_cut: truncation.Unfinished | None = None
        self.last_append_ms = 0
        self.flushed_ms = 0
        self._flushes = FlushPlan(host, parent_synced=not new)
        self._flushes.begin_segment(self._local.active.size)
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
        files = host.files
        try:
            files.makedirs(directory)
            metadata = os.path.join(directory, file_names.PARTITION_METADATA)
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
            log._local.unsynced.add(metadata)
        return log

    # -- what it is

    @property
    def directory(self) -> str:
        return self._local.directory

    @property
    def log_dir(self) -> str:
        """The data directory (one of log.dirs) that holds the partition's directory."""
        return os.path.dirname(self._local.directory)

    @property
    def checksum_file(self) -> ChecksumFile:
        return self._local.checksum_file

    @property
    def segments(self) -> list[Segment]:
        """From oldest to active; the list is never changed in place."""
        return self._local.segments

    @property
    def size(self) -> int:
        return self._local.size

    @property
    def durable_log_start(self) -> int:
        """What comes before it is not seen again, also after a crash."""
        start = self.log_start_offset
        return min(start, self.host.checkpointed_log_start(self)) if start else 0

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided and replicated. Never below the log start, even where an open
        transaction began before it."""
        unstable = self.producer_state.first_unstable_offset
        if unstable is None:
            return self.high_watermark
        return min(max(unstable, self.log_start_offset), self.high_watermark)

    @property
    def cleanable_end(self) -> int:
        """Compaction may touch what is below: closed, decided, replicated and flushed (recovery takes a gap above the
        recovery point for a loss)."""
        return min(self._local.active.base_offset, self.last_stable_offset, self.recovery_point)

    @property
    def flush_due(self) -> bool:
        """flush.messages is reached: acknowledge only after a flush."""
        return self.log_end_offset >= self._flushes.flush_at

    def ask_flush(self) -> None:
        self.host.flush_wanted(self)

    def update_config(self, config: LogConfig) -> None:
        self.config = config
        self._local.update_config(config)
        self._set_flush_at()
        if config.flush_ms != LONG_MAX:
            self.host.flush_by_time(self)

    def assign_topic_id(self, topic_id: uuid.UUID) -> None:
        """For a log that has none yet (a directory of a very old Kafka, or a lost partition.metadata)."""
        if self.topic_id == topic_id:
            return
        if self.topic_id is not None:
            raise ApiError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"{self.directory} belongs to the topic id {self.topic_id}, not {topic_id}",
            )
        data = format_partition_metadata(topic_id)
        self._guard("cannot name the topic of", self._local.write_small, file_names.PARTITION_METADATA, data)
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
            old = self._check_producer(header, records, origin, guard, transaction_version)
            if old is not None:
                offsets = (old.first_offset, old.last_offset, old.timestamp)
                return AppendResult(*offsets, self.log_start_offset, True, header.count)
        base_offset = self.log_end_offset
        last_offset = base_offset + header.last_offset_delta
        try:
            segment = self._segment_for(len(records), base_offset, last_offset, header.max_timestamp, now_ms)
            _BASE_OFFSET.pack_into(records, 0, base_offset)
            _LEADER_EPOCH.pack_into(records, LEADER_EPOCH_AT, leader_epoch)
            position = segment.write(records)
        except OSError as error:
            raise self.failure("cannot append", error) from error
        if header.producer_id >= 0:
            self._remember_producer(segment, position, header, base_offset, records)
        segment.note(position, len(records), last_offset, header.max_timestamp)
        self.log_end_offset = last_offset + 1
        self.last_append_ms = now_ms
        epochs = self.epochs.epochs
        if not epochs or epochs[-1] != leader_epoch:
            self.epochs.assign(leader_epoch, base_offset)
        flushes = self._flushes
        if segment._size >= flushes.attention_at or last_offset + 1 >= flushes.flush_at:
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
        if header.attributes & CONTROL:
            marker = read_marker(records)
            if marker is not None:
                state.check_marker(header, marker, transaction_version)
            return None
        repeated = state.check(header, origin)
        if repeated is None and header.attributes & TRANSACTIONAL and self.verify_transactions:
            state.check_verified(header, guard)
        return repeated

    def _remember_producer(
        self, segment: Segment, position: int, header: BatchHeader, base_offset: int, records: memoryview
    ) -> None:
        if not header.attributes & CONTROL:
            self.producer_state.apply(header, base_offset)
            return
        try:
            apply_batch(self.producer_state, segment, header._replace(base_offset=base_offset), records)
        except OSError as error:
            # The marker without its entry in the transaction index would show aborted records: take it back.
            segment.unwrite(position)
            raise self.failure("cannot write the transaction index", error) from error

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
            raise self.failure("cannot append", error) from error
        try:
            apply_replicated(self.producer_state, self.epochs, segment, position, headers, records)
        except OSError as error:
            truncation.do(self, partial(self._truncate, first, now_ms))
            raise self.failure("cannot write the transaction index", error) from error
        self.log_end_offset = last + 1
        self.last_append_ms = now_ms
        if segment.size >= self._flushes.attention_at or last + 1 >= self._flushes.flush_at:
            self._note_progress(segment)
        count = sum(header.count for header in headers)
        return AppendResult(first, last, -1, self.log_start_offset, False, count)

    def _note_progress(self, segment: Segment) -> None:
        if segment.size >= self._flushes.attention_at:
            self.host.writeback_due(self)
        if self._flushes.wants_flush(segment.size) or self.flush_due:
            self.host.flush_wanted(self)

    # -- rolling

    def _segment_for(
        self, size: int, first_offset: int, last_offset: int, timestamp: int, now_ms: int
    ) -> Segment:
        """The segment to append to; rolls where the batch does not fit the active one."""
        local = self._local
        if not local.fits(size, last_offset, timestamp, now_ms):
            # Named by the end of the log even where replicated batches leave a gap: so a gap between two segments
            # always means that something was lost. Only a gap too wide for an index forces the batch's own offset.
            base_offset = self.log_end_offset
            if last_offset - base_offset > MAX_RELATIVE:
                base_offset = first_offset
            self._roll(base_offset, now_ms)
        return local.active

    def roll(self, *, now_ms: int) -> None:
        """Begin a new segment, unless the active one is empty."""
        self._guard("cannot roll", self._roll, self.log_end_offset, now_ms)

    def _roll(self, base_offset: int, now_ms: int) -> None:
        if self._local.roll(base_offset, self.producer_state.snapshot(), now_ms):
            self._flushes.begin_segment(0)
            self.host.flush_wanted(self)

    # -- reading

    def read(
        self, offset: int, max_bytes: int, *, upto: int, at_least_one: bool = True, may_block: bool = True
    ) -> ReadResult:
        """Whole batches from the one that holds `offset`, every one of them ending below `upto`. Raises
        ApiError(OFFSET_OUT_OF_RANGE); with may_block=False also ColdRead, where the disk would have to be waited for:
        then do it again in a thread, with may_block=True."""
        end = self.log_end_offset
        if offset < self.log_start_offset or offset > end:
            raise reading.out_of_range(self.tp, offset, self.log_start_offset, end)
        if self.failed is not None:
            raise self.failed
        if upto > end:
            upto = end
        if offset >= upto:
            return ReadResult(None, 0, offset)
        segments = self._local.segments
        try:
            segment = self._local.active
            if offset < segment.base_offset:
                return reading.read_older(
                    segments, offset, max_bytes, upto, at_least_one, end, may_block, self._local.positions
                )
            span = segment.span(offset, max_bytes, upto, at_least_one, end, may_block)
            if span is None or span.end == span.start:
                return ReadResult(None, 0, offset)
            if segment.unchecked is not None:
                span = verified(segment, span, may_block)
            length = span.end - span.start
            return ReadResult(FileSlice(segment.file(), span.start, length), length, span.end_offset)
        except (OSError, DamagedBatch) as error:
            if self._local.replaced(segments):
                return self.read(offset, max_bytes, upto=upto, at_least_one=at_least_one, may_block=may_block)
            raise self._unreadable("cannot read", error) from error

    def timestamp_search(self, timestamp: int | None) -> Callable[[], tuple[int, int] | None]:
        """A search to be run in a thread (it may wait, and decode records): (timestamp, offset) of the first record at
        or after a time, or, for None, of the one with the largest timestamp."""

        def search(segments: list[Segment]) -> tuple[int, int] | None:
            if timestamp is None:
                return reading.largest_timestamp(segments)
            return reading.offset_for_timestamp(segments, timestamp, self.log_start_offset)

        return partial(self._search, search)

    def _search(self, search: Callable[[list[Segment]], _T]) -> _T:
        segments = self._local.segments
        try:
            return search(segments)
        except (OSError, DamagedBatch) as error:
            if self._local.replaced(segments):
                return self._search(search)
            raise self._unreadable("cannot search", error) from error

    def _unreadable(self, what: str, error: OSError | DamagedBatch) -> ApiError:
        if self.failed is not None:
            return self.failed
        return (
            self.failure(what, error) if isinstance(error, OSError) else self.host.damage_found(self, error)
        )

    def aborted_transactions(self, first_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of aborted transactions that touch the range, by first offset."""
        found = self._search(lambda s: reading.aborted_transactions(s, first_offset, end_offset))
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
        self.advance_log_start(deletion_end(self.tp, self.config, before_offset, self.high_watermark))
        return self.log_start_offset

    def advance_log_start(self, offset: int) -> bool:
        """Forward only; followers use it with their leader's log start."""
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.high_watermark = max(self.high_watermark, offset)
        self.epochs.truncate_start(offset)
        self.producer_state.on_high_watermark(self.high_watermark)
        return True

    def delete_old_segments(self, now_ms: int) -> int:
        """Apply retention; how many segments went. Their files go later, when nobody reads them any more."""
        find = partial(
            deletable, self.segments, self.config, log_start=self.log_start_offset,
            high_watermark=self.high_watermark, end=self.log_end_offset, now_ms=now_ms,
        )  # fmt: skip
        count = self._guard("cannot look at the segments", find)
        if not count:
            return 0
        if count == len(self.segments):
            self.roll(now_ms=now_ms)
        first = self.segments[count].base_offset
        self.advance_log_start(first)
        logger.info("%s: retention deletes %d segments below offset %d", self.tp, count, first)
        self._guard("cannot delete segments of", self._local.drop_oldest, count)
        return count

    def expire_producers(self, now_ms: int) -> int:
        return self.producer_state.expire(now_ms, self.producer_expiration_ms)

    # -- truncating

    def truncate_to(self, offset: int, *, now_ms: int = 0) -> bool:
        """Drop what is at or after the offset, as a follower does whose tail the leader never had. A batch that holds
        the offset goes whole: the log ends with the last batch before it. Waits for the disk."""
        if offset >= self.log_end_offset:
            self.epochs.truncate_end(self.log_end_offset)
            return False
        self.host.check_truncation(self, offset)
        if offset < self.high_watermark:
            logger.warning(
                "%s: truncating to %d, below the high watermark %d", self.tp, offset, self.high_watermark
            )
        truncation.do(self, partial(self._truncate, offset, now_ms))
        return True

    def _truncate(self, offset: int, now_ms: int) -> None:
        end = self._local.end_if_truncated(offset)
        if end is None or end < self.log_start_offset:
            # Nothing that can be read is left.
            self.truncate_fully_and_start_at(min(offset, self.log_start_offset), now_ms=now_ms)
            return
        truncation.do(self, partial(self._truncate_within, offset, end, now_ms))

    def _truncate_within(self, offset: int, end: int, now_ms: int) -> None:
        self._before_truncation(end)
        self._local.truncate(offset, end)
        self._ends_at(end, now_ms)

    def truncate_fully_and_start_at(
        self, offset: int, *, log_start_offset: int | None = None, now_ms: int = 0
    ) -> None:
        """Drop everything; the log goes on at the offset."""
        self.host.check_truncation(self, offset)
        truncation.do(self, partial(self._truncate_fully, offset, log_start_offset, now_ms))

    def _truncate_fully(self, offset: int, log_start_offset: int | None, now_ms: int) -> None:
        self._before_truncation(offset, log_start=offset if log_start_offset is None else log_start_offset)
        self.epochs.clear()
        self._local.start_over(offset, now_ms)
        self._ends_at(offset, now_ms)

    def _before_truncation(self, offset: int, log_start: int | None = None) -> None:
        self._flushes.interrupt()
        self.recovery_point = min(self.recovery_point, offset)
        self.cleaned_offset = min(self.cleaned_offset, offset)
        if log_start is not None:
            self.recovery_point, self.log_start_offset = offset, log_start
        self.log_start_offset = min(self.log_start_offset, offset)
        self._set_flush_at()
        self.log_end_offset = offset  # from now on: nobody may count on what is about to go
        self.high_watermark = min(self.high_watermark, offset)
        self.epochs.truncate_end(offset)
        self.host.before_truncation(self, offset, everything=log_start is not None)

    def _ends_at(self, offset: int, now_ms: int) -> None:
        self._flushes.begin_segment(self._local.active.size)
        local = self._local
        local.snapshots = rebuild_producers(
            self.files, self.directory, local.segments, local.snapshots, self.producer_state,
            end=offset, expired_before_ms=now_ms - self.producer_expiration_ms,
        )  # fmt: skip
        self.producer_state.on_high_watermark(self.high_watermark)

    # -- flushing and closing

    def is_flushed(self, offset: int) -> bool:
        """Whether all before the offset is durable, and the directory that it is in."""
        return self.recovery_point >= min(offset, self.log_end_offset) and self._flushes.parent_synced

    def flush_job(self) -> FlushJob | None:
        """What makes the log durable up to its present end: run it in a thread, then call `flushed` on the loop.
        None where nothing is unflushed."""
        epochs = self.epochs.take_unsaved(self.log_end_offset) if self.epochs.changed else None
        idle = epochs is None and not self._local.unsynced and self.is_flushed(self.log_end_offset)
        checksums = self.unsaved_checksums() if idle and self._local.closing else None
        if idle and checksums is None:
            return None
        try:
            return self._guard("cannot write the indexes", self._flush_job, epochs, checksums)
        except StorageError:
            self.epochs.not_saved()
            raise

    def unsaved_checksums(self) -> Checksums | None:
        """What `index-checksums` should say, if it says something else."""
        return self._local.unsaved_checksums(self.generation, Small(self.epochs.saved, self.topic_id))

    def _flush_job(self, epochs: bytes | None, checksums: Checksums | None) -> FlushJob:
        local, flushes = self._local, self._flushes
        if flushes.wants_snapshot(local.active.size):
            local.take_snapshot(self.log_end_offset, self.producer_state.snapshot(), replace=True)
        recent = local.segments[local.floor(self.recovery_point) :]
        unflushed = [segment for segment in recent if segment.size or segment.active]
        for segment in unflushed:
            segment.trim()
            segment.write_indexes()
        job = FlushJob(
            self.files, self.directory, self.log_end_offset, flushes.generation,
            [segment.file() for segment in unflushed],
            [path for segment in unflushed for path in segment.paths()[1:]] + sorted(local.unsynced),
            epochs, checksums or self.unsaved_checksums(), local.checksum_file, sync_parent=not flushes.parent_synced,
        )  # fmt: skip
        local.unsynced = set()
        return job

    def flushed(self, job: FlushJob, *, now_ms: int = 0) -> None:
        """A flush job has run: the recovery point moves up, unless the log was truncated or moved meanwhile."""
        self.flushed_ms = now_ms
        if job.generation == self._flushes.generation:
            self._flushes.parent_synced = True
            self.recovery_point = max(self.recovery_point, job.offset)
        self._set_flush_at()

    def not_flushed(self, job: FlushJob) -> None:
        """The job did not come to its end: what it should have synced is to be synced still."""
        self._local.unsynced.update(job.paths)
        if job.epochs is not None:
            self.epochs.not_saved()
        if job.checksums is not None:
            self._local.checksums_not_saved()

    def flush_failed(self, job: FlushJob, error: OSError) -> StorageError:
        """Unless the disk was only full the directory goes offline: after a failed sync nobody knows what is on it."""
        self.not_flushed(job)
        return self.failure("cannot flush", error)

    def flush(self) -> None:
        """Waits for the disk."""
        job = self.flush_job()
        if job is not None:
            try:
                job.run()
            except OSError as error:
                raise self.flush_failed(job, error) from error
            self.flushed(job)

    def _set_flush_at(self) -> None:
        self._flushes.flush_at = self.recovery_point + self.config.flush_messages

    def writeback_job(self) -> Callable[[], None] | None:
        """Begins to write out what was appended lately. For a thread; it promises nothing."""
        return None if self.failed is not None else self._flushes.writeback_job(self._local.active)

    def close(self, *, clean: bool = True) -> None:
        """Waits for the disk. A clean close leaves nothing to recover: everything synced, producers saved."""
        if clean and self.failed is None:
            self.finish()
            self.flush()
        self._local.close()

    def finish(self) -> None:
        """Write, but do not sync, what a clean shutdown leaves behind; `flush_job` syncs it."""
        self._guard("cannot close", self._finish)

    def _finish(self) -> None:
        active, self._local.closing = self._local.active, True
        active.trim()
        if active.is_loaded or self.recovery_point < self.log_end_offset:
            active.time_index().maybe_append(*active.largest())
        self._local.take_snapshot(self.log_end_offset, self.producer_state.snapshot())

    # -- compaction and moving

    def replace_segments(self, new: Sequence[int], old: Sequence[int]) -> None:
        """Put cleaned segments (files `<base>.*.cleaned`, or `.swap` after `stage_swap`) in the place of old ones."""
        # Half done, old files would go that are still read, and new ones take the place of whatever there is at the next start.
        truncation.do(self, partial(self._swap, new, set(old)), what="cannot swap in compacted segments of")

    def _swap(self, new: Sequence[int], old: set[int]) -> None:
        self.checksum_file.suspend()
        stage_swap(self.files, self.directory, new, self.checksum_file)
        self._local.swap(new, old)
        self.host.flush_wanted(self)

    def moved_to(self, directory: str) -> None:
        self._local.moved_to(directory)

    @property
    def generation(self) -> int:
        """Another one after every truncation and move."""
        return self._flushes.generation

    def relocate(self, directory: str, *, synced_below: int) -> None:
        """Go on in a whole copy of the files, of which segments below an offset are synced."""
        self._flushes.interrupt()
        self.recovery_point = min(self.recovery_point, synced_below)
        self._local.relocate(directory, snapshot=self.log_end_offset)
        self.epochs.not_saved()
        self._flushes.parent_synced = False
        self._flushes.begin_segment(self._local.active.size)
        self._set_flush_at()

    # -- failing

    def _guard(self, what: str, function: Callable[..., _T], *args: object) -> _T:
        if self.failed is not None:
            raise self.failed
        try:
            return function(*args)
        except OSError as error:
            raise self.failure(what, error) from error

    def failure(self, what: str, error: OSError) -> StorageError:
        failure = StorageError(self.log_dir, f"{what} {self.tp}", error)
        self.host.storage_failed(self, failure)
        return failure

    def __repr__(self) -> str:
        return f"PartitionLog({self.directory}, {self.log_start_offset}..{self.log_end_offset})"
