"""The .log file of a segment: opened on demand, appended to, and read batch by batch."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from millstream.log.directories import file_names
from millstream.log.errors import ColdRead, DamagedBatch, too_many_open
from millstream.log.segments.index_files import IndexFiles
from millstream.log.segments.open_files import OpenFiles
from millstream.log.segments.recent_batches import RecentBatches
from millstream.log.segments.segment_names import SegmentNames
from millstream.ports.files import File, Files
from millstream.wire.records.batch import BatchHeader, CorruptBatch, parse_header
from millstream.wire.records.layout import HEADER_SIZE, LOG_OVERHEAD

_SCAN: Final = struct.Struct(">qi11xi")  # base offset, length, last offset delta
_MIN_LENGTH: Final = HEADER_SIZE - LOG_OVERHEAD
_CHUNK: Final = 4096
_READ_AHEAD: Final = 1 << 16


class LogFile:
    """Registered in `OpenFiles` while it is open, which may release it with the loaded indexes.

    `known_size` is -1 before the file was looked at; `size` looks.
    """

    __slots__ = (
        "_file",
        "_files",
        "_index_files",
        "_names",
        "_recent",
        "_torn",
        "active",
        "known_size",
        "pool",
        "used",
    )

    def __init__(
        self,
        files: Files,
        pool: OpenFiles,
        names: SegmentNames,
        index_files: IndexFiles,
        recent: RecentBatches,
        *,
        new: bool,
    ) -> None:
        self._files = files
        self.pool = pool
        self._names = names
        self._index_files = index_files
        self._recent = recent
        self._file: File | None = None
        self._torn = False
        self.active = new
        self.known_size = 0 if new else -1
        self.used = False

    # -- opening and releasing

    def create(self) -> None:
        """Start empty, even if the file exists."""
        self._file = self._open(create=True)
        if self._file.size:
            self._file.truncate(0)
        self.pool.opened(self)

    def file(self) -> File:
        """Return the open file."""
        file = self._file
        if file is None:
            file = self._file = self._open()
            self.pool.opened(self)
            if self.known_size < 0:
                self.known_size = file.size
        self.used = True
        return file

    def _open(self, *, create: bool = False) -> File:
        """Open the file. If too many files are open, close some of ours and retry once."""
        path = self._names.path(file_names.LOG)
        try:
            return self._files.open(path, create=create)
        except OSError as error:
            if not too_many_open(error):
                raise
            self.pool.relieve()
            return self._files.open(path, create=create)

    @property
    def size(self) -> int:
        if self.known_size < 0:
            self.known_size = self._files.size(self._names.path(file_names.LOG))
        return self.known_size

    def release(self, *, idle: bool) -> None:
        """Close the file and drop loaded indexes.

        The indexes of the active segment stay unless it is idle. Indexes that a full disk rejects
        stay too.
        """
        if (self.active and not idle) or not self._index_files.written_out():
            self._file = None
            return
        self._file = None
        self._index_files.release()
        if self.active:
            self._recent.clear()

    def close(self) -> None:
        self.pool.closed(self)
        self._file = None

    def release_idle(self) -> None:
        """Release a segment of a log that was just opened and may stay idle."""
        self.pool.closed(self)
        self.release(idle=True)

    def modified_ms(self) -> int:
        return self._files.modified_ms(self._names.path(file_names.LOG))

    # -- appending and truncating

    def append(self, view: memoryview) -> int:
        """Append batches whose offsets are assigned. Return the position where they begin."""
        file = self._file or self.file()
        position = self.known_size
        if self._torn or file.size != position:
            self.trim()
        try:
            file.append((view,))
        except OSError:
            self._torn = True
            raise
        self.known_size = file.size
        self.used = True
        return position

    def trim(self) -> None:
        """Remove the bytes that a failed append may have left behind the end."""
        if self._torn or (self._file is not None and self._file.size != self.known_size):
            self.file().truncate(self.known_size)
            self._torn = False

    def unwrite(self, position: int) -> None:
        """Undo an `append` that could not be completed.

        If the disk rejects even that, the next append or flush removes the bytes.
        """
        self.known_size = position
        self._torn = True
        with suppress(OSError):
            self.trim()

    def truncate(self, position: int) -> None:
        self.file().truncate(position)
        self.known_size = position

    # -- reading batches

    def header_at(self, position: int, may_block: bool = True) -> BatchHeader:
        try:
            return parse_header(self._read(position, HEADER_SIZE, may_block))
        except CorruptBatch as error:
            raise self._corrupt(position, error.reason) from None

    def batches(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of every batch from here; reads ahead, may wait for the disk."""
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
                    position,
                    f"a batch of {header.size} bytes, of which {size - position} are in the file",
                )
            yield position, header
            position += header.size

    def read_batch(self, position: int, header: BatchHeader) -> bytes:
        return self.file().pread(position, header.size)

    def scan(
        self, position: int, offset: int, limit: int, at_end: int, may_block: bool
    ) -> tuple[int, int]:
        """Return (position, base offset) of the first batch that reaches the offset or the limit.

        (size, at_end) if none does. The scan begins at a position; the limit is a position, too.
        """
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
        return DamagedBatch(self._names.path(file_names.LOG), position, reason)
