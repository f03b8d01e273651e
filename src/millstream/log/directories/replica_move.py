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


class Part(NamedTuple):
    """Bytes of a segment that are still to be copied."""

    segment: Segment
    position: int
    end: int


class SourceChanged(Exception):
    """The log was truncated, or lost segments, under the copy.

    Look again at what is to be copied.
    """


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
        """Up to where the copy has whole segments."""
        done = [s for s, size in list(self._copied.items()) if size == s.size]
        following = {a: b.base_offset for a, b in zip(self.log.segments, self.log.segments[1:], strict=False)}
        ends = [following.get(segment, self.log.log_end_offset) for segment in done]
        return max(ends, default=self.log.log_start_offset)

    # -- copying

    def plan(self) -> list[Part]:
        """What is missing.

        Compaction, retention and truncation may have changed what was copied before.
        """
        if self.log.flushes.generation != self._generation:
            self._generation = self.log.flushes.generation
            self._copied.clear()
            self._synced.clear()
        current = set(self.log.segments)
        for segment in [s for s in self._copied if s not in current]:
            del self._copied[segment]
        self._synced &= current
        parts = [Part(s, self._copied.get(s, 0), s.size) for s in self.log.segments]
        return [part for part in parts if part.end > part.position or part.segment not in self._copied]

    def copy(self, parts: list[Part]) -> None:
        """Waits for the disk."""
        for segment, position, end in parts:
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
        """Waits for the disk."""
        for segment in [s for s in self._copied if s not in self._synced]:
            self._files.sync_file(self._path(segment, file_names.LOG))
            self._synced.add(segment)

    def is_synced(self, parts: list[Part]) -> bool:
        """But for what is missing."""
        return self._copied.keys() - {part.segment for part in parts} <= self._synced

    def _synced_below(self) -> int:
        """What is below this offset need not be synced again."""
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
        self._remove_leftovers()
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
        """(name, contents) of what stands beside the segments, as it is now."""
        log = self.log
        producers = snapshot.encode(log.producer_state.snapshot())
        files = [
            (file_names.LEADER_EPOCHS, log.epochs.encode()),
            (file_names.segment_name(log.log_end_offset) + file_names.SNAPSHOT, producers),
        ]
        if log.topic_id is not None:
            files.append((file_names.PARTITION_METADATA, format_partition_metadata(log.topic_id)))
        return files

    def _remove_leftovers(self) -> None:
        wanted = {file_names.segment_name(s.base_offset) + file_names.LOG for s in self.log.segments}
        for name in self._files.listdir(self.directory):
            if name not in wanted:
                self._files.unlink(os.path.join(self.directory, name))
