"""Reading a log: whole batches by offset, offsets by timestamp, aborted transactions of a range.

All of it works on a snapshot of the list of segments, so it may run in a thread during appends.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.log.errors import DamagedBatch
from millstream.log.integrity.verification import check_whole, is_short, verified
from millstream.log.segments.segment import Segment, Span
from millstream.log.segments.segment_list import floor_segment
from millstream.log.segments.transaction_index import AbortedTransaction, search
from millstream.log.state import LogState
from millstream.ports.files import FileSlice
from millstream.wire.records.batch import BatchHeader, CorruptBatch, read_keys

_MAX_DECOMPRESSED = 1 << 28
_T = TypeVar("_T")


class ReadResult(NamedTuple):
    """Whole batches; `slice` is None if there are none.

    `end_offset` is the first offset after them.
    """

    slice: FileSlice | None
    size: int
    end_offset: int


def out_of_range(tp: TopicPartition, offset: int, start: int, end: int) -> ApiError:
    return ApiError(
        ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} of {tp} is outside {start} to {end}"
    )


def read_older(
    segments: list[Segment],
    offset: int,
    max_bytes: int,
    upto: int,
    at_least_one: bool,
    log_end: int,
    may_block: bool,
    positions: dict[int, tuple[Segment, int]],
) -> ReadResult:
    """Read batches that begin before the active segment.

    `positions` remembers where the last reads ended, since most readers continue there.
    """
    number = floor_segment(segments, offset)
    for segment, following in zip(segments[number:], [*segments[number + 1 :], None], strict=False):
        next_offset = following.base_offset if following else log_end
        known = positions.get(offset)
        if known is not None and known[0] is segment:
            span = segment.span_from(
                known[1], max_bytes, upto, at_least_one, next_offset, may_block
            )
        else:
            span = segment.span(offset, max_bytes, upto, at_least_one, next_offset, may_block)
        if span is None:
            check_whole(segment)
            continue
        if span.end == span.start:
            break
        if segment.unchecked is not None:
            span = verified(segment, span, may_block)
        _remember(positions, segment, span.end, span.end_offset)
        length = span.end - span.start
        return ReadResult(
            FileSlice(segment.log_file.file(), span.start, length), length, span.end_offset
        )
    return ReadResult(None, 0, offset)


def _remember(
    positions: dict[int, tuple[Segment, int]], segment: Segment, position: int, end_offset: int
) -> None:
    if position < segment.size:
        if len(positions) >= 32:
            positions.pop(next(iter(positions)), None)
        positions[end_offset] = (segment, position)


class LogSearch:
    """Searches a log.

    If its segments are replaced while a search runs in a thread, it runs again.
    """

    def __init__(self, log: LogState) -> None:
        self._log = log

    def by_timestamp(self, timestamp: int | None) -> Callable[[], tuple[int, int] | None]:
        """Return a search for a thread: it may wait for the disk and decode records.

        It returns (timestamp, offset) of the first record at or after a time, or, for None, of the
        record with the largest timestamp.
        """

        def search_segments(segments: list[Segment]) -> tuple[int, int] | None:
            if timestamp is None:
                return largest_timestamp(segments)
            return offset_for_timestamp(segments, timestamp, self._log.log_start_offset)

        return partial(self._run, search_segments)

    def aborted_transactions(self, first_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """Return (producer id, first offset) of the aborted transactions in a range, sorted."""
        transactions = self._run(
            lambda segments: aborted_transactions(segments, first_offset, end_offset)
        )
        return sorted(
            ((txn.producer_id, txn.first_offset) for txn in transactions), key=lambda pair: pair[1]
        )

    def _run(self, search_segments: Callable[[list[Segment]], _T]) -> _T:
        segments = self._log.segments
        try:
            return search_segments(segments)
        except (OSError, DamagedBatch) as error:
            if self._log.segment_list.replaced(segments):
                return self._run(search_segments)
            raise self._log.unreadable("cannot search", error) from error


def offset_for_timestamp(
    segments: list[Segment], timestamp: int, first_offset: int
) -> tuple[int, int] | None:
    """Return (timestamp, offset) of the first record from `first_offset` on at or after a time.

    May wait and decode.
    """
    for segment in segments:
        if segment.index.largest()[0] >= timestamp or is_short(segment):
            match = _search_segment(segment, timestamp, first_offset)
            if match is not None:
                return match
            check_whole(segment)
    return None


def _search_segment(segment: Segment, timestamp: int, first_offset: int) -> tuple[int, int] | None:
    begin = max(segment.index.times().offset_of(timestamp - 1), first_offset)
    position = segment.index.offsets().position_of(begin)
    for at, header in segment.batches(position):
        _verify(segment, at, header)
        if header.max_timestamp >= timestamp and header.last_offset >= first_offset:
            for offset, record_timestamp in _timestamps(segment, at, header):
                if record_timestamp >= timestamp and offset >= first_offset:
                    return record_timestamp, offset
    return None


def _timestamps(segment: Segment, position: int, header: BatchHeader) -> list[tuple[int, int]]:
    """Return (offset, timestamp) of the records of a batch.

    If the records cannot be decoded, only of the last one.
    """
    try:
        keys = read_keys(segment.log_file.read_batch(position, header), max_bytes=_MAX_DECOMPRESSED)
    except CorruptBatch:
        return [(header.last_offset, header.max_timestamp)]
    return [(offset, timestamp) for offset, timestamp, _, _ in keys]


def largest_timestamp(segments: list[Segment]) -> tuple[int, int] | None:
    """Return (timestamp, offset) of the first record with the largest timestamp.

    May wait for the disk, and decodes batches.
    """
    best = max(segments, key=lambda segment: segment.index.largest()[0])
    timestamp, offset = best.index.largest()
    if timestamp < 0:
        return None
    for at, header in best.batches(best.index.offsets().position_of(offset)):
        _verify(best, at, header)
        if header.max_timestamp == timestamp:
            offsets = (o for o, t in _timestamps(best, at, header) if t == timestamp)
            return timestamp, next(offsets, header.last_offset)
    check_whole(best)
    return None


def _verify(segment: Segment, position: int, header: BatchHeader) -> None:
    verified(segment, Span(position, position + header.size, header.next_offset), may_block=True)


def aborted_transactions(
    segments: list[Segment], first_offset: int, end_offset: int
) -> list[AbortedTransaction]:
    """Return the transactions whose records may lie in the range, in the order of their markers."""
    result: list[AbortedTransaction] = []
    for segment in segments[floor_segment(segments, first_offset) :]:
        transactions, complete = search(
            segment.index_files.transactions(), first_offset, end_offset
        )
        result += transactions
        if complete:
            break
    return result
