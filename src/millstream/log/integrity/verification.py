"""Verification of reads: checksums and offsets of batches that an earlier process wrote.

Clients seldom verify checksums (librdkafka does not by default), and a checksum does not cover the
base offset of a batch. So the broker verifies a batch once, before it is first served. The batches
before and after it bound its offsets.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from millstream.log.directories import file_names
from millstream.log.errors import ColdRead, DamagedBatch
from millstream.log.segments.segment import Segment, Span
from millstream.wire.records.batch import BatchHeader, CorruptBatch, crc_matches, parse_header
from millstream.wire.records.layout import LENGTH_AT

_WINDOW: Final = 1 << 20


def verified(segment: Segment, span: Span, may_block: bool) -> Span:
    """Return the span, or the part before its first damaged batch.

    Raise DamagedBatch if the first batch is damaged.
    """
    unchecked = segment.unchecked
    if unchecked is None or span.start >= unchecked.end or span.start == span.end:
        return span
    end = min(span.end, unchecked.end)
    if not unchecked.covers(span.start, end):
        if not may_block:
            raise ColdRead
        good, damage = _check(segment, span, end)
        unchecked.add(span.start, good.end)
        if damage is not None:
            if good.end == span.start:
                raise damage
            return good
    if span.end == segment.size < unchecked.short_of:
        # The next segment does not directly follow these records.
        return span._replace(end_offset=_end_of(segment, span))
    return span


def is_short(segment: Segment) -> bool:
    """Return whether the file is shorter than it was when it was closed."""
    return segment.unchecked is not None and segment.size < segment.unchecked.short_of


def check_whole(segment: Segment) -> None:
    """Raise DamagedBatch if the file is shorter than it was when it was closed."""
    if is_short(segment):
        raise _short(segment)


def _short(segment: Segment) -> DamagedBatch:
    had = segment.unchecked.short_of if segment.unchecked is not None else 0
    reason = f"the file ends here, and had {had} bytes when it was closed"
    return DamagedBatch(segment.path(file_names.LOG), segment.size, reason)


def _check(segment: Segment, span: Span, end: int) -> tuple[Span, DamagedBatch | None]:
    """Return the good part of a span up to `end`, and the damage behind it or None."""
    position, before = _anchor(segment, span.start)
    offset = before
    data = b""
    start = position
    while position < end:
        try:
            header, data, start = _batch_at(segment, position, data, start)
            if header.base_offset < before or header.last_offset_delta < 0:
                raise CorruptBatch(f"a batch at offset {header.base_offset} after offset {before}")
            if header.next_offset > _next_base(segment, position + header.size, span, data, start):
                raise CorruptBatch(
                    f"a batch that ends with offset {header.last_offset}, beyond the next one"
                )
        except CorruptBatch as error:
            damage = DamagedBatch(segment.path(file_names.LOG), position, error.reason)
            return Span(span.start, position, offset), damage
        position += header.size
        before = offset = header.next_offset
    return Span(span.start, position, offset), None


def _anchor(segment: Segment, start: int) -> tuple[int, int]:
    """Return (start, the offset after the batch before it), from the last indexed batch before it.

    Raise DamagedBatch if the batch before it is misplaced: its offset may be the requested one.
    """
    index = segment.index.offsets()
    slot = bisect_right(index.positions, max(start - 1, 0)) - 1
    begin = index.positions[slot] if slot >= 0 else 0
    before, last, doubt = segment.base_offset, begin, ""
    for position, header in segment.batches(begin):
        if position >= start:
            break
        last, doubt = position, ""
        if header.base_offset < before:
            doubt = f"a batch at offset {header.base_offset} after offset {before}"
        if position == begin and slot >= 0 and segment.index_files.sums is not None:
            # Apache Kafka's entries may refer to a later batch, so entries of unknown origin prove
            # nothing.
            known = index.base_offset + index.offsets[slot]
            if header.last_offset != known:
                doubt = f"a batch that ends with offset {header.last_offset}, where the index has {known}"
        before = header.next_offset
    if doubt:
        raise DamagedBatch(segment.path(file_names.LOG), last, doubt)
    return start, before


def _batch_at(
    segment: Segment, position: int, data: bytes, start: int
) -> tuple[BatchHeader, bytes, int]:
    """Return the header of a whole batch with a good checksum, and the data read with it."""
    at = position - start
    try:
        header = parse_header(data, at) if at < len(data) else None
    except CorruptBatch:
        header = None
    if header is None or at + header.size > len(data):
        size = max(_WINDOW, header.size if header is not None else 0)
        data, start, at = segment.file().pread(position, size), position, 0
        header = parse_header(data, at)
        if header.size > len(data) and position + header.size <= segment.size:
            data = segment.file().pread(position, header.size)
    if at + header.size > len(data):
        raise CorruptBatch(
            f"a batch of {header.size} bytes, of which {len(data) - at} are in the file"
        )
    if not crc_matches(data, at, header):
        raise CorruptBatch("a batch that does not match its checksum")
    return header, data, start


def _next_base(segment: Segment, position: int, span: Span, data: bytes, start: int) -> int:
    """Return the offset that the batch before a position may not reach."""
    if position >= span.end:
        return span.end_offset
    at = position - start
    base = data[at : at + LENGTH_AT]
    if len(base) < LENGTH_AT:
        base = segment.file().pread(position, LENGTH_AT)
    return int.from_bytes(base, "big", signed=True)


def _end_of(segment: Segment, span: Span) -> int:
    end = segment.base_offset
    for _position, header in segment.batches(span.start):
        end = header.next_offset
    return end


def check_part(
    segment: Segment, position: int, size: int, before: int, next_base: int, *, end: int
) -> tuple[int, int, DamagedBatch | None]:
    """Verify batches of a segment from a position on, until `size` bytes or a damaged batch.

    Return (where to continue, the offset before it, the damage). `before` is the lowest offset that
    the batches may have. `end` is the size of the segment, or of its written part, and `next_base`
    the offset there. After a damaged batch whose length is not plausible, the end is returned.
    Waits for the disk. Raises OSError.
    """
    limit, data, start = min(position + size, end), b"", position
    span = Span(position, end, next_base)
    if is_short(segment):
        return end, before, _short(segment)
    while position < limit:
        try:
            header, data, start = _batch_at(segment, position, data, start)
            if header.base_offset < before:
                raise CorruptBatch(f"a batch at offset {header.base_offset} after offset {before}")
            if header.next_offset > _next_base(segment, position + header.size, span, data, start):
                raise CorruptBatch(
                    f"a batch that ends with offset {header.last_offset}, beyond the next one"
                )
        except CorruptBatch as error:
            damage = DamagedBatch(segment.path(file_names.LOG), position, error.reason)
            return _after_damage(segment, position, end), before, damage
        position += header.size
        before = header.next_offset
    return position, before, None


def _after_damage(segment: Segment, position: int, end: int) -> int:
    """Return the position after a damaged batch if a batch is there, otherwise the end."""
    try:
        following = position + segment.log_file.header_at(position).size
        if following < end and segment.log_file.header_at(following).size:
            return following
    except DamagedBatch:
        pass
    return end
