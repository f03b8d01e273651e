"""The log of one partition: appending and reading, and the entry points of all other operations.

Everything runs on the event loop's thread and returns at once, except methods whose docstring says
that they wait for the disk; those may run in a thread (`read` with may_block, `timestamp_search`,
`close`). An append is written to the page cache before it is acknowledged, so it survives the death
of the process. Everything below `recovery_point` also survives the death of the machine.
"""

from __future__ import annotations

import logging
import os
import struct
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from millstream.core.errors import ApiError, ErrorCode
from millstream.core.settings import LONG_MAX
from millstream.core.types import TopicPartition
from millstream.log import reading
from millstream.log.append import AppendResult, Origin, parse_produced, parse_replicated
from millstream.log.config import LogConfig
from millstream.log.directories import file_names
from millstream.log.directories.checkpoints import format_partition_metadata
from millstream.log.errors import DamagedBatch, StorageError
from millstream.log.flush.job import finish, flush
from millstream.log.integrity.verification import verified
from millstream.log.leader_epochs import LeaderEpochs
from millstream.log.producers.replay import apply_batch, apply_replicated
from millstream.log.producers.state import BatchMeta, ProducerState, Verification
from millstream.log.reading import LogSearch, ReadResult
from millstream.log.retention import deletable, deletion_end
from millstream.log.segments.open_files import OpenFiles
from millstream.log.segments.roll_policy import MAX_RELATIVE
from millstream.log.segments.segment import Segment
from millstream.log.segments.segment_list import SegmentList
from millstream.log.state import LogServices, LogState
from millstream.log.truncation import SegmentSwap, Truncation, truncate_fully
from millstream.ports.files import FileSlice
from millstream.wire.records.batch import BatchHeader, read_marker
from millstream.wire.records.layout import CONTROL, LEADER_EPOCH_AT, TRANSACTIONAL

logger = logging.getLogger(__name__)

__all__ = ["AppendResult", "Origin", "PartitionLog", "ReadResult"]

_BASE_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")


