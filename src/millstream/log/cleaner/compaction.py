"""Log compaction: of the records with the same key only the last is kept (Kafka's Cleaner).

A round reads the log twice. The first pass collects the latest offset of every key in the dirty
section, as far as its buffer allows. The second pass rewrites the log from its start, in groups of
segments that fit into one. It drops what the map, the delete horizons and the aborted transactions
allow.

A round runs in a child process: `begin` builds the map and returns the groups. `clean_group` writes
the `.cleaned` files of one group, which the parent swaps in before it requests the next. So a round
never needs more spare disk than one segment. Nothing here touches a live file.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from millstream.log.cleaner.batch_filter import BatchFilter, Kept, body_of, key_columns
from millstream.log.cleaner.job import (
    UNLIMITED,
    CleanedFile,
    CleanedGroup,
    CleanJob,
    CleanPlan,
    CleanStats,
    NoRound,
    SourceSegment,
)
from millstream.log.cleaner.offset_map import OffsetMap, from_offset
from millstream.log.cleaner.segment_writer import INT_MAX, CleanedSegment, scan_batches
from millstream.log.cleaner.transactions import CleanedTransactions
from millstream.log.directories import file_names
from millstream.log.segments import transaction_index
from millstream.log.segments.offset_index import OffsetIndex
from millstream.log.segments.transaction_index import AbortedTransaction
from millstream.ports.files import Files, RealFiles
from millstream.wire.records import payload_fast
from millstream.wire.records.batch import BatchHeader, CorruptBatch, parse_header
from millstream.wire.records.payload import decode_key_columns, decode_keys

_MIN_SLEEP_S: Final = 0.01
_FAST_BYTES: Final = 4 << 20  # from this size on, importing the C extension (0.1 s) pays off
_MAX_GROUP: Final = 100  # segments: the parent renames their files in one step, at about 15 us each


class Throttle:
    """Limits the bytes read and written per second (log.cleaner.io.max.bytes.per.second)."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._due = time.monotonic()

    def spend(self, count: int) -> None:
        if self._bytes_per_s == UNLIMITED:
            return
        now = time.monotonic()
        self._due = max(self._due, now - 1.0) + count / self._bytes_per_s
        if self._due - now > _MIN_SLEEP_S:
            time.sleep(self._due - now)


