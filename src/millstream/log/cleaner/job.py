"""The messages between the cleaner and its child process. The broker imports no more than this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

UNLIMITED: Final = float("inf")
JOBS: Final = "millstream.log.cleaner.compaction"
"""The module whose `begin`, `clean_group` and `end` the child runs."""


class ActiveProducer(NamedTuple):
    """The origin of a producer's state: its last batch of data, or its marker of that epoch.

    `last_data_offset` is -1 in the latter case.
    """

    last_data_offset: int
    epoch: int


class Retention(NamedTuple):
    """The rules of one round of cleaning.

    The round stops at `end_offset`: the batch that ends there stays, empty if necessary, so that
    the log never seems to end earlier than before. `levels` are those of codecs. Expired tombstones
    and markers go only with `drop_deletions`.
    """

    now_ms: int
    delete_retention_ms: int
    end_offset: int
    active_producers: Mapping[int, ActiveProducer]
    levels: Mapping[int, int]
    max_decompressed_bytes: int = 1 << 30
    drop_deletions: bool = True


class SourceSegment(NamedTuple):
    """A closed segment to be cleaned."""

    base_offset: int
    size: int


class CleanJob(NamedTuple):
    """One round for one log.

    `segments` are all that begin below `rules.end_offset`, from the start of the log. `later` are
    the base offsets of the rest: their transaction indexes may have entries about records of
    `segments`.
    """

    directory: str
    segments: tuple[SourceSegment, ...]
    first_dirty_offset: int
    rules: Retention
    later: tuple[int, ...] = ()
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    dedupe_buffer_bytes: int = 128 << 20
    load_factor: float = 0.9
    io_buffer_bytes: int = 512 << 10
    io_max_bytes_per_s: float = UNLIMITED


class CleanPlan(NamedTuple):
    """The result of `begin`: the groups by their base offsets, and where the next round starts."""

    groups: tuple[tuple[int, ...], ...]
    end_offset: int


class CleanedFile(NamedTuple):
    """A finished `.cleaned` segment."""

    base_offset: int
    size: int


class CleanedGroup(NamedTuple):
    """The segments `new` replace the segments `old`."""

    old: tuple[int, ...]
    new: tuple[CleanedFile, ...]


class CleanStats:
    """Statistics of a round; `map_*` belongs to the first pass."""

    def __init__(self) -> None:
        self.map_bytes_read = 0
        self.map_records_read = 0
        self.map_keys = 0
        self.map_capacity = 0
        self.bytes_read = 0
        self.bytes_written = 0
        self.records_read = 0
        self.records_kept = 0
        self.map_seconds = 0.0
        self.clean_seconds = 0.0


class NoRound(Exception):
    """The child has no round in progress: it was restarted since."""
