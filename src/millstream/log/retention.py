"""Decides which segments retention deletes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.log.config import LogConfig


class RetainedSegment(Protocol):
    """The facts about a segment that retention needs."""

    base_offset: int

    @property
    def size(self) -> int: ...
    def largest_timestamp(self) -> int: ...


def deletable(
    segments: Sequence[RetainedSegment],
    config: LogConfig,
    *,
    log_start: int,
    high_watermark: int,
    end: int,
    now_ms: int,
) -> int:
    """Return how many of the oldest segments to delete.

    Those below the log start, over retention.bytes, or past retention.ms. Never a segment at or
    above the high watermark, so the log start cannot pass it. The last segment only if it has data.
    """
    count = _below_log_start(segments, log_start, high_watermark)
    if not config.delete:
        return count
    return max(
        count,
        _over_size(segments, config.retention_bytes, high_watermark, end),
        _over_age(segments, config.retention_ms, high_watermark, end, now_ms),
    )


def _removable(
    segments: Sequence[RetainedSegment], number: int, high_watermark: int, end: int
) -> bool:
    if number + 1 < len(segments):
        return high_watermark >= segments[number + 1].base_offset
    return high_watermark >= end and segments[number].size > 0


def _below_log_start(
    segments: Sequence[RetainedSegment], log_start: int, high_watermark: int
) -> int:
    bound = min(log_start, high_watermark)
    count = 0
    while count + 1 < len(segments) and segments[count + 1].base_offset <= bound:
        count += 1
    return count


def _over_size(
    segments: Sequence[RetainedSegment], retention_bytes: int, high_watermark: int, end: int
) -> int:
    if retention_bytes < 0:
        return 0
    excess = sum(segment.size for segment in segments) - retention_bytes
    count = 0
    while count < len(segments) and excess - segments[count].size >= 0:
        if not _removable(segments, count, high_watermark, end):
            break
        excess -= segments[count].size
        count += 1
    return count


def _over_age(
    segments: Sequence[RetainedSegment],
    retention_ms: int,
    high_watermark: int,
    end: int,
    now_ms: int,
) -> int:
    if retention_ms < 0:
        return 0
    count = 0
    while count < len(segments) and now_ms - segments[count].largest_timestamp() > retention_ms:
        if not _removable(segments, count, high_watermark, end):
            break
        count += 1
    return count


def deletion_end(
    tp: TopicPartition, config: LogConfig, before_offset: int, high_watermark: int
) -> int:
    """Return the offset up to which DeleteRecords deletes; -1 requests the high watermark.

    Raises ApiError.
    """
    if not config.delete:
        raise ApiError(
            ErrorCode.POLICY_VIOLATION,
            f"records of {tp} cannot be deleted: cleanup.policy is not delete",
        )
    if before_offset == -1:
        return high_watermark
    if not 0 <= before_offset <= high_watermark:
        raise ApiError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {before_offset} of {tp} is outside 0 to the high watermark {high_watermark}",
        )
    return before_offset