class Compaction:
    """A round in progress."""

    def __init__(self, job: CleanJob, files: Files) -> None:
        self.job = job
        self.files = files
        self.stats = CleanStats()
        self._throttle = Throttle(job.io_max_bytes_per_s)
        self._plain = True  # whether all offsets of records are within those of their headers
        self._fast = _is_large(job) and payload_fast.available()
        self._aborted = list(self._aborted_transactions())
        self._latest = OffsetMap(job.dedupe_buffer_bytes, job.load_factor)
        started = time.monotonic()
        self._build_map()
        self.stats.map_seconds = time.monotonic() - started
        self.stats.map_keys, self.stats.map_capacity = len(self._latest), self._latest.capacity
        self.groups = self._groups()
        self._filter = BatchFilter(
            job.rules,
            self._latest,
            CleanedTransactions(self._aborted),
            payload_fast.decode_keys if self._fast else decode_keys,
            job.first_dirty_offset if self._plain else None,
        )

    @property
    def end_offset(self) -> int:
        return self._latest.latest_offset + 1

    def _path(self, base_offset: int, kind: str) -> str:
        return os.path.join(self.job.directory, file_names.segment_name(base_offset) + kind)

    def _aborted_transactions(self) -> Iterator[AbortedTransaction]:
        """Yield the aborted transactions that overlap the range to clean.

        A marker may lie segments after the data it aborts.
        """
        end_offset = self.job.rules.end_offset
        for base_offset in (
            *(segment.base_offset for segment in self.job.segments),
            *self.job.later,
        ):
            try:
                data = self.files.read_bytes(self._path(base_offset, file_names.TRANSACTION_INDEX))
            except FileNotFoundError:
                continue
            yield from (
                entry for entry in transaction_index.parse(data) if entry.first_offset < end_offset
            )

    # -- first pass

    def _build_map(self) -> None:
        job, latest = self.job, self._latest
        latest.latest_offset = job.first_dirty_offset - 1
        transactions = CleanedTransactions(
            e for e in self._aborted if e.last_offset >= job.first_dirty_offset
        )
        ends = [segment.base_offset for segment in job.segments[1:]] + [job.rules.end_offset]
        for segment, end in zip(job.segments, ends, strict=False):
            if end <= job.first_dirty_offset:
                continue
            if not self._map_segment(segment, transactions):
                return
            latest.latest_offset = end - 1  # also if the last offsets are gaps

    def _map_segment(self, segment: SourceSegment, transactions: CleanedTransactions) -> bool:
        """Add the keys of a segment. Return False if the map is full."""
        position = self._position_of(segment, self.job.first_dirty_offset)
        first, latest = self.job.first_dirty_offset, self._latest
        decode = payload_fast.decode_key_columns if self._fast else decode_key_columns
        for header, batch in self._read(segment, position):
            self.stats.map_bytes_read += header.size
            self.stats.map_records_read += header.count
            if header.control:
                continue  # the index entry has the end of a transaction
            if not transactions.on_data(header) and header.count and header.last_offset >= first:
                body = body_of(header, batch, self.job.rules.max_decompressed_bytes)
                columns = key_columns(header, body, decode)
                if header.base_offset < first:
                    columns = from_offset(first, columns)
                self._plain = self._plain and columns.inside
                if not latest.add(columns.offsets, columns.keys):
                    return False
            if header.last_offset >= first:
                latest.latest_offset = header.last_offset
        return True

    def _position_of(self, segment: SourceSegment, offset: int) -> int:
        """Return the position of the dirty section in its first segment."""
        if offset <= segment.base_offset:
            return 0
        try:
            data = self.files.read_bytes(self._path(segment.base_offset, file_names.OFFSET_INDEX))
        except FileNotFoundError:
            return 0
        position = OffsetIndex.parse(data, segment.base_offset).position_of(offset)
        if not 0 < position < segment.size:
            return 0
        # The index is not verified, and records skipped here would count as superseded.
        try:
            header, _ = next(self._read(segment, position))
        except CorruptBatch:
            return 0
        return position if header.base_offset <= offset else 0

    def _read(
        self, segment: SourceSegment, position: int = 0
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        file = self.files.open(self._path(segment.base_offset, file_names.LOG))
        try:
            for header, batch in scan_batches(
                file, position, segment.size, self.job.io_buffer_bytes
            ):
                self._throttle.spend(header.size)
                yield header, batch
        finally:
            file.close()

    # -- second pass

    def _groups(self) -> list[list[SourceSegment]]:
        return group_segments(
            [segment for segment in self.job.segments if segment.base_offset < self.end_offset],
            [self._index_sizes(segment.base_offset) for segment in self.job.segments],
            self.job,
        )

    def _index_sizes(self, base_offset: int) -> tuple[int, int]:
        return self._size(base_offset, file_names.OFFSET_INDEX), self._size(
            base_offset, file_names.TIME_INDEX
        )

    def _size(self, base_offset: int, kind: str) -> int:
        try:
            return self.files.size(self._path(base_offset, kind))
        except FileNotFoundError:
            return 0

    def clean_group(self, number: int) -> CleanedGroup:
        """Write the `.cleaned` files of a group. Each group once, in order."""
        started = time.monotonic()
        group = self.groups[number]
        written = [self._new_segment(group[0].base_offset)]
        for segment in group:
            for header, batch in self._read(segment):
                self.stats.bytes_read += header.size
                self.stats.records_read += header.count
                kept = self._filter.keep(header, batch)
                if kept is not None:
                    self._write(written, header, kept)
        modified_ms = self.files.modified_ms(self._path(group[-1].base_offset, file_names.LOG))
        for cleaned in written:
            cleaned.finish(modified_ms)
        self.stats.clean_seconds += time.monotonic() - started
        old = tuple(segment.base_offset for segment in group)
        return CleanedGroup(
            old, tuple(CleanedFile(cleaned.base_offset, cleaned.size) for cleaned in written)
        )

    def _new_segment(self, base_offset: int) -> CleanedSegment:
        job = self.job
        return CleanedSegment(
            self.files,
            job.directory,
            base_offset,
            index_interval=job.index_interval_bytes,
            write_bytes=job.io_buffer_bytes,
        )

    def _write(self, written: list[CleanedSegment], header: BatchHeader, kept: Kept) -> None:
        """Append to the last segment, or to a new one: recompressed records may need more space."""
        job = self.job
        if not written[-1].has_space(
            kept.data, header.last_offset, job.segment_bytes, job.segment_index_bytes
        ):
            written.append(self._new_segment(header.base_offset))
        max_timestamp = parse_header(kept.data).max_timestamp
        written[-1].append(header.last_offset, max_timestamp, kept)
        self._throttle.spend(len(kept.data))
        self.stats.bytes_written += len(kept.data)
        self.stats.records_kept += kept.records


def _is_large(job: CleanJob) -> bool:
    return sum(segment.size for segment in job.segments) >= _FAST_BYTES


def group_segments(
    segments: Sequence[SourceSegment], index_sizes: Sequence[tuple[int, int]], job: CleanJob
) -> list[list[SourceSegment]]:
    """Group adjacent segments that fit into one: by log, by each index, and by relative offsets.

    Relative offsets have 31 bits.
    """
    groups: list[list[SourceSegment]] = []
    sizes: tuple[int, ...] = (0, 0, 0)
    limits = (job.segment_bytes, job.segment_index_bytes, job.segment_index_bytes)
    for i, segment in enumerate(segments):
        mine = (segment.size, *index_sizes[i])
        together = tuple(map(sum, zip(sizes, mine, strict=True)))
        end = segments[i + 1].base_offset if i + 1 < len(segments) else job.rules.end_offset
        fits = bool(groups) and len(groups[-1]) < _MAX_GROUP
        fits = fits and all(size <= limit for size, limit in zip(together, limits, strict=True))
        if fits and (not segment.size or end - 1 - groups[-1][0].base_offset <= INT_MAX):
            groups[-1].append(segment)
            sizes = together
        else:
            groups.append([segment])
            sizes = mine
    return groups


# -- the functions of the child process


class _Child:
    round: Compaction | None = None


_child = _Child()


@contextmanager
def _without_collector() -> Iterator[None]:
    """Disable the garbage collector: among millions of plain objects it takes half of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def begin(job: CleanJob, files: Files | None = None) -> CleanPlan:
    """Start a round, replacing any other. Its map stays in this process until `end`."""
    _child.round = None
    with _without_collector():
        _child.round = Compaction(job, files or RealFiles())
    groups = tuple(tuple(segment.base_offset for segment in group) for group in _child.round.groups)
    return CleanPlan(groups, _child.round.end_offset)


def clean_group(number: int) -> CleanedGroup:
    if _child.round is None:
        raise NoRound("no round of cleaning is in progress in this process")
    with _without_collector():
        return _child.round.clean_group(number)


def end() -> CleanStats:
    """End the round and free its memory."""
    if _child.round is None:
        raise NoRound("no round of cleaning is in progress in this process")
    stats = _child.round.stats
    _child.round = None
    return stats
