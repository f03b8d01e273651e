"""A segment: one .log file with its indexes. Finds batches by offset and keeps the indexes as batches are appended.

Nothing is opened or read before it is needed, and what is open can be released at any time (see `open_files`). The
active segment also remembers where its last batches begin, so that readers at the tail need no index and no I/O.
Reading is safe in a thread beside the loop; everything that changes a segment is for the loop's thread.
"""

from __future__ import annotations

import logging
import os
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from millstream.core.errors import ApiError
from millstream.log.directories import file_names
from millstream.log.errors import ColdRead, DamagedBatch, DamagedIndex, too_many_open
from millstream.log.integrity.checksums import NEW_SEGMENT, SegmentSums, summed
from millstream.log.integrity.unverified import Unchecked
from millstream.log.segments import transaction_index
from millstream.log.segments.offset_index import ENTRY_SIZE as OFFSET_ENTRY
from millstream.log.segments.offset_index import OffsetIndex
from millstream.log.segments.open_files import OpenFiles
from millstream.log.segments.time_index import ENTRY_SIZE as TIME_ENTRY
from millstream.log.segments.time_index import TimeIndex, last_entry
from millstream.log.segments.transaction_index import AbortedTransaction
from millstream.ports.files import File, Files
from millstream.wire.records.batch import BatchHeader, CorruptBatch, parse_header
from millstream.wire.records.layout import HEADER_SIZE, LOG_OVERHEAD

logger = logging.getLogger("millstream.log.segment")

_SCAN: Final = struct.Struct(">qi11xi")  # base offset, length, last offset delta
_MIN_LENGTH: Final = HEADER_SIZE - LOG_OVERHEAD
_CHUNK: Final = 4096
_READ_AHEAD: Final = 1 << 16
_NO_LIMIT: Final = 1 << 62
_RECENT: Final = 64


class Span(NamedTuple):
    """A range of whole batches; `end_offset` is the first offset after it."""

    start: int
    end: int
    end_offset: int


