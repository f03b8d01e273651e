"""A segment: one .log file with its indexes. Finds whole batches by offset.

Nothing is opened or read before it is needed, and everything open can be released at any time (see
`open_files`). Reading is safe in a thread beside the event loop; everything that changes a segment
is for the loop's thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from millstream.log.directories import file_names
from millstream.log.integrity.unverified import Unchecked
from millstream.log.segments.index_files import IndexFiles
from millstream.log.segments.log_file import LogFile
from millstream.log.segments.open_files import OpenFiles
from millstream.log.segments.recent_batches import RecentBatches, Span
from millstream.log.segments.segment_index import SegmentIndex
from millstream.log.segments.segment_names import SegmentNames
from millstream.ports.files import File, Files
from millstream.wire.records.batch import BatchHeader

__all__ = ["Segment", "Span"]

_NO_LIMIT: Final = 1 << 62


class Segment:
    """The files of one base offset: `log_file`, and `index` over `index_files`."""

    __slots__ = (
        "_recent",
        "base_offset",
        "created_ms",
        "files",
        "index",
        "index_files",
        "log_file",
        "names",
        "unchecked",
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
        self.base_offset = base_offset
        self.created_ms = created_ms
        # Batches of an earlier process that are not verified yet.
        self.unchecked: Unchecked | None = None
        self.names = SegmentNames(directory, base_offset)
        self.index_files = IndexFiles(files, self.names, new=new)
        self._recent = RecentBatches()
        self.log_file = LogFile(files, pool, self.names, self.index_files, self._recent, new=new)
        self.index = SegmentIndex(
            self.names,
            self.log_file,
            self.index_files,
            self._recent,
            interval=index_interval,
            new=new,
        )
        if new:
            self.index_files.remove()
            self.log_file.create()

    # -- files

    def path(self, kind: str) -> str:
        return self.names.path(kind)

    def file(self) -> File:
        """Return the open .log file."""
        return self.log_file.file()

    @property
    def size(self) -> int:
        size = self.log_file.known_size
        return size if size >= 0 else self.log_file.size

    def close(self) -> None:
        self.log_file.close()

    def rename(self, suffix: str) -> None:
        """Give all files another suffix."""
        self.names.rename(self.files, suffix)

    def relocated(self, directory: str) -> Segment:
        """Return the same segment in a copy of its files, whose indexes are written out."""
        index = self.index
        other = Segment(
            self.files, self.log_file.pool, directory, self.base_offset,
            index_interval=index.interval, created_ms=self.created_ms,
        )  # fmt: skip
        other.log_file.active = self.log_file.active
        other.index.bytes_since_entry = index.bytes_since_entry
        other.index.max_timestamp, other.index.max_timestamp_offset = index.largest()
        other.index.first_timestamp = index.first_timestamp
        other._recent.last_offsets = self._recent.last_offsets
        other._recent.positions = self._recent.positions
        return other

    # -- appending and truncating

    def write(self, view: memoryview) -> int:
        """Append batches whose offsets are assigned. Return the position where they begin.

        The caller notes each batch in the index.
        """
        if self.index.max_timestamp is None:
            self.index.load_times()  # `note` must not fail
        return self.log_file.append(view)

    def truncate(self, offset: int) -> int:
        """Drop the batches that hold the offset or come after it.

        Return the number of bytes dropped.
        """
        position = self.find(offset)
        dropped = 0 if position is None else self.size - position
        self.index.truncate(offset)
        if position is not None:
            self.log_file.truncate(position)
        self.index.truncated(offset)
        return dropped

    # -- timestamps

    def largest_timestamp(self) -> int:
        """Return the largest timestamp for retention: of the records, else of the file."""
        timestamp = self.index.largest()[0]
        return timestamp if timestamp >= 0 else self.log_file.modified_ms()

    def first_timestamp(self) -> int:
        """Return the largest timestamp of the first batch; -1 if there is none."""
        return self.index.first()

    def waited_ms(self, now_ms: int, timestamp: int) -> int:
        """Return how long the segment has been open, by the timestamps if there are any."""
        first = self.index.first()
        return timestamp - first if first >= 0 else now_ms - self.created_ms

    # -- finding batches

    def span(
        self,
        offset: int,
        max_bytes: int,
        upto: int,
        at_least_one: bool,
        next_offset: int,
        may_block: bool,
    ) -> Span | None:
        """Return whole batches from the one that holds the offset (or the next), all below `upto`.

        Together they have at most `max_bytes`; with `at_least_one` the first may be larger.
        `next_offset` is where the next segment begins. None if the segment has nothing at or after
        the offset; an empty span if nothing may be read.
        """
        recent = self._recent
        last_offsets = recent.last_offsets
        first = bisect_left(last_offsets, offset)
        if first < len(last_offsets) and (first or not recent.positions[0]):
            return recent.span(first, max_bytes, upto, at_least_one, self.log_file.known_size)
        start = self.find(offset, may_block)
        if start is None:
            return None
        return self.span_from(start, max_bytes, upto, at_least_one, next_offset, may_block)

    def span_from(
        self,
        start: int,
        max_bytes: int,
        upto: int,
        at_least_one: bool,
        next_offset: int,
        may_block: bool,
    ) -> Span | None:
        """Return a span like `span`, from the position of a batch."""
        log_file, index = self.log_file, self.index
        end, end_offset = self.size, next_offset
        if start >= end:
            return None
        if upto < next_offset:
            begin = max(start, index.offsets(may_block).position_of(upto))
            end, end_offset = log_file.scan(begin, upto, _NO_LIMIT, next_offset, may_block)
        if end - start > max_bytes:
            limit = start + max_bytes
            begin = max(start, index.offsets(may_block).position_floor(limit))
            end, end_offset = log_file.scan(begin, _NO_LIMIT, limit, next_offset, may_block)
            if end == start and at_least_one:
                size = log_file.header_at(start, may_block).size
                end, end_offset = log_file.scan(start + size, -1, _NO_LIMIT, next_offset, may_block)
        return Span(start, end, end_offset)

    def find(self, offset: int, may_block: bool = True) -> int | None:
        """Return the position of the first batch that ends at or after the offset."""
        begin = self.index.offsets(may_block).position_of(offset)
        position, _ = self.log_file.scan(begin, offset, _NO_LIMIT, -1, may_block)
        return position if position < self.size else None

    def batches(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Return (position, header) of every batch from here.

        Reads ahead, may wait for the disk.
        """
        return self.log_file.batches(position)

    def next_offset(self) -> int:
        """Return the first offset after this segment; may wait for the disk."""
        return self.end_before(self.size)

    def end_before(self, position: int) -> int:
        """Return the first offset after the batches before a position.

        Reads from the last indexed one on.
        """
        end = self.base_offset
        if position:
            for at, header in self.log_file.batches(
                self.index.offsets().position_floor(position - 1)
            ):
                if at >= position:
                    break
                end = header.next_offset
        return end

    def __repr__(self) -> str:
        return f"Segment({self.path(file_names.LOG)})"
