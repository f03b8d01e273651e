"""The offset and time index of a segment, and its timestamps, kept as batches are appended."""

from __future__ import annotations

import logging
from typing import Final

from millstream.core.errors import ApiError
from millstream.log.directories import file_names
from millstream.log.errors import ColdRead
from millstream.log.segments import transaction_index
from millstream.log.segments.index_files import IndexFiles
from millstream.log.segments.log_file import LogFile
from millstream.log.segments.offset_index import OffsetIndex
from millstream.log.segments.recent_batches import KEPT, RecentBatches
from millstream.log.segments.segment_names import SegmentNames
from millstream.log.segments.time_index import TimeIndex, last_entry

logger = logging.getLogger("millstream.log.segment")

_NO_LIMIT: Final = 1 << 62


class SegmentIndex:
    """Leads to the batches of a `LogFile`; rebuilt from them if an index file has a fault.

    `max_timestamp` and `first_timestamp` are None before they were looked up.
    """

    __slots__ = (
        "_files",
        "_log_file",
        "_names",
        "_recent",
        "bytes_since_entry",
        "first_timestamp",
        "interval",
        "max_timestamp",
        "max_timestamp_offset",
    )

    def __init__(
        self,
        names: SegmentNames,
        log_file: LogFile,
        files: IndexFiles,
        recent: RecentBatches,
        *,
        interval: int,
        new: bool,
    ) -> None:
        self._names = names
        self._log_file = log_file
        self._files = files
        self._recent = recent
        self.interval = interval
        self.bytes_since_entry = 0
        self.first_timestamp: int | None = None
        self.max_timestamp: int | None = -1 if new else None
        self.max_timestamp_offset = names.base_offset

    # -- loading

    def offsets(self, may_block: bool = True) -> OffsetIndex:
        """Return the offset index.

        Raise ColdRead if it is not loaded and the caller may not wait.
        """
        index = self._files.offsets
        if index is None:
            if not may_block:
                raise ColdRead
            data = self._files.read(file_names.OFFSET_INDEX)
            index = OffsetIndex.parse(data, self._names.base_offset)
            fault = self._files.fault(file_names.OFFSET_INDEX, data) or index.fault(
                self._log_file.size
            )
            if self._rebuilt(file_names.OFFSET_INDEX, fault):
                return self.offsets()
            self._files.offsets = index
            self._log_file.pool.opened(self._log_file, len(data))
        return index

    def times(self) -> TimeIndex:
        index = self._files.times
        if index is None:
            data = self._files.read(file_names.TIME_INDEX)
            index = TimeIndex.parse(data, self._names.base_offset)
            fault = self._files.fault(file_names.TIME_INDEX, data) or index.fault()
            if self._rebuilt(file_names.TIME_INDEX, fault):
                return self.times()
            self._files.times = index
            self._log_file.pool.opened(self._log_file, len(data))
        return index

    @property
    def is_loaded(self) -> bool:
        """Whether the time index is in memory, so that entries may be missing on disk."""
        return self._files.times is not None

    def entries(self) -> tuple[int, int]:
        """Return the numbers of entries; needs no I/O for a segment that was appended to."""
        return len(self.offsets()), len(self.times())

    def encoded(self) -> list[tuple[str, bytes]]:
        """Return (kind, contents) of all indexes, for a copy of the segment."""
        files = [
            (file_names.OFFSET_INDEX, self.offsets().encode()),
            (file_names.TIME_INDEX, self.times().encode()),
        ]
        transactions = self._files.transactions()
        if transactions:
            files.append((file_names.TRANSACTION_INDEX, transaction_index.encode(transactions)))
        return files

    def write(self) -> None:
        """Bring the files up to date; creates them."""
        offsets, times = self.offsets(), self.times()
        self._files.write(offsets, times)

    # -- appending

    def note(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """Record an appended batch: index entries, largest timestamp, recent positions.

        The batch is already in the file, so nothing may fail any more. An index that was released
        may not load because too many files are open. Then a later batch gets the entry.
        """
        if max_timestamp > self.max_timestamp:  # type: ignore[operator]
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if not position:
            self.first_timestamp = max_timestamp
        if self.bytes_since_entry > self.interval:
            try:
                times = self.times()
                self.offsets().append(last_offset, position)
                times.maybe_append(self.max_timestamp, self.max_timestamp_offset)  # type: ignore[arg-type]
                self.bytes_since_entry = 0
            except (OSError, ApiError) as error:
                logger.info("%r: no index entry for offset %d: %s", self._names, last_offset, error)
        self.bytes_since_entry += size
        recent = self._recent
        if len(recent.last_offsets) >= 2 * KEPT:
            recent.shrink()
        recent.positions.append(position)
        recent.last_offsets.append(last_offset)

    def finish(self) -> None:
        """Complete the time index and write both: the segment takes no more appends."""
        self._log_file.trim()
        self.times().maybe_append(*self.largest())
        self.write()
        self._log_file.active = False
        self._recent.clear()

    # -- rebuilding

    def _rebuilt(self, kind: str, fault: str | None) -> bool:
        """Rebuild the indexes if one has a fault."""
        if fault is not None:
            logger.warning("%s: %s; rebuilding it", self._names.path(kind), fault)
            self._rebuild()
        return fault is not None

    def _rebuild(self) -> None:
        """Build both indexes from the batch headers.

        Only for a log whose batches are known to be whole.
        """
        self.reset()
        for position, header in self._log_file.batches():
            self.note(position, header.size, header.last_offset, header.max_timestamp)
        if not self._log_file.active:
            self.finish()

    def reset(self) -> None:
        """Start the indexes over, for a scan that notes every batch."""
        self._files.reset()
        self.max_timestamp, self.max_timestamp_offset = -1, self._names.base_offset
        self.first_timestamp = None
        self.bytes_since_entry = 0
        self._recent.clear()

    def resume_at(self, offset: int) -> tuple[int, int] | None:
        """Trust the indexes on disk below an offset up to which everything was flushed.

        For a scan that begins there. Return (position, end of the batches before it), or None if
        the indexes do not fit the log.
        """
        offsets, times = self._files.read_both()
        offsets.truncate(offset)
        times.truncate(offset)
        if (
            not offsets.offsets
            or offsets.fault(self._log_file.size) is not None
            or not offsets.increases()
        ):
            return None
        begin = position = offsets.positions[-1]
        timestamp, timestamp_offset = times.last
        end = -1
        try:
            for at, header in self._log_file.batches(begin):
                if at == begin and header.last_offset != offsets.last_offset:
                    return None
                # The checksum of a batch does not cover its offset: after a power cut, a batch that
                # lost it seems to lie long before.
                if header.last_offset >= offset or header.base_offset < end:
                    break
                if header.max_timestamp > timestamp:
                    timestamp, timestamp_offset = header.max_timestamp, header.last_offset
                position, end = at + header.size, header.next_offset
        except ApiError:
            return None
        self.reset()
        self._files.offsets, self._files.times = offsets, times
        self.max_timestamp, self.max_timestamp_offset = timestamp, timestamp_offset
        self.bytes_since_entry = position - begin
        self._files.truncate_transactions(end)
        self.write()  # truncates the files
        return position, end

    def truncate(self, offset: int) -> None:
        """Drop the entries at or after an offset."""
        self.offsets().truncate(offset)
        self.times().truncate(offset)

    def truncated(self, offset: int) -> None:
        """Follow a truncation of the log file to this offset."""
        self._recent.truncate(self._log_file.known_size)
        self._files.truncate_transactions(offset)
        self.write()
        self.max_timestamp, self.max_timestamp_offset = self.times().last
        self.first_timestamp = None
        begin = self.offsets().position_floor(_NO_LIMIT)
        for _, header in self._log_file.batches(begin):
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp, self.max_timestamp_offset = (
                    header.max_timestamp,
                    header.last_offset,
                )
        self.bytes_since_entry = self._log_file.size - begin

    # -- timestamps

    def load_times(self) -> None:
        """Look up the largest timestamp."""
        index = self._files.times
        if index is not None:
            last = index.last
        else:
            # The last entry decides about retention, so it is used only if its checksum matches.
            data = self._files.read(file_names.TIME_INDEX)
            if self._rebuilt(file_names.TIME_INDEX, self._files.fault(file_names.TIME_INDEX, data)):
                return
            last = last_entry(data, self._names.base_offset)
        self.max_timestamp, self.max_timestamp_offset = last

    def largest(self) -> tuple[int, int]:
        """Return (largest timestamp, offset of a batch that has it).

        (-1, base) without timestamps.
        """
        if self.max_timestamp is None:
            self.load_times()
        return self.max_timestamp, self.max_timestamp_offset  # type: ignore[return-value]

    def first(self) -> int:
        """Return the largest timestamp of the first batch, which decides when the segment rolls.

        -1 if none.
        """
        if self.first_timestamp is None:
            if not self._log_file.size:
                return -1
            self.first_timestamp = next(self._log_file.batches())[1].max_timestamp
        return self.first_timestamp
