"""Writes the segments that cleaning produces: `.cleaned` files with their indexes.

They are synced before they are reported, because the swap that follows removes the only other copy.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from millstream.log.cleaner.batch_filter import Kept
from millstream.log.directories import file_names
from millstream.log.segments import transaction_index
from millstream.log.segments.offset_index import ENTRY_SIZE as OFFSET_ENTRY
from millstream.log.segments.offset_index import OffsetIndex
from millstream.log.segments.time_index import ENTRY_SIZE as TIME_ENTRY
from millstream.log.segments.time_index import TimeIndex
from millstream.log.segments.transaction_index import AbortedTransaction
from millstream.ports.files import File, Files
from millstream.wire.records.batch import BatchHeader, CorruptBatch, crc_matches, parse_header
from millstream.wire.records.layout import HEADER_SIZE

INT_MAX: Final = 2**31 - 1
_IOV_MAX: Final = 512
_MAX_READ_BYTES: Final = 8 << 20


def cleaned_path(directory: str, base_offset: int, kind: str) -> str:
    return os.path.join(directory, file_names.segment_name(base_offset) + kind + file_names.CLEANED)


def scan_batches(
    file: File, position: int, end: int, read_bytes: int
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield every batch between two positions of a log file, with a verified checksum.

    Cleaning gives rewritten batches a new checksum, which would hide damage for ever.
    """
    read_size = max(read_bytes, HEADER_SIZE)
    while position < end:
        data = file.pread(position, min(read_size, end - position))
        if len(data) < min(read_size, end - position):
            raise CorruptBatch(f"{file.path}: shorter than its {end} bytes", position)
        at, needed = 0, HEADER_SIZE
        while len(data) - at >= HEADER_SIZE:
            header = parse_header(data, at)
            if at + header.size > len(data):
                needed = header.size
                break
            if not crc_matches(data, at, header):
                raise CorruptBatch(f"{file.path}: the checksum is wrong", position + at)
            yield header, memoryview(data)[at : at + header.size]
            at += header.size
        position += at
        read_size = min(read_size, max(read_bytes, _MAX_READ_BYTES))
        if not at:
            if position + needed > end:
                raise CorruptBatch(f"{file.path}: the last batch is incomplete", position)
            # More batches of that size are likely, and each that is incomplete at the end is read
            # again.
            read_size = max(read_size, needed, min(4 * needed, _MAX_READ_BYTES))


class CleanedSegment:
    """A segment that is being written."""

    def __init__(
        self,
        files: Files,
        directory: str,
        base_offset: int,
        *,
        index_interval: int,
        write_bytes: int,
    ) -> None:
        self.base_offset = base_offset
        self.size = 0
        self._files = files
        self._directory = directory
        self._index_interval = index_interval
        self._write_bytes = write_bytes
        self._offsets = OffsetIndex(base_offset)
        self._times = TimeIndex(base_offset)
        self._aborted: list[AbortedTransaction] = []
        self._since_index = 0
        self._largest = (-1, base_offset)
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        remove_cleaned(files, directory, base_offset)
        self._file = files.open(cleaned_path(directory, base_offset, file_names.LOG), create=True)

    def has_space(
        self, data: bytes | memoryview, last_offset: int, max_bytes: int, max_index_bytes: int
    ) -> bool:
        """Return whether a batch fits: by the size of log and indexes, and by relative offsets."""
        if not self.size:
            return True
        return (
            self.size + len(data) <= max_bytes
            and last_offset - self.base_offset <= INT_MAX
            and (len(self._offsets) + 1) * OFFSET_ENTRY <= max_index_bytes
            and (len(self._times) + 2) * TIME_ENTRY <= max_index_bytes
        )

    def append(self, last_offset: int, max_timestamp: int, kept: Kept) -> None:
        if max_timestamp > self._largest[0]:
            self._largest = (max_timestamp, last_offset)
        if self._since_index > self._index_interval:
            self._offsets.append(last_offset, self.size)
            self._times.maybe_append(*self._largest)
            self._since_index = 0
        self._since_index += len(kept.data)
        self.size += len(kept.data)
        if kept.aborted is not None:
            self._aborted.append(kept.aborted)
        self._pending.append(bytes(kept.data))  # a view would keep the whole read buffer
        self._pending_bytes += len(kept.data)
        if self._pending_bytes >= self._write_bytes or len(self._pending) >= _IOV_MAX:
            self._write_pending()

    def _write_pending(self) -> None:
        if self._pending:
            self._file.append(self._pending)
        self._pending = []
        self._pending_bytes = 0

    def finish(self, modified_ms: int) -> None:
        """Write everything, durably.

        The file gets the age of the segments that it replaces: retention uses that if records have
        no timestamps, or none are left.
        """
        self._write_pending()
        self._files.set_modified_ms(
            cleaned_path(self._directory, self.base_offset, file_names.LOG), modified_ms
        )
        self._file.sync()
        self._file.close()
        if self._largest[0] >= 0:
            self._times.maybe_append(*self._largest)
        self._write_index(file_names.OFFSET_INDEX, self._offsets.encode())
        self._write_index(file_names.TIME_INDEX, self._times.encode())
        if self._aborted:
            self._write_index(file_names.TRANSACTION_INDEX, transaction_index.encode(self._aborted))

    def _write_index(self, kind: str, data: bytes) -> None:
        path = cleaned_path(self._directory, self.base_offset, kind)
        self._files.write_bytes(path, data)
        self._files.sync_file(path)


def remove_cleaned(files: Files, directory: str, base_offset: int) -> None:
    """Remove the files of an interrupted cleaning."""
    for kind in file_names.SEGMENT_FILES:
        try:
            files.unlink(cleaned_path(directory, base_offset, kind))
        except FileNotFoundError:
            pass
