"""Checksums for the files that have none in Kafka's formats: indexes, leader epochs, topic id.

Each partition directory has a file `index-checksums` with a line per file: name, size, CRC-32C.
Apache Kafka ignores it. It is written with a flush, after the files it describes are synced. The
lines describe the flushed contents: after a crash an index may be longer, and its first `size`
bytes must match. The file also lists the segments and the lengths of their `.log` files, so that a
missing one is noticed.

A directory without this file (of Apache Kafka, or of an older version) is checked by structure
alone.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from millstream.log.directories import file_names
from millstream.log.directories.checkpoints import (
    decode_uuid,
    encode_uuid,
    format_sealed,
    parse_sealed,
)
from millstream.log.errors import CorruptFile
from millstream.ports.files import Files
from millstream.wire.records.checksum import crc32c


class Sum(NamedTuple):
    """Size and checksum of a file, or of its beginning."""

    size: int
    crc: int

    def extended(self, data: bytes) -> Sum:
        """Return the sum after `data` has been appended."""
        return Sum(self.size + len(data), crc32c(data, self.crc)) if data else self

    def begins(self, data: bytes) -> bool:
        """Return whether `data` begins with the contents of this sum."""
        return len(data) >= self.size and crc32c(memoryview(data)[: self.size]) == self.crc


EMPTY: Final = Sum(0, 0)
SegmentSums = Mapping[str, Sum]
_TOPIC_ID: Final = f"{file_names.PARTITION_METADATA}:"
NEW_SEGMENT: Final[SegmentSums] = dict.fromkeys(file_names.INDEXES, EMPTY)


def read_sums(files: Files, path: Callable[[str], str]) -> SegmentSums:
    """Return the sums of the indexes on disk; `path` returns the path of a kind of file."""
    return {kind: summed(_contents(files, path(kind))) for kind in file_names.INDEXES}


def _contents(files: Files, path: str) -> bytes:
    try:
        return files.read_bytes(path)
    except FileNotFoundError:
        return b""


def summed(data: bytes) -> Sum:
    return Sum(len(data), crc32c(data)) if data else EMPTY


class Small(NamedTuple):
    """Facts about the small files of a partition: the sum of its leader epochs, the topic id."""

    epochs: Sum | None = None
    topic_id: uuid.UUID | None = None


class Checksums(NamedTuple):
    """The contents of `index-checksums`. The line of a `.log` file has its size and no checksum."""

    segments: dict[int, SegmentSums]
    small: Small = Small()

    def encode(self) -> bytes:
        lines = []
        if self.small.epochs is not None:
            lines.append("{} {} {}".format(file_names.LEADER_EPOCHS, *self.small.epochs))
        if self.small.topic_id is not None:
            lines.append(f"{_TOPIC_ID}{encode_uuid(self.small.topic_id)} 0 0")
        for base, sums in self.segments.items():
            stem = file_names.segment_name(base)
            lines += [f"{stem}{kind} {size} {crc}" for kind, (size, crc) in sums.items()]
        return format_sealed(lines)

    @classmethod
    def parse(cls, data: bytes, path: str) -> Checksums:
        """Parse the file. Raises CorruptFile."""
        if not data.endswith(b"\n") or b"#" not in data:
            raise CorruptFile(path, "has no checksum of itself")
        segments: dict[int, dict[str, Sum]] = {}
        small = Small()
        for name, size, crc in parse_sealed(data, path):
            known = Sum(int(size), int(crc))
            base = file_names.offset_of(name)
            if base is not None:
                segments.setdefault(base, {})[name.removeprefix(file_names.segment_name(base))] = (
                    known
                )
            elif name == file_names.LEADER_EPOCHS:
                small = small._replace(epochs=known)
            elif name.startswith(_TOPIC_ID):
                small = small._replace(topic_id=decode_uuid(name.removeprefix(_TOPIC_ID)))
        return cls(dict(segments), small)

    def missing(self, sizes: Mapping[int, Callable[[], int]], *, first: int | None) -> list[int]:
        """Return the flushed segments that are missing. `sizes` has the existing ones.

        Compaction replaces segments by fewer ones. So a segment is missing only if the one before
        it is unchanged. Segments before all others are missing if they hold records from offset
        `first` on; None if that is unknown.
        """
        if self.segments.keys() <= sizes.keys():
            return []
        # Segments newer than the checksums also show where one ended.
        bases = sorted(self.segments.keys() | sizes.keys())
        gone, intact = [], first is not None
        for base, following in zip(bases, [*bases[1:], 1 << 63], strict=True):
            if base in sizes:
                intact = base in self.segments and self._is_intact(base, sizes)
            elif intact and following > (first or 0):
                gone.append(base)
        return gone

    def closed_with(self, sizes: Mapping[int, Callable[[], int]]) -> bool:
        """Return whether the log still ends as it did when these checksums were written."""
        last = max(self.segments, default=-1)
        return last in sizes and max(sizes) == last and self._is_intact(last, sizes)

    def _is_intact(self, base: int, sizes: Mapping[int, Callable[[], int]]) -> bool:
        return sizes[base]() == self.segments[base].get(file_names.LOG, EMPTY).size


class ChecksumFile:
    """Writes `index-checksums`, unless compaction has made the checksums obsolete.

    Compaction replaces segments under their names. So the file is removed durably before that, and
    written again with the next flush. A flush that began earlier runs in a thread and must not
    restore it.
    """

    __slots__ = ("_files", "_lock", "suspended", "version")

    def __init__(self, files: Files) -> None:
        self._files = files
        self._lock = threading.Lock()
        self.version = 0
        self.suspended = False

    def suspend(self) -> None:
        """Announce a replacement of segments. On the loop's thread, before `remove`."""
        self.version += 1
        self.suspended = True

    def resume(self) -> None:
        self.suspended = False

    def remove(self, directory: str) -> None:
        """Remove the file. Waits for the disk. Durable when the directory is synced."""
        with self._lock, suppress(FileNotFoundError):
            self._files.unlink(os.path.join(directory, file_names.INDEX_CHECKSUMS))

    def write(self, directory: str, checksums: Checksums, version: int, *, sync: bool) -> None:
        """Write the file, unless segments were replaced since this version. Waits for the disk."""
        path, data = os.path.join(directory, file_names.INDEX_CHECKSUMS), checksums.encode()
        with self._lock:
            if version != self.version:
                return
            if sync:
                self._files.write_atomic(path, data)
            else:
                self._files.write_bytes(path + ".tmp", data)
                self._files.rename(path + ".tmp", path)
