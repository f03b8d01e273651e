"""The copy of a replica that is relocated to another data directory (KIP-113)."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from millstream.log.directories import file_names
from millstream.log.directories.checkpoints import format_partition_metadata
from millstream.log.directories.log_directory import LogDir
from millstream.log.partition_log import PartitionLog
from millstream.log.producers import snapshot
from millstream.log.segments.segment import Segment

_CHUNK: Final = 1 << 20


class LeftBehind(NamedTuple):
    """The directory of a log before its relocation, and the end of the log then."""

    directory: str
    end_offset: int
    renamed: bool = False


class CopyRange(NamedTuple):
    """A range of a segment that is not copied yet."""

    segment: Segment
    position: int
    end: int


class SourceChanged(Exception):
    """The log was truncated, or lost segments, during the copy: plan again."""


class ReplicaMove:
    """A replica that is being relocated. `ReplicaMoves.futures` shows it, like a log."""

    def __init__(self, log: PartitionLog, target: LogDir) -> None:
        self._files = log.files
        self.log = log
        self.tp = log.tp
        self.target = target
        self.directory = target.file(file_names.directory_name(log.tp, "future"))
        self.cancelled = False
        self._generation = log.flushes.generation
        self._copied: dict[Segment, int] = {}
        self._synced: set[Segment] = set()

    @property
    def log_dir(self) -> str:
        return self.target.path

    @property
    def size(self) -> int:
        return sum(list(self._copied.values()))

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def log_end_offset(self) -> int:
        """The offset up to which the copy has whole segments."""
        done = [s for s, size in list(self._copied.items()) if size == s.size]
        following = {
            a: b.base_offset for a, b in zip(self.log.segments, self.log.segments[1:], strict=False)
        }
        ends = [following.get(segment, self.log.log_end_offset) for segment in done]
        return max(ends, default=self.log.log_start_offset)

    # -- copying

    def plan(self) -> list[CopyRange]:
        """Return the missing ranges.

        Compaction, retention and truncation may have changed segments that were copied before.
        """
        if self.log.flushes.generation != self._generation:
            self._generation = self.log.flushes.generation
            self._copied.clear()
            self._synced.clear()
        current = set(self.log.segments)
        for segment in [s for s in self._copied if s not in current]:
            del self._copied[segment]
        self._synced &= current
        ranges = [CopyRange(s, self._copied.get(s, 0), s.size) for s in self.log.segments]
        return [
            range_
            for range_ in ranges
            if range_.end > range_.position or range_.segment not in self._copied
        ]

    def copy(self, ranges: list[CopyRange]) -> None:
        """Copy ranges. Waits for the disk."""
        for segment, position, end in ranges:
            self._synced.discard(segment)
            out = self._files.open(self._path(segment, file_names.LOG), create=True)
            try:
                out.truncate(position)
                while position < end:
                    chunk = self._read(segment, position, min(_CHUNK, end - position))
                    out.append((chunk,))
                    position += len(chunk)
            finally:
                out.close()
            self._copied[segment] = end

    def _read(self, segment: Segment, position: int, n: int) -> bytes:
        try:
            chunk = segment.file().pread(position, n)
        except FileNotFoundError:
            raise SourceChanged from None
        except OSError as error:
            raise self.log.failure("cannot read", error) from error
        if not chunk:
            raise SourceChanged
        return chunk

    def sync(self) -> None:
        """Sync the copied files. Waits for the disk."""
        for segment in [s for s in self._copied if s not in self._synced]:
            self._files.sync_file(self._path(segment, file_names.LOG))
            self._synced.add(segment)

    def is_synced(self, ranges: list[CopyRange]) -> bool:
        """Return whether everything is synced, except for the missing ranges."""
        return self._copied.keys() - {range_.segment for range_ in ranges} <= self._synced

    def _synced_below(self) -> int:
        """Return the offset below which everything is synced."""
        unsynced = (s.base_offset for s in self.log.segments if s not in self._synced)
        return next(unsynced, self.log.log_end_offset)

    def _path(self, segment: Segment, kind: str) -> str:
        return os.path.join(self.directory, file_names.segment_name(segment.base_offset) + kind)

    def switch(self) -> LeftBehind:
        """Copy the rest and let the log continue in the copy, on the event loop.

        Return the directory that the log has left.
        """
        self.copy(self.plan())
        old, end = self.log.directory, self.log.log_end_offset
        self._remove_stale_files()
        for segment in self.log.segments:
            for kind, data in segment.index.encoded():
                self._files.write_bytes(self._path(segment, kind), data)
        for name, data in self._small_files():
            self._files.write_bytes(os.path.join(self.directory, name), data)
        final = self.target.file(file_names.directory_name(self.tp))
        self._files.rename(self.directory, final)
        self.directory = final
        self.log.relocate(final, synced_below=self._synced_below())
        return LeftBehind(old, end)

    def _small_files(self) -> list[tuple[str, bytes]]:
        """Return (name, contents) of the files beside the segments, as of now."""
        log = self.log
        producers = snapshot.encode(log.producer_state.snapshot())
        files = [
            (file_names.LEADER_EPOCHS, log.epochs.encode()),
            (file_names.segment_name(log.log_end_offset) + file_names.SNAPSHOT, producers),
        ]
        if log.topic_id is not None:
            files.append((file_names.PARTITION_METADATA, format_partition_metadata(log.topic_id)))
        return files

    def _remove_stale_files(self) -> None:
        expected = {
            file_names.segment_name(s.base_offset) + file_names.LOG for s in self.log.segments
        }
        for name in self._files.listdir(self.directory):
            if name not in expected:
                self._files.unlink(os.path.join(self.directory, name))
