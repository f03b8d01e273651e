"""Retention and DeleteRecords: which segments go, that the log start only moves forward, when files
disappear.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from millstream.core.errors import ApiError, ErrorCode
from millstream.log.config import LogConfig
from millstream.log.partition_log import PartitionLog
from millstream.log.retention import deletable
from support.log.world import NOW_MS, append, batch, new_log, read_all

HOUR = 3_600_000


@dataclass
class Fake:
    """A segment as retention sees it."""

    base_offset: int
    size: int
    timestamp: int = NOW_MS

    def largest_timestamp(self) -> int:
        return self.timestamp


def count(
    segments: list[Fake], *, log_start: int = 0, high_watermark: int = 40, **settings: object
) -> int:
    config = LogConfig(**{"retention_ms": -1, "retention_bytes": -1, **settings})  # type: ignore[arg-type]
    return deletable(
        segments, config, log_start=log_start, high_watermark=high_watermark, end=40, now_ms=NOW_MS
    )


FOUR = [
    Fake(0, 100, NOW_MS - 4 * HOUR),
    Fake(10, 100, NOW_MS - 3 * HOUR),
    Fake(20, 100, NOW_MS - HOUR),
    Fake(30, 100),
]


@pytest.mark.parametrize(
    ("retention_ms", "gone"),
    [(-1, 0), (5 * HOUR, 0), (3 * HOUR, 1), (3 * HOUR - 1, 2), (HOUR - 1, 3)],
)
def test_by_time_the_oldest_segments_go(retention_ms: int, gone: int) -> None:
    assert count(FOUR, retention_ms=retention_ms) == gone


def test_by_time_even_the_last_segment_goes_if_it_has_data() -> None:
    assert count([Fake(0, 100, 0)], retention_ms=0) == 1
    assert count([Fake(0, 0, 0)], retention_ms=0) == 0


def test_a_young_segment_protects_older_ones_behind_it() -> None:
    segments = [Fake(0, 100, NOW_MS), Fake(10, 100, 0), Fake(20, 100, 0)]
    assert count(segments, retention_ms=HOUR) == 0


@pytest.mark.parametrize(
    ("retention_bytes", "gone"), [(-1, 0), (400, 0), (301, 0), (300, 1), (150, 2), (100, 3), (0, 4)]
)
def test_by_size_whole_segments_go_while_enough_is_left(retention_bytes: int, gone: int) -> None:
    assert count(FOUR, retention_bytes=retention_bytes) == gone


@pytest.mark.parametrize(("log_start", "gone"), [(0, 0), (9, 0), (10, 1), (29, 2), (40, 3)])
def test_segments_below_the_log_start_go_under_every_policy(log_start: int, gone: int) -> None:
    assert count(FOUR, log_start=log_start) == gone
    assert count(FOUR, log_start=log_start, cleanup_policy=frozenset({"compact"})) == gone


@pytest.mark.parametrize(("high_watermark", "gone"), [(0, 0), (9, 0), (10, 1), (39, 3), (40, 4)])
def test_nothing_above_the_high_watermark_goes(high_watermark: int, gone: int) -> None:
    assert count(FOUR, high_watermark=high_watermark, retention_bytes=0) == gone


def test_a_compacted_topic_keeps_old_data() -> None:
    assert (
        count(FOUR, retention_ms=0, retention_bytes=0, cleanup_policy=frozenset({"compact"})) == 0
    )
    assert count(FOUR, retention_bytes=0, cleanup_policy=frozenset({"compact", "delete"})) == 4


# -- in a log


def filled(directory: Path, config: LogConfig, batches: int = 30) -> PartitionLog:
    log = new_log(directory, config)
    for number in range(batches):
        append(log, batch(2, size=20, timestamp=NOW_MS - HOUR * (batches - number)))
    log.advance_high_watermark(log.log_end_offset)
    return log


def test_old_segments_and_their_files_go(tmp_path: Path) -> None:
    log = filled(tmp_path, LogConfig(segment_bytes=500, retention_ms=10 * HOUR))
    before = len(log.segments)
    gone = log.delete_old_segments(NOW_MS)
    assert 0 < gone < before
    assert log.log_start_offset == log.segments[0].base_offset > 0
    assert read_all(log)[0][0].base_offset == log.log_start_offset
    logs = [name for name in os.listdir(log.directory) if name.endswith(".log")]
    assert len(logs) == before - gone
    assert log.delete_old_segments(NOW_MS) == 0


def test_log_of_only_old_records_is_emptied_and_continues(tmp_path: Path) -> None:
    log = filled(tmp_path, LogConfig(segment_bytes=500, retention_ms=1000))
    end = log.log_end_offset
    log.delete_old_segments(NOW_MS + HOUR)
    assert (log.log_start_offset, log.log_end_offset) == (end, end)
    assert len(log.segments) == 1
    assert append(log, batch(1)).base_offset == end


def test_records_without_timestamps_age_by_their_file(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(retention_ms=HOUR))
    append(log, batch(1, timestamp=-1))
    log.advance_high_watermark(1)
    modified = log.segments[0].log_file.modified_ms()
    assert log.delete_old_segments(modified + HOUR) == 0
    assert log.delete_old_segments(modified + HOUR + 1) == 1


def test_delete_records_moves_the_log_start_and_never_back(tmp_path: Path) -> None:
    log = filled(tmp_path, LogConfig(segment_bytes=500))
    assert log.delete_records(11) == 11
    assert read_all(log)[0][0].base_offset == 10, (
        "whole batches are read; clients skip what is below"
    )
    assert log.delete_records(5) == 11
    assert log.delete_records(-1) == log.high_watermark


def test_delete_records_beyond_the_high_watermark_is_out_of_range(tmp_path: Path) -> None:
    log = filled(tmp_path, LogConfig())
    append(log, batch(1))
    for offset in (log.high_watermark + 1, -2):
        with pytest.raises(ApiError) as error:
            log.delete_records(offset)
        assert error.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_records_of_a_compacted_topic_cannot_be_deleted(tmp_path: Path) -> None:
    log = filled(tmp_path, LogConfig(cleanup_policy=frozenset({"compact"})))
    with pytest.raises(ApiError) as error:
        log.delete_records(1)
    assert error.value.code == ErrorCode.POLICY_VIOLATION


def test_producers_outlive_their_deleted_records(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(segment_bytes=300, retention_bytes=0))
    append(log, batch(2, producer_id=9, epoch=0, sequence=0))
    for _ in range(10):
        append(log, batch(2, size=20))
    log.advance_high_watermark(log.log_end_offset)
    log.delete_old_segments(NOW_MS)
    assert append(log, batch(2, producer_id=9, epoch=0, sequence=0)).duplicate
    assert (
        append(log, batch(1, producer_id=9, epoch=0, sequence=2)).base_offset
        == log.log_end_offset - 1
    )


def test_the_epoch_in_force_is_known_after_its_first_records_are_gone(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(segment_bytes=300))
    for epoch in (1, 2, 3):
        for _ in range(3):
            append(log, batch(2, size=20), leader_epoch=epoch)
    log.advance_high_watermark(log.log_end_offset)
    log.delete_records(8)
    assert log.epochs.entries() == [(2, 8), (3, 12)]
