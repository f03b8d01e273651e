"""The files of one log: its segments, from the oldest to the active one, and its producer snapshots.

Knows nothing of producers, epochs or watermarks: it begins, closes, truncates, drops and swaps segments, in an order
that a crash at any step leaves whole. The list of segments is replaced, never changed, so that a reader in a thread
keeps the one it began with.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from millstream.log.config import LogConfig
from millstream.log.directories import file_names
from millstream.log.integrity.checksums import (
    NEW_SEGMENT,
    ChecksumFile,
    Checksums,
    SegmentSums,
    Small,
    Sum,
    read_sums,
    summed,
)
from millstream.log.producers import snapshot as producer_snapshot
from millstream.log.producers.snapshot import SnapshotEntry
from millstream.log.segments.open_files import OpenFiles
from millstream.log.segments.segment import Segment
from millstream.ports.files import Files

MAX_RELATIVE: Final = 0x7FFFFFFF
_BASE: Final = attrgetter("base_offset")


class SegmentDisposal(Protocol):
    """Removes the files that are no longer part of a log."""

    def discard(
        self, directory: str, segments: Sequence[Segment], snapshots: Sequence[str], *, delay_ms: int
    ) -> None:
        """Remove segments and snapshot files of the log in this directory.

        They may have readers for a while.
        """


def floor_segment(segments: list[Segment], offset: int) -> int:
    """Return the index of the segment that holds the offset; 0 if it lies before all of them."""
    return max(bisect_right(segments, offset, key=_BASE) - 1, 0)


class _Room(NamedTuple):
    """Limits within which a batch fits the active segment whatever else it is like."""

    size: int  # of the segment, with the batch
    last_offset: int
    timestamp: int


_NO_ROOM = _Room(-1, -1, -1)


class LogFiles:
    """`positions` remembers where reads of older segments ended; `unsynced` the small files written since a flush."""

    __slots__ = (
        "_disposal",
        "_leftovers",
        "_pool",
        "_replacing",
        "_roomy",
        "_saved_checksums",
        "active",
        "checksum_file",
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
        self.active.active = True
        self.positions: dict[int, tuple[Segment, int]] = {}
        self.unsynced: set[str] = set()
        self._leftovers: list[str] = []  # of rolls that failed; nothing is appended before they are gone
        self._roomy = _NO_ROOM
        self.closing = False
        self.checksum_file = ChecksumFile(files)
        self._saved_checksums: tuple[object, SegmentSums | None] | None = None
        self._replacing = threading.RLock()  # held while files and list do not agree

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    def floor(self, offset: int) -> int:
        """The number of the segment that holds the offset."""
        return floor_segment(self.segments, offset)

    def write_small(self, name: str, data: bytes) -> None:
        """A small file beside the segments, synced with the next flush."""
        path = self.path(name)
        self.files.write_bytes(path, data)
        self.unsynced.add(path)

    # -- rolling

    def fits(self, size: int, last_offset: int, timestamp: int, now_ms: int) -> bool:
        """Whether the active segment takes a batch, by size, offsets, index entries and time."""
        roomy, held = self._roomy, self.active.size
        if held + size <= roomy.size and last_offset <= roomy.last_offset and timestamp <= roomy.timestamp:
            return True
        if self._leftovers:
            self._remove_leftovers()
        if not self._has_room(size, last_offset, timestamp, now_ms):
            return False
        if held:
            self._roomy = self._measure_room()
        return True

    def _measure_room(self) -> _Room:
        """Up to where batches fit for sure, so that not each of them has to be held against every limit."""
        segment, config = self.active, self.config
        first = segment.first_timestamp()
        if first < 0:
            return _NO_ROOM  # the clock decides, not the records
        offsets, times = segment.index_entries()
        entries = min(config.segment_index_bytes >> 3, config.segment_index_bytes // 12 - 1) - max(
            offsets, times
        )
        # There is at most one entry for so many bytes; two less than there is room for, one of them since the next is due already.
        indexed = segment.size + max(0, entries - 2) * config.index_interval_bytes
        return _Room(
            min(config.segment_bytes, indexed),
            segment.base_offset + MAX_RELATIVE,
            first + self._limit_ms(),
        )

    def _limit_ms(self) -> int:
        """How long the active segment may stay open."""
        config = self.config
        limit = config.segment_ms
        if config.max_compaction_lag_ms < limit and config.compact:
            limit = config.max_compaction_lag_ms  # only closed segments are compacted (KIP-354)
        if config.segment_jitter_ms:
            limit -= config.jitter_ms(self.directory, self.active.base_offset)
        return limit

    def _has_room(self, size: int, last_offset: int, timestamp: int, now_ms: int) -> bool:
        segment, config = self.active, self.config
        held = segment.size
        if held + size > config.segment_bytes or last_offset - segment.base_offset > MAX_RELATIVE:
            return False
        if not held:
            return True
        offsets, times = segment.index_entries()
        return (
            offsets < config.segment_index_bytes >> 3
            and times < config.segment_index_bytes // 12 - 1
            and segment.waited_ms(now_ms, timestamp) <= self._limit_ms()
        )

    def roll(self, base_offset: int, producers: Iterable[SnapshotEntry], now_ms: int) -> bool:
        """Begin a new segment; False where the active one is empty and begins there already."""
        old = self.active
        if not old.size and old.base_offset == base_offset:
            return False
        new = self._begin(base_offset, now_ms)
        try:
            self.take_snapshot(base_offset, producers)
            old.finish()
        except OSError:
            self._roomy = _NO_ROOM
            self._leave(new)
            raise
        if old.size:
            self.segments = [*self.segments, new]
            self._begin_at(new)
        else:  # it began too early for the offsets to come
            self.segments = [*self.segments[:-1], new]
            self._begin_at(new)
            self._leave(old)
        return True

    def _leave(self, empty: Segment) -> None:
        """A segment that is not part of the log and has no reader. Where its file stays and batches come to lie on both sides of its
        offset, the next start finds a log that ends there."""
        empty.close()
        self._leftovers += empty.paths()
        with suppress(OSError):
            self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        while self._leftovers:
            with suppress(FileNotFoundError):
                self.files.unlink(self._leftovers[-1])
            self._leftovers.pop()

    def _begin_at(self, segment: Segment) -> None:
        """Appends go there from now on."""
        self.active = segment
        self._roomy = _NO_ROOM

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
        """Save the state of the producers as of this offset, so that recovery need not begin further back. `replace`
        forgets earlier ones that are not at the beginning of a segment."""
        if self.snapshots and self.snapshots[-1] >= offset:
            return
        if replace:
            bases = {segment.base_offset for segment in self.segments}
            self._discard((), lambda at: at not in bases)
        self.write_small(
            file_names.segment_name(offset) + file_names.SNAPSHOT, producer_snapshot.encode(producers)
        )
        self.snapshots = [*self.snapshots, offset]

    # -- checksums

    def unsaved_checksums(self, generation: int, small: Small) -> Checksums | None:
        """What `index-checksums` should hold, if it holds something else. `small` is of the files beside the segments.

        The offset and time index of the active segment grow all the time. Their part that was flushed with
        the last change of anything else is enough, until the log is closed.
        """
        if self.checksum_file.suspended:
            return None
        segments = {segment.base_offset: sums for segment in self.segments if (sums := self._sums(segment))}
        aborted = self.active.sums and self.active.sums[file_names.TRANSACTION_INDEX]
        closed = {base: sums for base, sums in segments.items() if base != self.active.base_offset}
        key = (generation, self.checksum_file.version, self.active.base_offset, closed, aborted, small)
        saved = self._saved_checksums
        if saved is not None and saved[0] == key and (not self.closing or saved[1] == self.active.sums):
            return None
        self._saved_checksums = (key, self.active.sums)
        return Checksums(segments, small)

    def _sums(self, segment: Segment) -> SegmentSums | None:
        if segment.sums is None or file_names.LOG in segment.sums:
            return segment.sums
        sums = {file_names.LOG: Sum(segment.size, 0), **segment.sums}
        if segment is not self.active:
            segment.sums = sums
        return sums

    def checksums_not_saved(self) -> None:
        """What `unsaved_checksums` returned did not reach the file."""
        self._saved_checksums = None

    # -- losing segments

    def drop_oldest(self, count: int) -> None:
        """Retention: the first segments go, with the snapshots before what is left. The newest snapshot stays in any
        case: producers are forgotten by time, not with their records."""
        gone, self.segments = self.segments[:count], self.segments[count:]
        bound = min(self.segments[0].base_offset, self.snapshots[-1] if self.snapshots else 0)
        self.positions = {}
        self._discard(gone, lambda offset: offset < bound)

    def end_if_truncated(self, offset: int) -> int | None:
        """Where the log would end if everything from the offset on went; None where that is before its files."""
        segment = self.segments[self.floor(offset)]
        if offset < segment.base_offset:
            return None
        position = segment.find(offset)
        return segment.end_before(segment.size if position is None else position)

    def replaced(self, segments: list[Segment]) -> bool:
        """Whether there are other segments than when a reader in a thread began with these, and found files gone."""
        with self._replacing:
            return segments is not self.segments

    def truncate(self, offset: int, end: int) -> None:
        """Cut at the offset. Later segments go first, and durably: a crash must not bring them back behind a gap."""
        with self._replacing:
            self._truncate(offset, end)

    def _truncate(self, offset: int, end: int) -> None:
        self._remove_leftovers()
        kept = self.floor(offset)
        last = self.segments[kept]
        self._discard(self.segments[:kept:-1], lambda at: at > end)
        self.segments = self.segments[: kept + 1]
        self.positions = {}
        self.files.sync_dir(self.directory)
        last.active = True
        if last.sums is not None:
            last.sums = {kind: last.sums[kind] for kind in file_names.INDEXES}
        last.truncate(offset)
        last.file().sync()  # else a crash could bring the old end back under what is appended next
        self._begin_at(last)

    def start_over(self, offset: int, now_ms: int) -> None:
        """Everything goes; an empty segment begins at the offset."""
        with self._replacing:
            self._remove_leftovers()
            gone = self.segments
            self.positions = {}
            self._discard(gone[::-1], lambda at: True)
            self._begin_at(self._begin(offset, now_ms))
            self.segments = [self.active]
            self.files.sync_dir(self.directory)

    def swap(self, new: Sequence[int], old: set[int]) -> None:
        """Put staged segments (`.swap`) in the place of old ones; a crash in between is completed at the next start."""
        with self._replacing:
            self._swap(new, old)

    def _swap(self, new: Sequence[int], old: set[int]) -> None:
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
            segment.suffix = file_names.SWAP
            segment.rename("")
            segment.sums = read_sums(self.files, segment.path)
        kept = [segment for segment in self.segments if segment.base_offset not in old]
        self.segments = sorted((*kept, *fresh), key=lambda segment: segment.base_offset)
        self.positions = {}
        self.unsynced.add(self.directory)
        self._saved_checksums = None
        self.checksum_file.resume()

    def _discard(self, segments: Sequence[Segment], doomed: Callable[[int], bool]) -> None:
        """Segments go, and the snapshots of which `doomed` says so. These are forgotten only when they are gone: one that outlived the
        history it tells of would be believed by a later start."""
        gone = [offset for offset in self.snapshots if doomed(offset)]
        paths = [self.path(file_names.segment_name(offset) + file_names.SNAPSHOT) for offset in gone]
        self._disposal.discard(self.directory, segments, paths, delay_ms=self.config.file_delete_delay_ms)
        self.snapshots = [offset for offset in self.snapshots if offset not in gone]
        self.unsynced.difference_update(paths)

    # -- the rest

    def update_config(self, config: LogConfig) -> None:
        self.config = config
        self._roomy = _NO_ROOM
        for segment in self.segments:
            segment.index_interval = config.index_interval_bytes

    def moved_to(self, directory: str) -> None:
        """The directory was renamed."""
        self.directory = directory
        for segment in self.segments:
            segment.directory = directory
        self.unsynced = {self.path(os.path.basename(path)) for path in self.unsynced}

    def relocate(self, directory: str, *, snapshot: int) -> None:
        """Go on with a copy: same segments and indexes, other files; of the producers one snapshot was copied."""
        old, copies = self.segments, [segment.relocated(directory) for segment in self.segments]
        for segment, copied in zip(old, copies, strict=True):
            copied.unchecked = segment.unchecked
            written = {kind: summed(data) for kind, data in segment.index_files()}
            copied.sums = {**NEW_SEGMENT, **written}
        self.directory = directory
        self.segments = copies
        self._saved_checksums = None
        self._begin_at(self.segments[-1])
        self.snapshots = [snapshot]
        self.positions = {}
        self.unsynced = {
            self.path(file_names.segment_name(snapshot) + file_names.SNAPSHOT),
            self.path(file_names.PARTITION_METADATA),
        }
        for segment in self.segments:
            self.unsynced.update(segment.paths()[1:])
        for segment in old:
            segment.close()

    def close(self) -> None:
        for segment in self.segments:
            segment.close()
