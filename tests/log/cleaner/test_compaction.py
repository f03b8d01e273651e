"""Cleaning a log: what stays of records, tombstones, transactions and producers, and how the files
come out.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millstream.log.cleaner import compaction
from millstream.log.cleaner.compaction import group_segments
from millstream.log.cleaner.job import ActiveProducer, CleanJob, NoRound, Retention, SourceSegment
from millstream.log.cleaner.offset_map import OffsetMapTooSmall
from millstream.log.cleaner.segment_writer import scan_batches
from millstream.log.directories import file_names
from millstream.log.segments.offset_index import OffsetIndex
from millstream.ports.files import RealFiles
from millstream.wire.records.batch import Record, build_batch
from millstream.wire.records.compression import Codec
from millstream.wire.records.corrupt import CorruptBatch, DecompressedTooLarge
from support.log.compaction_logs import HOUR_MS, START_MS, LogFiles, pairs

DAY_MS = 24 * HOUR_MS
NOW_MS = START_MS + DAY_MS


@pytest.fixture
def log(tmp_path: Path) -> LogFiles:
    return LogFiles(tmp_path)


def contents(log: LogFiles) -> list[tuple[int, str | None, str | None]]:
    return pairs(log.records())


def markers(log: LogFiles) -> list[int]:
    return [b.header.base_offset for b in log.batches() if b.header.control and b.header.count]


def test_only_the_last_record_of_each_key_stays_at_its_offset(log: LogFiles):
    log.put(("a", "1"), ("b", "1"), ("a", "2"))
    log.put(("c", "1"), ("b", "2"))
    log.roll()
    log.clean(NOW_MS)
    assert contents(log) == [(2, "a", "2"), (3, "c", "1"), (4, "b", "2")]


def test_records_in_the_active_segment_stay_and_supersede_nothing(log: LogFiles):
    log.put(("a", "1"), ("b", "1"))
    log.roll()
    log.put(("a", "2"), ("a", "3"))
    log.clean(NOW_MS)
    assert contents(log) == [(0, "a", "1"), (1, "b", "1"), (2, "a", "2"), (3, "a", "3")]


def test_later_rounds_drop_records_that_were_clean_before(log: LogFiles):
    log.put(("a", "1"), ("b", "1"))
    log.roll()
    log.clean(NOW_MS)
    log.put(("a", "2"))
    log.roll()
    log.clean(NOW_MS)
    assert contents(log) == [(1, "b", "1"), (2, "a", "2")]


@pytest.mark.parametrize("codec", list(Codec))
def test_rewritten_batch_keeps_codec_offsets_times_and_headers(log: LogFiles, codec: Codec):
    log.put(("k", "0"), ("a", "x" * 200), ("k", "2"), ("b", None), pid=7, epoch=2, codec=codec)
    log.put(("b", "1" * 50), codec=codec)
    log.put(("k", "5"), ("z", "6"))
    log.roll()
    before = {record.offset: record for record in log.records()}
    original = next(log.batches()).header
    log.clean(NOW_MS)
    header = next(log.batches()).header
    assert (header.codec, header.count, header.base_offset, header.last_offset) == (codec, 1, 0, 3)
    assert header[9:12] == original[9:12], "producer id, epoch and base sequence"
    assert header.leader_epoch == original.leader_epoch
    assert header.max_timestamp == START_MS + 1
    assert [record.offset for record in log.records()] == [1, 4, 5, 6]
    assert all(record == before[record.offset] for record in log.records())


@pytest.mark.parametrize("codec", list(Codec))
def test_append_time_survives_rewriting_and_a_delete_horizon(log: LogFiles, codec: Codec):
    log.put(("a", "1"), ("b", "1"), ("c", None), codec=codec, timestamp=START_MS, timestamp_type=1)
    log.put(
        ("a", "2"), ("d", "2"), ("e", "2"), codec=codec, timestamp=START_MS + 9, timestamp_type=1
    )
    log.put(("d", "3"), timestamp=START_MS + 10)
    log.roll()
    log.clean(NOW_MS)
    assert [(r.offset, r.timestamp - START_MS) for r in log.records()] == [
        (1, 0),
        (2, 0),
        (3, 9),
        (5, 9),
        (6, 10),
    ]


def test_batch_that_loses_nothing_is_copied_byte_for_byte(log: LogFiles):
    log.put(("a", "1"), ("b", "1"), codec=Codec.GZIP)
    log.put(("c", "1"))
    log.roll()
    before = [batch.data for batch in log.batches()]
    log.clean(NOW_MS)
    assert [batch.data for batch in log.batches()] == before


def test_record_without_a_key_is_dropped(log: LogFiles):
    log.put((None, "written before the topic was compacted"), ("a", "1"))
    log.roll()
    log.clean(NOW_MS)
    assert contents(log) == [(1, "a", "1")]


def test_empty_key_is_a_key(log: LogFiles):
    log.put(("", "1"), ("a", "1"), ("", "2"))
    log.roll()
    log.clean(NOW_MS)
    assert contents(log) == [(1, "a", "1"), (2, "", "2")]


# -- tombstones


def test_tombstone_stays_for_delete_retention_after_its_first_cleaning(log: LogFiles):
    log.put(("a", "1"), ("b", "1"))
    log.put(("a", None))
    log.put(("c", "1"))
    log.roll()
    log.clean(NOW_MS)
    assert contents(log) == [(1, "b", "1"), (2, "a", None), (3, "c", "1")]
    log.clean(NOW_MS + DAY_MS - 1)
    assert contents(log) == [(1, "b", "1"), (2, "a", None), (3, "c", "1")]
    log.clean(NOW_MS + DAY_MS)
    assert contents(log) == [(1, "b", "1"), (3, "c", "1")]


def test_tombstones_and_markers_stay_while_a_replica_may_lack_them(log: LogFiles):
    log.put(("a", "1"))
    log.put(("b", "1"), pid=2, txn=True)
    log.put(("a", None))
    abort = log.end_transaction(2, commit=False)
    log.put(("z", "1"))
    log.roll()
    for now_ms in (NOW_MS, NOW_MS + 1, NOW_MS + 5 * DAY_MS):
        log.clean(now_ms, drop_deletions=False)
    assert contents(log) == [(2, "a", None), (4, "z", "1")] and markers(log) == [abort]
    log.clean(NOW_MS + 5 * DAY_MS)
    assert contents(log) == [(4, "z", "1")] and markers(log) == []


def test_delete_horizon_is_set_once_and_kept_by_later_rounds(log: LogFiles):
    log.put(("a", None), ("b", "1"))
    log.put(("c", "1"))
    log.roll()
    log.clean(NOW_MS)
    header = next(log.batches()).header
    assert header.has_delete_horizon and header.delete_horizon_ms == NOW_MS + DAY_MS
    assert [record.timestamp for record in log.records()][:2] == [START_MS, START_MS + 1]
    log.put(("b", "2"))
    log.roll()
    log.clean(NOW_MS + HOUR_MS)
    header = next(log.batches()).header
    assert header.count == 1, "b was superseded"
    assert header.delete_horizon_ms == NOW_MS + DAY_MS
    assert log.records()[0] == Record(0, START_MS, b"a", None, (("at", b"0"),))


def test_superseded_tombstone_goes_at_once(log: LogFiles):
    log.put(("a", None))
    log.put(("a", "again"))
    log.roll()
    log.clean(NOW_MS)
    assert contents(log) == [(1, "a", "again")]


def test_zero_delete_retention_removes_tombstones_in_the_next_round(log: LogFiles):
    log.put(("a", None))
    log.put(("b", "1"))
    log.roll()
    log.clean(NOW_MS, delete_retention_ms=0)
    log.clean(NOW_MS, delete_retention_ms=0)
    assert contents(log) == [(1, "b", "1")]


# -- transactions


def test_aborted_data_is_dropped_and_never_becomes_the_latest_value(log: LogFiles):
    log.put(("a", "committed"))
    log.put(("a", "aborted"), ("b", "aborted"), pid=1, txn=True)
    log.end_transaction(1, commit=False)
    log.put(("c", "1"))
    log.roll()
    log.clean(NOW_MS)
    assert contents(log) == [(0, "a", "committed"), (4, "c", "1")]


def test_marker_goes_only_after_its_data_is_gone_and_its_horizon_passed(log: LogFiles):
    log.put(("a", "1"), pid=1, txn=True)
    commit = log.end_transaction(1, commit=True)
    log.put(("b", "1"), pid=2, txn=True)
    abort = log.end_transaction(2, commit=False)
    log.put(("z", "1"))
    log.roll()
    log.clean(NOW_MS)
    assert markers(log) == [commit, abort], "the round that drops the data keeps the markers"
    log.put(("a", "2"))
    log.roll()
    log.clean(NOW_MS)  # now the data of the commit goes, and the abort gets its horizon
    assert markers(log) == [commit, abort]
    log.clean(NOW_MS + 1)  # and the commit its own
    log.clean(NOW_MS + DAY_MS)
    assert markers(log) == [commit]
    log.clean(NOW_MS + 1 + DAY_MS)
    assert markers(log) == []
    assert contents(log) == [(4, "z", "1"), (5, "a", "2")]


def test_marker_stays_while_any_record_of_its_transaction_lives(log: LogFiles):
    log.put(("a", "1"), ("b", "1"), pid=1, txn=True)
    commit = log.end_transaction(1, commit=True)
    log.put(("a", "2"))
    log.roll()
    for hours in (0, 48, 96):
        log.clean(NOW_MS + hours * HOUR_MS)
    assert markers(log) == [commit]
    assert contents(log) == [(1, "b", "1"), (3, "a", "2")]


def test_emptied_aborted_batch_keeps_marker_and_index_entry(log: LogFiles):
    log.put(("a", "1"), pid=1, txn=True)
    abort = log.end_transaction(1, commit=False)
    log.put(("z", "1"))
    log.roll()
    for hours in (0, 48, 96):
        log.clean(NOW_MS + hours * HOUR_MS, active=log.active_producers())
    assert [(b.header.base_offset, b.header.count) for b in log.batches()] == [
        (0, 0),
        (abort, 1),
        (2, 1),
    ]
    assert [(entry.producer_id, entry.last_offset) for entry in log.aborted()] == [(1, abort)]


def test_transaction_that_spans_segments_is_known_in_each_of_them(log: LogFiles):
    log.put(("a", "committed"))
    log.put(("a", "aborted-1"), pid=1, txn=True)
    log.roll()
    log.put(("b", "aborted-2"), pid=1, txn=True)
    log.put(("b", "committed"))
    log.roll()
    log.put(("b", "aborted-3"), pid=1, txn=True)
    log.end_transaction(1, commit=False)
    log.put(("z", "1"))
    log.roll()
    log.clean(NOW_MS, segment_bytes=1)
    assert contents(log) == [(0, "a", "committed"), (3, "b", "committed"), (6, "z", "1")]


def test_marker_beyond_the_cleaned_range_still_aborts_the_data_before_it(log: LogFiles):
    log.put(("a", "committed"))
    log.put(("a", "aborted"), pid=1, txn=True)
    log.put(("b", "1"))
    log.roll()
    log.end_transaction(1, commit=False)  # in the active segment
    log.clean(NOW_MS)
    assert contents(log) == [(0, "a", "committed"), (2, "b", "1")]
    assert pairs(log.read_committed()) == [(0, "a", "committed"), (2, "b", "1")]


def test_second_abort_of_a_producer_is_separate_from_the_first(log: LogFiles):
    log.put(("a", "1"))
    for value in ("aborted-1", "aborted-2"):
        log.put(("a", value), pid=1, txn=True)
        log.end_transaction(1, commit=False)
    log.put(("b", "committed"), pid=1, txn=True)
    log.end_transaction(1, commit=True)
    log.put(("z", "1"))
    log.roll()
    log.clean(NOW_MS)
    assert contents(log) == [(0, "a", "1"), (5, "b", "committed"), (7, "z", "1")]


def test_segment_above_an_open_transaction_is_not_cleaned(log: LogFiles):
    log.put(("a", "1"), ("a", "2"))
    log.roll()
    log.put(("b", "open"), pid=1, txn=True)
    log.put(("a", "3"), ("a", "4"))
    log.roll()
    log.clean(NOW_MS)
    assert contents(log) == [(1, "a", "2"), (2, "b", "open"), (3, "a", "3"), (4, "a", "4")]


# -- producers and the end of the round


def test_last_batch_of_an_active_producer_stays_empty(log: LogFiles):
    log.put(("a", "1"), ("b", "1"), pid=5, epoch=4)
    log.put(("a", "2"), ("b", "2"), pid=5, epoch=4)
    log.put(("a", "3"), ("b", "3"))
    log.roll()
    before = log.producers()
    log.clean(NOW_MS, active=log.active_producers())
    empty = next(log.batches()).header
    assert (empty.base_offset, empty.last_offset, empty.count, empty.size) == (2, 3, 0, 61)
    assert (empty.base_sequence, empty.last_sequence, empty.max_timestamp) == (2, 3, START_MS + 3)
    assert log.producers() == before == {5: (4, 3, 3)}
    log.clean(NOW_MS, active={})
    assert log.producers() == {}, "an expired producer's empty batch goes"


def test_marker_that_alone_holds_a_producers_epoch_stays(log: LogFiles):
    log.put(("a", "1"))
    commit = log.end_transaction(9, commit=True, epoch=6)
    log.put(("b", "1"))
    log.roll()
    active = {9: ActiveProducer(-1, 6)}
    for hours in (0, 48, 96):
        log.clean(NOW_MS + hours * HOUR_MS, active=active)
    kept = [b.header for b in log.batches() if b.header.control]
    assert [(h.base_offset, h.producer_epoch) for h in kept] == [(commit, 6)]


def test_last_batch_of_a_round_stays_as_an_empty_header(log: LogFiles):
    log.put(("a", "1"))
    log.put(("b", "1"), pid=1, txn=True)
    log.end_transaction(1, commit=False)
    log.put(("c", "x"), pid=1, txn=True)
    log.roll()
    log.end_transaction(1, commit=False)
    log.clean(NOW_MS)
    closed = list(log.batches(log.bases[0]))
    assert closed[-1].header.count == 0
    assert closed[-1].header.next_offset == log.bases[1]


# -- the map


def test_round_ends_when_the_map_is_full_and_the_next_continues(log: LogFiles):
    for i in range(12):
        log.put((f"k{i % 6}", str(i)), (f"k{(i + 1) % 6}", str(i)))
    log.roll()
    last = {key: (offset, value) for offset, key, value in contents(log)}
    ends = []
    while log.first_dirty_offset < log.cleanable_end:
        log.clean(NOW_MS, dedupe_buffer_bytes=24 * 5, load_factor=0.9)
        ends.append(log.first_dirty_offset)
    assert len(ends) > 1 and ends == sorted(set(ends))
    assert contents(log) == sorted((offset, key, value) for key, (offset, value) in last.items())


def test_records_beyond_a_full_map_stay(log: LogFiles):
    log.put(("a", "1"), ("b", "1"), ("c", "1"), (None, "no key"), ("c", "2"), ("a", "2"))
    log.roll()
    round_ = log.clean(NOW_MS, dedupe_buffer_bytes=24 * 2, load_factor=1.0)
    assert round_.end_offset == 2
    assert [offset for offset, _, _ in contents(log)] == [0, 1, 2, 3, 4, 5]


def test_tombstone_beyond_a_full_map_gets_its_horizon_when_its_turn_comes(log: LogFiles):
    log.put(("a", "1"))
    log.put(("b", "1"), ("x", "1"), ("y", "1"), ("a", None))
    log.roll()
    small = {"dedupe_buffer_bytes": 24 * 2, "load_factor": 1.0}
    log.clean(NOW_MS, **small)
    log.clean(NOW_MS + 2 * DAY_MS, **small)
    assert contents(log)[0] == (0, "a", "1"), "the map has not seen the deletion yet"
    log.clean(NOW_MS + 2 * DAY_MS, **small)
    assert contents(log) == [(1, "b", "1"), (2, "x", "1"), (3, "y", "1"), (4, "a", None)]
    assert next(log.batches()).header.delete_horizon_ms == NOW_MS + 3 * DAY_MS


def test_gap_at_the_end_of_a_segment_counts_as_cleaned(log: LogFiles):
    log.put(("a", "1"))
    log.next_offset += 10
    log.roll()
    log.put(("b", "1"))
    log.next_offset += 5
    log.roll()
    assert log.clean(NOW_MS).end_offset == 17 == log.cleanable_end


def test_map_too_small_for_one_key_is_refused(log: LogFiles):
    log.put(("a", "1"))
    log.roll()
    with pytest.raises(OffsetMapTooSmall, match=r"dedupe\.buffer\.size"):
        log.clean(NOW_MS, dedupe_buffer_bytes=20)


# -- segments


def test_small_segments_are_joined_up_to_the_segment_size(log: LogFiles):
    for i in range(6):
        log.put((f"k{i}", "v" * 100))
        log.roll()
    size = os.path.getsize(log.path(0))
    log.clean(NOW_MS, segment_bytes=3 * size)
    assert log.bases == [0, 3, 6]
    assert [offset for offset, _, _ in contents(log)] == list(range(6))
    log.check_indexes(log.bases[:-1])


def test_groups_respect_index_sizes_and_the_span_of_offsets():
    def groups(
        *segments: tuple[int, int], indexes: list[tuple[int, int]] | None = None, end: int = 10**12
    ):
        job = CleanJob(
            "", (), 0, Retention(0, 0, end, {}, {}), segment_bytes=100, segment_index_bytes=20
        )
        sources = [SourceSegment(*segment) for segment in segments]
        made = group_segments(sources, indexes or [(0, 0)] * len(sources), job)
        return [[segment.base_offset for segment in group] for group in made]

    assert groups((0, 50), (10, 50), (20, 1), end=30) == [[0, 10], [20]]
    assert groups((0, 1), (10, 1), (20, 1), indexes=[(8, 0), (16, 0), (1, 0)], end=30) == [
        [0],
        [10, 20],
    ]
    assert groups((0, 1), (10, 1), indexes=[(0, 12), (0, 12)], end=30) == [[0], [10]]
    assert groups((0, 1), (10, 1), end=2**31) == [[0, 10]]
    assert groups((0, 1), (10, 1), end=2**31 + 1) == [[0], [10]]
    assert groups((0, 0), (2**33, 0), (2**34, 1), end=2**34 + 5) == [[0, 2**33], [2**34]]
    assert groups((0, 500), (10, 1), end=30) == [[0], [10]], (
        "a segment larger than the limit is cleaned alone"
    )


def test_result_larger_than_a_segment_is_split(log: LogFiles):
    for i in range(8):
        log.put((f"k{i}", "v" * 100))
    log.roll()
    size = os.path.getsize(log.path(0))
    log.clean(NOW_MS, segment_bytes=size // 2)
    assert len(log.bases) > 2
    assert [offset for offset, _, _ in contents(log)] == list(range(8))
    assert all(os.path.getsize(log.path(base)) <= size // 2 for base in log.bases)
    log.check_indexes(log.bases[:-1])


def test_indexes_of_a_cleaned_segment_point_at_its_batches(log: LogFiles):
    for i in range(300):
        log.put((f"k{i % 40}", "v" * 100), timestamp=START_MS + (i * 7919) % 1000)
    log.roll()
    log.clean(NOW_MS, index_interval_bytes=512)
    assert os.path.getsize(log.path(0, file_names.OFFSET_INDEX)) >= 8 * 4
    log.check_indexes([0])


def test_log_emptied_by_cleaning_keeps_an_empty_segment(log: LogFiles):
    log.put(("a", "1"), pid=1, txn=True)
    log.end_transaction(1, commit=False)
    log.roll()
    log.put(("b", "1"))
    log.roll()
    log.clean(NOW_MS, segment_bytes=1)
    assert log.bases[0] == 0
    assert contents(log) == [(2, "b", "1")]


def test_batch_larger_than_the_read_buffer_is_cleaned(log: LogFiles):
    log.put(("a", "x" * 5000), ("b", "y" * 5000))
    log.put(("a", "z"))
    log.put(("c", "1"))
    log.roll()
    log.clean(NOW_MS, io_buffer_bytes=100)
    assert [offset for offset, _, _ in contents(log)] == [1, 2, 3]


def test_leftover_of_a_broken_off_cleaning_is_replaced(log: LogFiles):
    log.put(("a", "1"), ("a", "2"))
    log.roll()
    for kind in file_names.SEGMENT_FILES:
        with open(log.path(0, kind) + file_names.CLEANED, "wb") as file:
            file.write(b"leftover" * 100)
    log.clean(NOW_MS)
    assert contents(log) == [(1, "a", "2")]
    assert log.aborted() == []


# -- damage


def damage(path: str, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def test_damaged_batch_ends_the_round_and_names_the_place(log: LogFiles):
    first = log.put(("a", "1"))
    assert first == 0
    size = os.path.getsize(log.path(0))
    log.put(("a", "2"))
    log.roll()
    damage(log.path(0), size + 65, b"\xff")
    with pytest.raises(CorruptBatch, match=f"checksum is wrong.*byte {size}"):
        log.clean(NOW_MS)


def test_torn_segment_ends_the_round(log: LogFiles):
    log.put(("a", "1"), ("b", "2"))
    log.roll()
    os.truncate(log.path(0), os.path.getsize(log.path(0)) - 3)
    with pytest.raises(CorruptBatch, match="incomplete"):
        log.clean(NOW_MS)


def test_batch_that_would_not_fit_in_memory_ends_the_round(log: LogFiles):
    log.put(("a", "1" * 1_000_000), codec=Codec.ZSTD)
    log.roll()
    with pytest.raises(DecompressedTooLarge):
        log.clean(NOW_MS, max_decompressed_bytes=1000)


# -- what the child process offers


def test_round_lives_in_the_process_between_its_groups(log: LogFiles):
    for i in range(4):
        log.put(("a", str(i)), (f"k{i}", "v"))
        log.roll()
    plan = compaction.begin(log.job(NOW_MS, segment_bytes=1))
    assert plan == (((0,), (2,), (4,), (6,)), 8)
    for number, bases in enumerate(plan.groups):
        group = compaction.clean_group(number)
        assert group.old == bases
        log.swap(group)
    assert markers(log) == []
    stats = compaction.end()
    assert (stats.records_read, stats.records_kept, stats.map_keys) == (8, 5, 5)
    with pytest.raises(NoRound):
        compaction.clean_group(0)


def test_record_beyond_the_header_of_its_batch_is_not_superseded(log: LogFiles):
    """Clients write such batches, and a topic takes them that was not compacted then."""
    strange = build_batch([Record(1, START_MS, b"x", b"last")], base_offset=0, last_offset=0)
    log._append(strange, 1)
    for _ in range(3):
        log.put(("y", "again"))
    log.roll()
    log.clean(START_MS)
    assert [record.key for record in log.records()] == [b"x", b"y"]


@pytest.mark.parametrize("position", ["of another batch", "within a batch"])
def test_an_index_that_is_wrong_costs_time_and_no_records(log: LogFiles, position: str):
    for number in range(50):
        log.put((f"key-{number}", "value"))
    log.roll()
    sizes = [len(batch.data) for batch in log.batches(0)]
    index = OffsetIndex(0)
    index.append(3, sum(sizes[:40]) - (position == "within a batch"))
    Path(log.path(0, file_names.OFFSET_INDEX)).write_bytes(index.encode())
    log.first_dirty_offset = 5
    log.clean(START_MS)
    assert len(log.records()) == 50


def test_large_batches_are_read_several_at_once_and_a_huge_one_by_itself(tmp_path: Path):
    sizes = [3_000, 3_000, 40_000_000, 3_000, 1_000_000, 1_000_000, 1_000_000]
    path = tmp_path / "0.log"
    path.write_bytes(
        b"".join(build_batch([Record(0, START_MS, b"k", bytes(size))]) for size in sizes)
    )
    file = RealFiles().open(str(path))
    read: list[int] = []

    class Watched:
        path = file.path

        def pread(self, position: int, size: int) -> bytes:
            read.append(size)
            return file.pread(position, size)

    try:
        found = [header.size for header, _ in scan_batches(Watched(), 0, file.size, 512 << 10)]  # type: ignore[arg-type]
    finally:
        file.close()
    assert [size // 1_000 for size in found] == [size // 1_000 for size in sizes]
    assert sum(size > 10_000_000 for size in read) == 1
