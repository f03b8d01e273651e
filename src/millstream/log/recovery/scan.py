"""Checks a segment batch by batch, and rebuilds everything that follows from the batches."""

from __future__ import annotations

from typing import Final, NamedTuple

from millstream.log.leader_epochs import LeaderEpochs
from millstream.log.producers.replay import apply_batch
from millstream.log.producers.state import ProducerState
from millstream.log.segments.segment import Segment
from millstream.wire.records.batch import BatchHeader, CorruptBatch, crc_matches, parse_header
from millstream.wire.records.layout import HEADER_SIZE

_WINDOW: Final = 1 << 20
_MAX_RELATIVE: Final = 0x7FFFFFFF


class Damage(NamedTuple):
    """The first damage of a segment."""

    position: int
    offset: int  # the end of what is good
    reason: str
    followed: bool  # a whole batch follows the damage, so it is not a torn write

    def __str__(self) -> str:
        return f"at byte {self.position}, offset {self.offset}: {self.reason}"


class _Window:
    """Part of a file in memory."""

    def __init__(self, segment: Segment) -> None:
        self._file = segment.file()
        self._start = 0
        self.data = b""

    def at(self, position: int, n: int) -> int:
        """Load n bytes from a file position (fewer at the end). Return their index in `data`."""
        at = position - self._start
        if at + n > len(self.data):
            self.data = self._file.pread(position, max(_WINDOW, n))
            self._start, at = position, 0
        return at


def scan(
    segment: Segment,
    state: ProducerState | None = None,
    epochs: LeaderEpochs | None = None,
    *,
    begin: tuple[int, int] | None = None,
    before: int | None = None,
    gaps: bool = True,
) -> tuple[int, Damage | None]:
    """Scan a segment. Waits for the disk.

    Adds every good batch to the (reset) indexes of the segment, and to the producer state and
    epochs if they are passed. The scan starts at `begin`, a position and its offset. `before` is
    the base offset of the next segment. Without one, and without `gaps`, a last batch that does not
    directly follow the others has a damaged offset.

    Return the offset after the last good batch, and the first damage or None.
    """
    window = _Window(segment)
    size = segment.size
    position, end = begin or (0, segment.base_offset)
    while position < size:
        try:
            at = window.at(position, HEADER_SIZE)
            header = parse_header(window.data, at)
            at = window.at(position, header.size) if position + header.size <= size else at
            _check(segment, window.data, at, header, end, size - position)
            if header.base_offset > end:
                _check_gap(window, position + header.size, size, header, before, gaps)
                at = window.at(position, header.size)
            _apply(segment, position, header, window.data, at, state, epochs)
        except CorruptBatch as error:
            followed = _whole_batch_follows(segment, window, position, size)
            return end, Damage(position, end, error.reason, followed)
        position += header.size
        end = header.next_offset
    return end, None


def _check(
    segment: Segment, data: bytes, at: int, header: BatchHeader, end: int, left: int
) -> None:
    if header.size > left:
        raise CorruptBatch(f"a batch of {header.size} bytes, of which {left} are in the file")
    if not crc_matches(data, at, header):
        raise CorruptBatch("a batch that does not match its checksum")
    if header.base_offset < end or header.last_offset_delta < 0:
        raise CorruptBatch(f"a batch at offset {header.base_offset} after offset {end}")
    if header.last_offset - segment.base_offset > _MAX_RELATIVE:
        raise CorruptBatch(f"offset {header.last_offset} is too far from the segment's first")


def _check_gap(
    window: _Window, following: int, size: int, header: BatchHeader, before: int | None, gaps: bool
) -> None:
    """Check the offset of a batch after a gap, which its checksum does not cover.

    A batch that jumps ahead is right only if its successor does too.
    """
    if following < size:
        at = window.at(following, HEADER_SIZE)
        try:
            before = parse_header(window.data, at).base_offset
        except CorruptBatch:
            return  # the scan ends here in any case
    elif before is None and not gaps:
        before = -1
    if before is not None and header.next_offset > before:
        raise CorruptBatch(f"a batch at offset {header.base_offset}, which does not belong here")


def _apply(
    segment: Segment,
    position: int,
    header: BatchHeader,
    data: bytes,
    at: int,
    state: ProducerState | None,
    epochs: LeaderEpochs | None,
) -> None:
    if state is not None and header.producer_id >= 0:
        batch = memoryview(data)[at : at + header.size] if header.control else b""
        apply_batch(state, segment, header, batch)
    segment.index.note(position, header.size, header.last_offset, header.max_timestamp)
    if epochs is not None and header.leader_epoch > epochs.latest:
        epochs.assign(header.leader_epoch, header.base_offset)


def _whole_batch_follows(segment: Segment, window: _Window, position: int, size: int) -> bool:
    """Return whether a good batch follows a bad one, if the length of the bad one is plausible."""
    try:
        bad = parse_header(window.data, window.at(position, HEADER_SIZE))
        position += bad.size
        following = parse_header(window.data, window.at(position, HEADER_SIZE))
        if position + following.size > size:
            return False
        return crc_matches(window.data, window.at(position, following.size), following)
    except CorruptBatch:
        return False