class Segment:
    """The files of one base offset. `suffix` is empty except while compaction swaps files."""

    __slots__ = (
        "__weakref__",
        "_file",
        "_first_timestamp",
        "_max_timestamp",
        "_max_timestamp_offset",
        "_offset_index",
        "_pool",
        "_recent_last",
        "_recent_position",
        "_size",
        "_time_index",
        "_torn",
        "_transactions",
        "active",
        "base_offset",
        "bytes_since_index",
        "created_ms",
        "directory",
        "files",
        "index_interval",
        "suffix",
        "sums",
        "unchecked",
        "used",
    )

    def __init__(
        self,
        files: Files,
        pool: OpenFiles,
        directory: str,
        base_offset: int,
        *,
        index_interval: int = 4096,
        created_ms: int = 0,
        new: bool = False,
    ) -> None:
        self.files = files
        self._pool = pool
        self.directory = directory
        self.base_offset = base_offset
        self.suffix = ""
        self.index_interval = index_interval
        self.created_ms = created_ms
        self.active = new
        self.used = False
        self.bytes_since_index = 0
        # Checksums of the index files on disk; None where unknown.
        self.sums: SegmentSums | None = NEW_SEGMENT if new else None
        # What was written by an earlier process and not verified since.
        self.unchecked: Unchecked | None = None
        self._file: File | None = None
        self._size = 0 if new else -1
        self._torn = False
        self._first_timestamp: int | None = None
        self._max_timestamp: int | None = -1 if new else None
        self._max_timestamp_offset = base_offset
        self._offset_index: OffsetIndex | None = OffsetIndex(base_offset) if new else None
        self._time_index: TimeIndex | None = TimeIndex(base_offset) if new else None
        self._transactions: list[AbortedTransaction] | None = [] if new else None
        self._recent_last = array("q")
        self._recent_position = array("q")
        if new:
            self._create()

    def _create(self) -> None:
        """Begin with an empty log and without indexes, whatever is there from before."""
        for kind in file_names.INDEXES:
            if self.files.exists(self.path(kind)):
                self.files.unlink(self.path(kind))
        self._file = self._open(self.path(file_names.LOG), create=True)
        if self._file.size:
            self._file.truncate(0)
        self._pool.opened(self)

    # -- files

    def path(self, kind: str) -> str:
        return os.path.join(self.directory, file_names.segment_name(self.base_offset) + kind + self.suffix)

    def file(self) -> File:
        """The open .log file."""
        file = self._file
        if file is None:
            file = self._file = self._open(self.path(file_names.LOG))
            self._pool.opened(self)
            if self._size < 0:
                self._size = file.size
        self.used = True
        return file

    def _open(self, path: str, *, create: bool = False) -> File:
        """Where too many files are open, close some of ours and try once more."""
        try:
            return self.files.open(path, create=create)
        except OSError as error:
            if not too_many_open(error):
                raise
            self._pool.relieve()
            return self.files.open(path, create=create)

    @property
    def size(self) -> int:
        if self._size < 0:
            self._size = self.files.size(self.path(file_names.LOG))
        return self._size

    def release(self, *, idle: bool) -> None:
        """Close the file and forget loaded indexes; those of the active segment only when it is idle, and none that a full disk does not
        take."""
        if (self.active and not idle) or not self._indexes_written():
            self._file = None
            return
        self._file = None
        self._offset_index = self._time_index = self._transactions = None
        if self.active:
            del self._recent_last[:], self._recent_position[:]

    @property
    def is_loaded(self) -> bool:
        """Whether its time index is in memory, so that entries may be missing on disk."""
        return self._time_index is not None

    def _indexes_written(self) -> bool:
        """Whether all that is known is on disk, now if not before."""
        offsets, times = self._offset_index, self._time_index
        if (offsets is not None and len(offsets) != offsets.written) or (
            times is not None and len(times) != times.written
        ):
            try:
                self.write_indexes()
            except OSError as error:
                logger.info("%r: its indexes stay in memory: %s", self, error)
                return False
        return True

    def close(self) -> None:
        self._pool.closed(self)
        self._file = None

    def rest(self) -> None:
        """Nothing open, nothing loaded; for a log that was just opened and may stay idle."""
        self._pool.closed(self)
        self.release(idle=True)

    def rename(self, suffix: str) -> None:
        """Give all files another suffix; indexes that do not exist are passed over. May be done again where it failed."""
        old = self.suffix
        stem = os.path.join(self.directory, file_names.segment_name(self.base_offset))
        for (
            kind
        ) in file_names.SEGMENT_FILES:  # the .log first: indexes without one are removed at the next start
            try:
                self.files.rename(stem + kind + old, stem + kind + suffix)
            except FileNotFoundError:
                if kind == file_names.LOG and not self.files.exists(stem + kind + suffix):
                    raise
        self.suffix = suffix

    def index_files(self) -> list[tuple[str, bytes]]:
        """(kind, contents) of the indexes as they are now, for a copy of the segment."""
        files = [
            (file_names.OFFSET_INDEX, self.offset_index().encode()),
            (file_names.TIME_INDEX, self.time_index().encode()),
        ]
        if self.transactions():
            files.append((file_names.TRANSACTION_INDEX, transaction_index.encode(self.transactions())))
        return files

    def relocated(self, directory: str) -> Segment:
        """The same segment in a copy of its files elsewhere, whose indexes are written out."""
        other = Segment(
            self.files, self._pool, directory, self.base_offset,
            index_interval=self.index_interval, created_ms=self.created_ms,
        )  # fmt: skip
        other.active = self.active
        other.bytes_since_index = self.bytes_since_index
        other._max_timestamp, other._max_timestamp_offset = self.largest()
        other._first_timestamp = self._first_timestamp
        other._recent_last, other._recent_position = self._recent_last, self._recent_position
        return other

    def paths(self) -> list[str]:
        return [self.path(kind) for kind in file_names.SEGMENT_FILES]

    def modified_ms(self) -> int:
        return self.files.modified_ms(self.path(file_names.LOG))

    # -- appending

    def write(self, view: memoryview) -> int:
        """Append batches whose offsets are assigned; the position they begin at. The caller notes each batch."""
        file = self._file or self.file()
        if self._max_timestamp is None:
            self._load_times()  # `note` must not fail
        position = self._size
        if self._torn or file.size != position:
            self.trim()
        try:
            file.append((view,))
        except OSError:
            self._torn = True
            raise
        self._size = file.size
        self.used = True
        return position

    def trim(self) -> None:
        """Cut away what a failed append may have left behind its end."""
        if self._torn or (self._file is not None and self._file.size != self._size):
            self.file().truncate(self._size)
            self._torn = False

    def note(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """Remember an appended batch: index entries, largest timestamp, recent positions. It is in the file already, so nothing may go wrong
        any more: an index that was released, and cannot be loaded now because too many files are open, gets its entry with a later batch."""
        if max_timestamp > self._max_timestamp:  # type: ignore[operator]
            self._max_timestamp = max_timestamp
            self._max_timestamp_offset = last_offset
        if not position:
            self._first_timestamp = max_timestamp
        if self.bytes_since_index > self.index_interval:
            try:
                times = self.time_index()
                self.offset_index().append(last_offset, position)
                times.maybe_append(self._max_timestamp, self._max_timestamp_offset)  # type: ignore[arg-type]
                self.bytes_since_index = 0
            except (OSError, ApiError) as error:
                logger.info("%r: no index entry for offset %d: %s", self, last_offset, error)
        self.bytes_since_index += size
        recent = self._recent_last
        if len(recent) >= 2 * _RECENT:
            del recent[:_RECENT], self._recent_position[:_RECENT]
        self._recent_position.append(position)
        recent.append(last_offset)

    def unwrite(self, position: int) -> None:
        """Take back what `write` appended, when the append could not be completed. Where the disk refuses even that, the next append
        or flush cuts it away."""
        self._size = position
        self._torn = True
        with suppress(OSError):
            self.trim()

    def index_entries(self) -> tuple[int, int]:
        """How many entries the two indexes have; needs no I/O for a segment that was appended to."""
        return len(self.offset_index()), len(self.time_index())

    def note_aborted(self, transaction: AbortedTransaction) -> None:
        """A marker in this segment aborted a transaction; written through, since there is no other copy."""
        known, data = self.transactions(), transaction_index.encode((transaction,))
        expected = len(known) * transaction_index.ENTRY_SIZE
        file = self.files.open(self.path(file_names.TRANSACTION_INDEX), create=True)
        try:
            if file.size != expected:
                file.truncate(expected)  # what an append that failed left there
            file.append((data,))
        except OSError:
            with suppress(OSError):
                file.truncate(expected)  # the index may be read again before the next entry comes
            raise
        finally:
            file.close()
        known.append(transaction)
        self._note_sum(file_names.TRANSACTION_INDEX, expected, data, lambda: transaction_index.encode(known))

    def finish(self) -> None:
        """The segment takes no more appends: complete its time index and write both indexes out."""
        self.trim()
        self.time_index().maybe_append(*self.largest())
        self.write_indexes()
        self.active = False
        del self._recent_last[:], self._recent_position[:]

    # -- indexes

    def offset_index(self) -> OffsetIndex:
        index = self._offset_index
        if index is None:
            data = self._index_bytes(file_names.OFFSET_INDEX)
            index = OffsetIndex.parse(data, self.base_offset)
            fault = self._fault(file_names.OFFSET_INDEX, data) or index.fault(self.size)
            if self._rebuilt(file_names.OFFSET_INDEX, fault):
                return self.offset_index()
            self._offset_index = index
            self._pool.opened(self, len(data))
        return index

    def time_index(self) -> TimeIndex:
        index = self._time_index
        if index is None:
            data = self._index_bytes(file_names.TIME_INDEX)
            index = TimeIndex.parse(data, self.base_offset)
            if self._rebuilt(
                file_names.TIME_INDEX, self._fault(file_names.TIME_INDEX, data) or index.fault()
            ):
                return self.time_index()
            self._time_index = index
            self._pool.opened(self, len(data))
        return index

    def _rebuilt(self, kind: str, fault: str | None) -> bool:
        """Rebuild the indexes if one has a fault."""
        if fault is not None:
            logger.warning("%s: %s; rebuilding it", self.path(kind), fault)
            self.rebuild_indexes()
        return fault is not None

    def _fault(self, kind: str, data: bytes) -> str | None:
        """Why an index is not what was written, or None."""
        known = self.sums[kind] if self.sums is not None else None
        return None if known is None or known == summed(data) else "it does not match its checksum"

    def transactions(self) -> list[AbortedTransaction]:
        """The aborted transactions whose markers lie here."""
        if self._transactions is None:
            data = self._index_bytes(file_names.TRANSACTION_INDEX)
            fault = self._fault(file_names.TRANSACTION_INDEX, data) or transaction_index.fault(data)
            if fault is not None:
                raise DamagedIndex(
                    f"{self.path(file_names.TRANSACTION_INDEX)}: {fault}; a restart rebuilds it"
                )
            self._transactions = transaction_index.parse(data)
        return self._transactions

    def index_fault(self, kind: str, *, prefix: bool = False) -> str | None:
        """Why an index on disk is not what was flushed; with `prefix` it may be longer. None if unknown."""
        data = self._index_bytes(kind)
        good = prefix and self.sums is not None and self.sums[kind].begins(data)
        return None if good else self._fault(kind, data)

    def _index_bytes(self, kind: str) -> bytes:
        try:
            return self.files.read_bytes(self.path(kind))
        except FileNotFoundError:
            return b""

    def write_indexes(self) -> None:
        """Bring the index files up to what is known; creates them."""
        index, times = self.offset_index(), self.time_index()
        written = max(index.written, 0)
        self._write_index(
            file_names.OFFSET_INDEX, written * OFFSET_ENTRY, index.encode(written), index.encode
        )
        index.written = len(index)
        written = max(times.written, 0)
        self._write_index(file_names.TIME_INDEX, written * TIME_ENTRY, times.encode(written), times.encode)
        times.written = len(times)

    def _note_sum(self, kind: str, at: int, data: bytes, whole: Callable[[], bytes]) -> None:
        """Bytes were appended to an index of `at` bytes; `whole` returns all of it, where it was rewritten."""
        known = self.sums[kind] if self.sums is not None else None
        if self.sums is not None and known is not None and (data or known.size != at):
            self.sums = {**self.sums, kind: known.extended(data) if known.size == at else summed(whole())}

    def _write_index(self, kind: str, written: int, pending: bytes, whole: Callable[[], bytes]) -> None:
        file = self.files.open(self.path(kind), create=True)
        try:
            if file.size != written:
                file.truncate(written)
            if pending:
                file.append((pending,))
        finally:
            file.close()
        self._note_sum(kind, written, pending, whole)

    def reset_indexes(self) -> None:
        """Begin the indexes anew, for a scan that notes every batch."""
        self._offset_index = OffsetIndex(self.base_offset)
        self._time_index = TimeIndex(self.base_offset)
        if self.files.exists(self.path(file_names.OFFSET_INDEX)) or self.files.exists(
            self.path(file_names.TIME_INDEX)
        ):
            self._offset_index.written = self._time_index.written = -1  # whatever is on disk is not these
        self._max_timestamp, self._max_timestamp_offset = -1, self.base_offset
        self._first_timestamp = None
        self.bytes_since_index = 0
        del self._recent_last[:], self._recent_position[:]

    def resume_at(self, offset: int) -> tuple[int, int] | None:
        """For a scan that begins at an offset up to which everything was flushed: take the indexes on disk for true
        below it. (position, end of what is before it), or None where they do not fit the log."""
        index = OffsetIndex.parse(self._index_bytes(file_names.OFFSET_INDEX), self.base_offset)
        times = TimeIndex.parse(self._index_bytes(file_names.TIME_INDEX), self.base_offset)
        index.truncate(offset)
        times.truncate(offset)
        if not index.offsets or index.fault(self.size) is not None or not index.increases():
            return None
        begin = position = index.positions[-1]
        timestamp, timestamp_offset = times.last
        end = -1
        try:
            for at, header in self.batches(begin):
                if at == begin and header.last_offset != index.last_offset:
                    return None
                # The offset of a batch is not in its checksum: one that lost it in a power cut seems to be long before.
                if header.last_offset >= offset or header.base_offset < end:
                    break
                if header.max_timestamp > timestamp:
                    timestamp, timestamp_offset = header.max_timestamp, header.last_offset
                position, end = at + header.size, header.next_offset
        except ApiError:
            return None
        self.reset_indexes()
        self._offset_index, self._time_index = index, times
        self._max_timestamp, self._max_timestamp_offset = timestamp, timestamp_offset
        self.bytes_since_index = position - begin
        self._truncate_transactions(end)
        self.write_indexes()  # cuts off what is beyond
        return position, end

    def reset_transactions(self) -> None:
        """Begin the transaction index anew, for a scan of the whole segment."""
        self._transactions = []
        self.sums = NEW_SEGMENT
        with suppress(FileNotFoundError):
            self.files.unlink(self.path(file_names.TRANSACTION_INDEX))

    def rebuild_indexes(self) -> None:
        """Both indexes from the batch headers; only for a log whose batches are known to be whole."""
        self.reset_indexes()
        for position, header in self.batches():
            self.note(position, header.size, header.last_offset, header.max_timestamp)
        if not self.active:
            self.finish()

    # -- times

    def _load_times(self) -> None:
        index = self._time_index
        if index is not None:
            last = index.last
        else:
            # The last entry decides about retention: it is believed only with its checksum.
            data = self._index_bytes(file_names.TIME_INDEX)
            if self._rebuilt(file_names.TIME_INDEX, self._fault(file_names.TIME_INDEX, data)):
                return
            last = last_entry(data, self.base_offset)
        self._max_timestamp, self._max_timestamp_offset = last

    def largest(self) -> tuple[int, int]:
        """(largest timestamp, offset of a batch that has it); (-1, base) without timestamps."""
        if self._max_timestamp is None:
            self._load_times()
        return self._max_timestamp, self._max_timestamp_offset  # type: ignore[return-value]

    def largest_timestamp(self) -> int:
        """For retention: of the records, else when the file was last written."""
        timestamp = self.largest()[0]
        return timestamp if timestamp >= 0 else self.modified_ms()

    def first_timestamp(self) -> int:
        """The largest timestamp of the first batch, which decides when the segment rolls; -1 where there is none."""
        if self._first_timestamp is None:
            if not self.size:
                return -1
            self._first_timestamp = next(self.batches())[1].max_timestamp
        return self._first_timestamp

    def waited_ms(self, now_ms: int, timestamp: int) -> int:
        """How long the segment has been open, by the clock of the records where they have one."""
        first = self._first_timestamp if self._first_timestamp is not None else self.first_timestamp()
        return timestamp - first if first >= 0 else now_ms - self.created_ms

    # -- finding batches

    def span(
        self, offset: int, max_bytes: int, upto: int, at_least_one: bool, next_offset: int, may_block: bool
    ) -> Span | None:
        """Whole batches from the one that holds the offset (or the next), all below `upto` and together at most
        `max_bytes`; with `at_least_one` the first even if larger. `next_offset` is where the next segment begins.
        None where the segment has nothing at or after the offset; an empty span where nothing may be read."""
        recent = self._recent_last
        first = bisect_left(recent, offset)
        if first < len(recent) and (first or not self._recent_position[0]):
            return self._recent_span(first, max_bytes, upto, at_least_one)
        start = self._find(offset, 0, may_block)
        if start is None:
            return None
        return self.span_from(start, max_bytes, upto, at_least_one, next_offset, may_block)

    def _recent_span(self, first: int, max_bytes: int, upto: int, at_least_one: bool) -> Span:
        last, positions = self._recent_last, self._recent_position
        start, count = positions[first], len(last)
        stop = count if last[-1] < upto else bisect_left(last, upto, first)
        end = self._size if stop == count else positions[stop]
        if end - start > max_bytes:
            stop = max(bisect_right(positions, start + max_bytes, first) - 1, first)
            if stop == first and at_least_one:
                stop += 1
            end = self._size if stop == count else positions[stop]
        return Span(start, end, last[stop - 1] + 1 if stop > first else -1)

    def span_from(
        self, start: int, max_bytes: int, upto: int, at_least_one: bool, next_offset: int, may_block: bool
    ) -> Span | None:
        """Like `span`, from the position of a batch."""
        end, end_offset = self.size, next_offset
        if start >= end:
            return None
        if upto < next_offset:
            begin = max(start, self._index(may_block).position_of(upto))
            end, end_offset = self._scan(begin, upto, _NO_LIMIT, next_offset, may_block)
        if end - start > max_bytes:
            limit = start + max_bytes
            begin = max(start, self._index(may_block).position_floor(limit))
            end, end_offset = self._scan(begin, _NO_LIMIT, limit, next_offset, may_block)
            if end == start and at_least_one:
                size = self.header_at(start, may_block).size
                end, end_offset = self._scan(start + size, -1, _NO_LIMIT, next_offset, may_block)
        return Span(start, end, end_offset)

    def _index(self, may_block: bool) -> OffsetIndex:
        if self._offset_index is None and not may_block:
            raise ColdRead
        return self.offset_index()

    def _find(self, offset: int, begin: int, may_block: bool) -> int | None:
        """The position of the first batch that ends at or after the offset."""
        begin = max(begin, self._index(may_block).position_of(offset))
        position, _ = self._scan(begin, offset, _NO_LIMIT, -1, may_block)
        return position if position < self.size else None

    def find(self, offset: int) -> int | None:
        return self._find(offset, 0, True)

    def _scan(self, position: int, offset: int, limit: int, at_end: int, may_block: bool) -> tuple[int, int]:
        """(position, base offset) of the first batch from here that reaches the offset or ends beyond the limit;
        (size, at_end) where none does."""
        size = self.size
        chunk: bytes | bytearray = b""
        start = position
        while position < size:
            at = position - start
            if at + _SCAN.size > len(chunk):
                chunk, start, at = self._read(position, _CHUNK, may_block), position, 0
                if len(chunk) < _SCAN.size:
                    raise self._corrupt(position, "the file ends within a batch header")
            base, length, delta = _SCAN.unpack_from(chunk, at)
            if length < _MIN_LENGTH or position + length + LOG_OVERHEAD > size:
                raise self._corrupt(position, f"a batch of {length} bytes")
            if base + delta >= offset or position + length + LOG_OVERHEAD > limit:
                return position, base
            position += length + LOG_OVERHEAD
        return size, at_end

    def _read(self, position: int, n: int, may_block: bool) -> bytes | bytearray:
        if may_block:
            return self.file().pread(position, n)
        data = self.file().pread_nowait(position, n)
        if data is None:
            raise ColdRead
        return data

    def _corrupt(self, position: int, reason: str) -> DamagedBatch:
        return DamagedBatch(self.path(file_names.LOG), position, reason)

    def header_at(self, position: int, may_block: bool = True) -> BatchHeader:
        try:
            return parse_header(self._read(position, HEADER_SIZE, may_block))
        except CorruptBatch as error:
            raise self._corrupt(position, error.reason) from None

    def batches(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of every batch from here; reads ahead, may wait for the disk."""
        chunk: bytes = b""
        start, size = position, self.size
        while position < size:
            at = position - start
            if at + HEADER_SIZE > len(chunk):
                chunk, start, at = self.file().pread(position, _READ_AHEAD), position, 0
            try:
                header = parse_header(chunk, at)
            except CorruptBatch as error:
                raise self._corrupt(position, error.reason) from None
            if position + header.size > size:
                raise self._corrupt(
                    position, f"a batch of {header.size} bytes, of which {size - position} are there"
                )
            yield position, header
            position += header.size

    def read_batch(self, position: int, header: BatchHeader) -> bytes:
        return self.file().pread(position, header.size)

    def next_offset(self) -> int:
        """The first offset after this segment; may wait for the disk."""
        return self.end_before(self.size)

    def end_before(self, position: int) -> int:
        """The first offset after the batches before a position, read from the last indexed one on."""
        end = self.base_offset
        if position:
            for at, header in self.batches(self.offset_index().position_floor(position - 1)):
                if at >= position:
                    break
                end = header.next_offset
        return end

    # -- truncating

    def truncate(self, offset: int) -> int:
        """Drop the batches that hold the offset or come after it; the bytes dropped."""
        position = self.find(offset)
        dropped = 0 if position is None else self.size - position
        self.offset_index().truncate(offset)
        self.time_index().truncate(offset)
        if position is not None:
            self.file().truncate(position)
            self._size = position
        keep = bisect_left(self._recent_position, self._size)
        del self._recent_last[keep:], self._recent_position[keep:]
        self._truncate_transactions(offset)
        self.write_indexes()
        self._recount()
        return dropped

    def cut(self, position: int) -> None:
        """Shorten the file to its good batches, after a scan that noted exactly those."""
        self.file().truncate(position)
        self._size = position

    def _truncate_transactions(self, offset: int) -> None:
        """They lie in the order of their markers, so this shortens the file: a full disk does not keep it from that. Not so where a power
        cut has left zeros in place of an entry that was not synced; the scan of the batches finds that one again. Durable at once: the next
        recovery may begin above this segment, and would leave what has come back."""
        data, path = self._index_bytes(file_names.TRANSACTION_INDEX), self.path(file_names.TRANSACTION_INDEX)
        known = self._transactions if self._transactions is not None else transaction_index.sound(data)
        self._transactions = [txn for txn in known if txn.last_offset < offset]
        kept = transaction_index.encode(self._transactions)
        if kept == data:
            return
        if data.startswith(kept):
            file = self.files.open(path, create=True)
            try:
                file.truncate(len(kept))
            finally:
                file.close()
        else:
            self.files.write_bytes(path, kept)
        self.files.sync_file(path)
        if self.sums is not None:
            self.sums = {**self.sums, file_names.TRANSACTION_INDEX: summed(kept)}

    def _recount(self) -> None:
        """The largest timestamp and the distance to the last index entry, after a truncation or at opening."""
        self._max_timestamp, self._max_timestamp_offset = self.time_index().last
        self._first_timestamp = None
        begin = self.offset_index().position_floor(_NO_LIMIT)
        for _, header in self.batches(begin):
            if header.max_timestamp > self._max_timestamp:
                self._max_timestamp, self._max_timestamp_offset = header.max_timestamp, header.last_offset
        self.bytes_since_index = self.size - begin

    def __repr__(self) -> str:
        return f"Segment({self.path(file_names.LOG)})"