class PartitionLog(LogState):
    """One partition's log. `recovery.opening.load` opens one, `create` creates one."""

    __slots__ = ()

    @classmethod
    def create(
        cls,
        host: LogServices,
        pool: OpenFiles,
        directory: str,
        tp: TopicPartition,
        config: LogConfig,
        *,
        topic_id: uuid.UUID | None = None,
        start_offset: int = 0,
        now_ms: int = 0,
    ) -> PartitionLog:
        """Create the directory, and an empty log in it."""
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
            raise StorageError(
                os.path.dirname(directory), f"cannot create the log of {tp}", error
            ) from error
        log = cls(
            host, SegmentList(files, host, pool, directory, config, [segment], []), tp, config, topic_id=topic_id,
            log_start_offset=start_offset, log_end_offset=start_offset, recovery_point=start_offset,
            epochs=LeaderEpochs(), producer_state=ProducerState(str(tp), start_offset), new=True,
        )  # fmt: skip
        if topic_id is not None:
            log.segment_list.unsynced.add(metadata)
        return log

    def update_config(self, config: LogConfig) -> None:
        self.config = config
        self.segment_list.update_config(config)
        self.set_flush_at()
        if config.flush_ms != LONG_MAX:
            self.host.flush_by_time(self)

    def assign_topic_id(self, topic_id: uuid.UUID) -> None:
        """Set the topic id of a log without one.

        It is of a very old Kafka, or lost its partition.metadata.
        """
        if self.topic_id == topic_id:
            return
        if self.topic_id is not None:
            raise ApiError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"{self.directory} belongs to the topic id {self.topic_id}, not {topic_id}",
            )
        data = format_partition_metadata(topic_id)
        write = self.segment_list.write_small
        self.guard("cannot name the topic of", write, file_names.PARTITION_METADATA, data)
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
        """Check and write. Raises ApiError.

        A client or coordinator appends one batch, whose offsets and leader epoch are stamped in
        place (so `records` must be writable); a replica appends whole batches as they are.
        """
        if self.failed is not None:
            raise self.failed
        if origin is Origin.REPLICATION:
            return self._append_replicated(records, leader_epoch, now_ms)
        header = parse_produced(records, self.config, origin, now_ms, self.name)
        if header.producer_id >= 0:
            old = self._check_producer(header, records, origin, guard, transaction_version)
            if old is not None:
                offsets = (old.first_offset, old.last_offset, old.timestamp)
                return AppendResult(*offsets, self.log_start_offset, True, header.count)
        base_offset = self.log_end_offset
        last_offset = base_offset + header.last_offset_delta
        try:
            segment = self._segment_for(
                len(records), base_offset, last_offset, header.max_timestamp, now_ms
            )
            _BASE_OFFSET.pack_into(records, 0, base_offset)
            _LEADER_EPOCH.pack_into(records, LEADER_EPOCH_AT, leader_epoch)
            position = segment.write(records)
        except OSError as error:
            raise self.failure("cannot append", error) from error
        if header.producer_id >= 0:
            self._remember_producer(segment, position, header, base_offset, records)
        segment.index.note(position, len(records), last_offset, header.max_timestamp)
        self.log_end_offset = last_offset + 1
        self.last_append_ms = now_ms
        epochs = self.epochs.epochs
        if not epochs or epochs[-1] != leader_epoch:
            self.epochs.assign(leader_epoch, base_offset)
        flushes = self.flushes
        if (
            segment.log_file.known_size >= flushes.attention_at
            or last_offset + 1 >= flushes.flush_at
        ):
            self._note_progress(segment)
        append_time = header.max_timestamp if header.attributes & 8 else -1
        return AppendResult(
            base_offset, last_offset, append_time, self.log_start_offset, False, header.count
        )

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
        self,
        segment: Segment,
        position: int,
        header: BatchHeader,
        base_offset: int,
        records: memoryview,
    ) -> None:
        if not header.attributes & CONTROL:
            self.producer_state.apply(header, base_offset)
            return
        try:
            apply_batch(
                self.producer_state, segment, header._replace(base_offset=base_offset), records
            )
        except OSError as error:
            # A marker without its entry in the transaction index would expose aborted records.
            segment.log_file.unwrite(position)
            raise self.failure("cannot write the transaction index", error) from error

    def _append_replicated(
        self, records: memoryview, leader_epoch: int, now_ms: int
    ) -> AppendResult:
        headers = parse_replicated(records, self.log_end_offset, leader_epoch, self.name)
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
            Truncation(self, first, now_ms).run()
            raise self.failure("cannot write the transaction index", error) from error
        self.log_end_offset = last + 1
        self.last_append_ms = now_ms
        if segment.size >= self.flushes.attention_at or last + 1 >= self.flushes.flush_at:
            self._note_progress(segment)
        count = sum(header.count for header in headers)
        return AppendResult(first, last, -1, self.log_start_offset, False, count)

    def _note_progress(self, segment: Segment) -> None:
        size = segment.log_file.known_size
        if size >= self.flushes.attention_at:
            self.host.writeback_due(self)
        if self.flushes.wants_flush(size) or self.flush_due:
            self.host.flush_wanted(self)

    # -- rolling

    def _segment_for(
        self, size: int, first_offset: int, last_offset: int, timestamp: int, now_ms: int
    ) -> Segment:
        """Return the segment to append to. Roll if the batch does not fit the active one."""
        segment_list = self.segment_list
        if not segment_list.fits(size, last_offset, timestamp, now_ms):
            # Name it by the end of the log even if replicated batches leave a gap: a gap between
            # segments means a loss. Only a gap too wide for an index needs the batch's offset.
            base_offset = self.log_end_offset
            if last_offset - base_offset > MAX_RELATIVE:
                base_offset = first_offset
            self._roll(base_offset, now_ms)
        return segment_list.active

    def roll(self, *, now_ms: int) -> None:
        """Begin a new segment, unless the active one is empty."""
        self.guard("cannot roll", self._roll, self.log_end_offset, now_ms)

    def _roll(self, base_offset: int, now_ms: int) -> None:
        if self.segment_list.roll(base_offset, self.producer_state.snapshot(), now_ms):
            self.flushes.begin_segment(0)
            self.host.flush_wanted(self)

    # -- reading

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        upto: int,
        at_least_one: bool = True,
        may_block: bool = True,
    ) -> ReadResult:
        """Return whole batches that end below `upto`, from the batch that holds `offset` on.

        Raises ApiError(OFFSET_OUT_OF_RANGE). With may_block=False it raises ColdRead instead of
        waiting for the disk: call it again in a thread, with may_block=True.
        """
        end = self.log_end_offset
        if offset < self.log_start_offset or offset > end:
            raise reading.out_of_range(self.tp, offset, self.log_start_offset, end)
        if self.failed is not None:
            raise self.failed
        if upto > end:
            upto = end
        if offset >= upto:
            return ReadResult(None, 0, offset)
        segments = self.segment_list.segments
        try:
            segment = self.segment_list.active
            if offset < segment.base_offset:
                return reading.read_older(
                    segments,
                    offset,
                    max_bytes,
                    upto,
                    at_least_one,
                    end,
                    may_block,
                    self.segment_list.positions,
                )
            span = segment.span(offset, max_bytes, upto, at_least_one, end, may_block)
            if span is None or span.end == span.start:
                return ReadResult(None, 0, offset)
            if segment.unchecked is not None:
                span = verified(segment, span, may_block)
            length = span.end - span.start
            return ReadResult(
                FileSlice(segment.log_file.file(), span.start, length), length, span.end_offset
            )
        except (OSError, DamagedBatch) as error:
            if self.segment_list.replaced(segments):
                return self.read(
                    offset, max_bytes, upto=upto, at_least_one=at_least_one, may_block=may_block
                )
            raise self.unreadable("cannot read", error) from error

    def timestamp_search(self, timestamp: int | None) -> Callable[[], tuple[int, int] | None]:
        """Return a search by time for a thread; see `LogSearch.by_timestamp`."""
        return LogSearch(self).by_timestamp(timestamp)

    def aborted_transactions(self, first_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """Return (producer id, first offset) of the aborted transactions in a range, sorted."""
        return LogSearch(self).aborted_transactions(first_offset, end_offset)

    # -- retention

    def delete_records(self, before_offset: int) -> int:
        """Move the log start up to an offset (-1: the high watermark). Return the log start.

        The caller waits for the log-start checkpoint before it answers.
        """
        self.advance_log_start(
            deletion_end(self.tp, self.config, before_offset, self.high_watermark)
        )
        return self.log_start_offset

    def delete_old_segments(self, now_ms: int) -> int:
        """Apply retention. Return the number of segments dropped; their files are deleted later."""
        find = partial(
            deletable, self.segments, self.config, log_start=self.log_start_offset,
            high_watermark=self.high_watermark, end=self.log_end_offset, now_ms=now_ms,
        )  # fmt: skip
        count = self.guard("cannot look at the segments", find)
        if not count:
            return 0
        if count == len(self.segments):
            self.roll(now_ms=now_ms)
        first = self.segments[count].base_offset
        self.advance_log_start(first)
        logger.info("%s: retention deletes %d segments below offset %d", self.tp, count, first)
        self.guard("cannot delete segments of", self.segment_list.drop_oldest, count)
        return count

    # -- truncating

    def truncate_to(self, offset: int, *, now_ms: int = 0) -> bool:
        """Drop everything at or after the offset: a follower's tail that the leader never had.

        A batch that holds the offset goes whole, so the log ends with the last batch before it.
        Return whether anything was dropped. Waits for the disk.
        """
        if offset >= self.log_end_offset:
            self.epochs.truncate_end(self.log_end_offset)
            return False
        self.host.check_truncation(self, offset)
        if offset < self.high_watermark:
            logger.warning(
                "%s: truncating to %d, below the high watermark %d",
                self.tp,
                offset,
                self.high_watermark,
            )
        Truncation(self, offset, now_ms).run()
        return True

    def truncate_fully_and_start_at(
        self, offset: int, *, log_start_offset: int | None = None, now_ms: int = 0
    ) -> None:
        """Drop everything; the log continues at the offset. Waits for the disk."""
        truncate_fully(self, offset, log_start_offset, now_ms)

    # -- compaction and relocation

    def replace_segments(self, new: Sequence[int], old: Sequence[int]) -> None:
        """Put cleaned segments, named by their base offsets, in the place of old ones."""
        SegmentSwap(self, new, set(old)).run()

    def relocate(self, directory: str, *, synced_below: int) -> None:
        """Continue in a complete copy of the files, whose segments below an offset are synced."""
        self.flushes.interrupt()
        self.recovery_point = min(self.recovery_point, synced_below)
        self.segment_list.relocate(directory, snapshot=self.log_end_offset)
        self.epochs.not_saved()
        self.flushes.parent_synced = False
        self.flushes.begin_segment(self.segment_list.active.size)
        self.set_flush_at()

    # -- flushing and closing

    def ask_flush(self) -> None:
        self.host.flush_wanted(self)

    def flush(self) -> None:
        """Make the log durable up to its present end. Waits for the disk."""
        flush(self)

    def close(self, *, clean: bool = True) -> None:
        """Close the files. Waits for the disk.

        A clean close leaves nothing to recover: everything is synced, the producers are saved.
        """
        if clean and self.failed is None:
            finish(self)
            flush(self)
        self.segment_list.close()
