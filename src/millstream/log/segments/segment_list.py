"""The files of one log: its segments, from oldest to active, and its producer snapshots.

Knows nothing of producers, epochs or watermarks: it begins, closes, truncates, drops and swaps
segments, in an order that a crash at any step leaves whole. The list of segments is replaced, never
changed, so that a reader in a thread keeps the list it began with.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Final, Protocol

from millstream.log.config import LogConfig
from millstream.log.directories import file_names
from millstream.log.integrity.checksums import NEW_SEGMENT, read_sums, summed
from millstream.log.producers import snapshot as producer_snapshot
from millstream.log.producers.snapshot import SnapshotEntry
from millstream.log.segments.open_files import OpenFiles
from millstream.log.segments.roll_policy import NO_ROOM, RollPolicy
from millstream.log.segments.saved_checksums import SavedChecksums
from millstream.log.segments.segment import Segment
from millstream.ports.files import Files

_BASE: Final = attrgetter("base_offset")


class SegmentDisposal(Protocol):
    """Removes the files that are no longer part of a log."""

    def discard(
        self,
        directory: str,
        segments: Sequence[Segment],
        snapshots: Sequence[str],
        *,
        delay_ms: int,
    ) -> None:
        """Remove segments and snapshot files of the log in this directory.

        They may have readers for a while.
        """


def floor_segment(segments: list[Segment], offset: int) -> int:
    """Return the index of the segment that holds the offset; 0 if it lies before all of them."""
    return max(bisect_right(segments, offset, key=_BASE) - 1, 0)


class SegmentList:
    """`positions` remembers where reads of older segments ended.

    `unsynced` are the small files written since the last flush.
    """

    __slots__ = (
        "_disposal",
        "_pool",
        "_replacing",
        "_roll_policy",
        "_stale",
        "active",
        "checksums",
        "closing",
        "config",
        "directory",
        "files",
        "positions",
        "segments",
        "snapshots",
        "unsynced",
    )

    def __init__(
        self,
        files: Files,
        disposal: SegmentDisposal,
        pool: OpenFiles,
        directory: str,
        config: LogConfig,
        segments: list[Segment],
        snapshots: list[int],
    ) -> None:
        self.files = files
        self._disposal = disposal
        self._pool = pool
        self.directory = directory
        self.config = config
        self.segments = segments
        self.snapshots = snapshots
        self.active = segments[-1]
        self.active.log_file.active = True
        self.positions: dict[int, tuple[Segment, int]] = {}
        self.unsynced: set[str] = set()
        # files of failed rolls; they must be gone before the next append
        self._stale: list[str] = []
        self._roll_policy = RollPolicy(config)
        self.closing = False
        self.checksums = SavedChecksums(files)
        self._replacing = threading.RLock()  # held while files and list do not agree

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    def floor(self, offset: int) -> int:
        """Return the index of the segment that holds the offset."""
        return floor_segment(self.segments, offset)

    def write_small(self, name: str, data: bytes) -> None:
        """Write a small file beside the segments, synced with the next flush."""
        path = self.path(name)
        self.files.write_bytes(path, data)
        self.unsynced.add(path)

    # -- rolling

    def fits(self, size: int, last_offset: int, timestamp: int, now_ms: int) -> bool:
        """Return whether the active segment takes a batch; see `RollPolicy`."""
        room, active = self._roll_policy.room, self.active
        if (
            active.log_file.known_size + size <= room.size
            and last_offset <= room.last_offset
            and timestamp <= room.timestamp
        ):
            return True
        if self._stale:
            self._remove_stale()
        return self._roll_policy.fits(active, size, last_offset, timestamp, now_ms)

    def roll(self, base_offset: int, producers: Iterable[SnapshotEntry], now_ms: int) -> bool:
        """Begin a new segment. Return False if the active one is empty and begins there already."""
        old = self.active
        if not old.size and old.base_offset == base_offset:
            return False
        new = self._begin(base_offset, now_ms)
        try:
            self.take_snapshot(base_offset, producers)
            old.index.finish()
        except OSError:
            self._roll_policy.room = NO_ROOM
            self._leave(new)
            raise
        if old.size:
            self.segments = [*self.segments, new]
            self._begin_at(new)
        else:  # its base offset is too low for the next offsets
            self.segments = [*self.segments[:-1], new]
            self._begin_at(new)
            self._leave(old)
        return True

    def _leave(self, empty: Segment) -> None:
        """Remove a segment that is not part of the log and has no reader.

        If its file stayed between batches, the next start would find a log that ends there.
        """
        empty.close()
        self._stale += empty.names.paths()
        with suppress(OSError):
            self._remove_stale()

    def _remove_stale(self) -> None:
        while self._stale:
            with suppress(FileNotFoundError):
                self.files.unlink(self._stale[-1])
            self._stale.pop()

    def _begin_at(self, segment: Segment) -> None:
        """Append there from now on."""
        self.active = segment
        self._roll_policy.room = NO_ROOM

    def _begin(self, base_offset: int, now_ms: int) -> Segment:
        return Segment(
            self.files,
            self._pool,
            self.directory,
            base_offset,
            index_interval=self.config.index_interval_bytes,
            created_ms=now_ms,
            new=True,
        )

    # -- snapshots

    def take_snapshot(
        self, offset: int, producers: Iterable[SnapshotEntry], *, replace: bool = False
    ) -> None:
        """Save the state of the producers as of this offset, where recovery can begin.

        `replace` drops earlier snapshots that are not at the beginning of a segment.
        """
        if self.snapshots and self.snapshots[-1] >= offset:
            return
        if replace:
            bases = {segment.base_offset for segment in self.segments}
            self._discard((), lambda at: at not in bases)
        self.write_small(
            file_names.segment_name(offset) + file_names.SNAPSHOT,
            producer_snapshot.encode(producers),
        )
        self.snapshots = [*self.snapshots, offset]

    # -- dropping segments

    def drop_oldest(self, count: int) -> None:
        """Drop the first segments, for retention, with the snapshots before the remaining ones.

        The newest snapshot stays: producers expire by time, not with their records.
        """
        gone, self.segments = self.segments[:count], self.segments[count:]
        bound = min(self.segments[0].base_offset, self.snapshots[-1] if self.snapshots else 0)
        self.positions = {}
        self._discard(gone, lambda offset: offset < bound)

    def end_if_truncated(self, offset: int) -> int | None:
        """Return where a truncated log would end; None if that is before its files."""
        segment = self.segments[self.floor(offset)]
        if offset < segment.base_offset:
            return None
        position = segment.find(offset)
        return segment.end_before(segment.size if position is None else position)

    def replaced(self, segments: list[Segment]) -> bool:
        """Return whether the segments were replaced under a reader in a thread."""
        with self._replacing:
            return segments is not self.segments

    def truncate(self, offset: int, end: int) -> None:
        """Truncate to the offset.

        Later segments go first, durably: a crash must not bring them back.
        """
        with self._replacing:
            self._remove_stale()
            kept = self.floor(offset)
            last = self.segments[kept]
            self._discard(self.segments[:kept:-1], lambda at: at > end)
            self.segments = self.segments[: kept + 1]
            self.positions = {}
            self.files.sync_dir(self.directory)
            last.log_file.active = True
            sums = last.index_files.sums
            if sums is not None:
                last.index_files.sums = {kind: sums[kind] for kind in file_names.INDEXES}
            last.truncate(offset)
            last.file().sync()  # else a crash could bring the old end back under the next appends
            self._begin_at(last)

    def start_over(self, offset: int, now_ms: int) -> None:
        """Drop everything, and begin an empty segment at the offset."""
        with self._replacing:
            self._remove_stale()
            gone = self.segments
            self.positions = {}
            self._discard(gone[::-1], lambda at: True)
            self._begin_at(self._begin(offset, now_ms))
            self.segments = [self.active]
            self.files.sync_dir(self.directory)

    def swap(self, new: Sequence[int], old: set[int]) -> None:
        """Put staged segments (`.swap`) in the place of old ones.

        The next start completes a swap that a crash interrupted.
        """
        with self._replacing:
            replaced = [segment for segment in self.segments if segment.base_offset in old]
            if self.active in replaced:
                raise ValueError(f"the active segment of {self.directory} cannot be replaced")
            self._discard(replaced, lambda at: at in old and at not in new)
            interval = self.config.index_interval_bytes
            fresh = [
                Segment(self.files, self._pool, self.directory, base, index_interval=interval)
                for base in sorted(new)
            ]
            for segment in fresh:
                segment.names.suffix = file_names.SWAP
                segment.rename("")
                segment.index_files.sums = read_sums(self.files, segment.path)
            kept = [segment for segment in self.segments if segment.base_offset not in old]
            self.segments = sorted((*kept, *fresh), key=lambda segment: segment.base_offset)
            self.positions = {}
            self.unsynced.add(self.directory)
            self.checksums.resume()

    def _discard(self, segments: Sequence[Segment], is_discarded: Callable[[int], bool]) -> None:
        """Discard segments, and the snapshots at offsets for which `is_discarded` is true.

        Snapshots are dropped from the list only when they are gone: a later start would trust one
        that outlives its history.
        """
        gone = [offset for offset in self.snapshots if is_discarded(offset)]
        paths = [
            self.path(file_names.segment_name(offset) + file_names.SNAPSHOT) for offset in gone
        ]
        self._disposal.discard(
            self.directory, segments, paths, delay_ms=self.config.file_delete_delay_ms
        )
        self.snapshots = [offset for offset in self.snapshots if offset not in gone]
        self.unsynced.difference_update(paths)

    # -- settings and directories

    def update_config(self, config: LogConfig) -> None:
        self.config = config
        self._roll_policy.update_config(config)
        for segment in self.segments:
            segment.index.interval = config.index_interval_bytes

    def renamed(self, directory: str) -> None:
        """Follow a rename of the directory."""
        self.directory = directory
        for segment in self.segments:
            segment.names.directory = directory
        self.unsynced = {self.path(os.path.basename(path)) for path in self.unsynced}

    def relocate(self, directory: str, *, snapshot: int) -> None:
        """Continue in a copy with the same segments, and one snapshot of the producers."""
        old, copies = self.segments, [segment.relocated(directory) for segment in self.segments]
        for segment, copied in zip(old, copies, strict=True):
            copied.unchecked = segment.unchecked
            written = {kind: summed(data) for kind, data in segment.index.encoded()}
            copied.index_files.sums = {**NEW_SEGMENT, **written}
        self.directory = directory
        self.segments = copies
        self.checksums.not_saved()
        self._begin_at(self.segments[-1])
        self.snapshots = [snapshot]
        self.positions = {}
        self.unsynced = {
            self.path(file_names.segment_name(snapshot) + file_names.SNAPSHOT),
            self.path(file_names.PARTITION_METADATA),
        }
        for segment in self.segments:
            self.unsynced.update(segment.names.paths()[1:])
        for segment in old:
            segment.close()

    def close(self) -> None:
        for segment in self.segments:
            segment.close()
