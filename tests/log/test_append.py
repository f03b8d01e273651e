"""Appending: what is refused and with which code, what is stamped, when a segment rolls."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.core.errors import ApiError, ErrorCode
from millstream.log.append import inspect
from millstream.log.config import LogConfig
from millstream.log.partition_log import Origin, PartitionLog
from millstream.wire.records.batch import Record, build_batch, parse_header
from millstream.wire.records.checksum import crc32c
from millstream.wire.records.convert import RebuildSpec
from millstream.wire.records.layout import (
    ATTRIBUTES_AT,
    CONTROL,
    COUNT_AT,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    LOG_APPEND_TIME,
    MAGIC_AT,
)
from support.batches import reseal
from support.log.world import NOW_MS, append, append_marker, batch, new_log, read_all, split


def fixed(records: memoryview, at: int, form: str, value: int) -> memoryview:
    """A field changed, with a checksum that fits again."""
    struct.pack_into(form, records, at, value)
    reseal(records)
    return records


def refused(log: PartitionLog, records: memoryview, **options: object) -> ErrorCode:
    end = log.log_end_offset
    with pytest.raises(ApiError) as error:
        append(log, records, **options)
    assert log.log_end_offset == end
    assert error.value.message
    return error.value.code


def test_append_stamps_offsets_and_leader_epoch_only(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, batch(3), leader_epoch=4)
    records = batch(2, size=50)
    sent = bytes(records)
    result = append(log, records, leader_epoch=5)
    assert result == (3, 4, -1, 0, False, 2)
    (_, first), (header, second) = read_all(log)
    assert (header.base_offset, header.leader_epoch) == (3, 5)
    assert second[16:] == sent[16:]
    assert len(first) + len(second) == log.size
    assert log.epochs.entries() == [(4, 0), (5, 3)]
    assert log.high_watermark == 0


def test_a_wrong_checksum_is_corrupt(tmp_path: Path) -> None:
    records = batch(2)
    records[70] ^= 1
    assert refused(new_log(tmp_path), records) == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("size", [0, 10, 60])
def test_too_few_bytes_for_a_batch_are_corrupt(tmp_path: Path, size: int) -> None:
    assert refused(new_log(tmp_path), batch()[:size]) == ErrorCode.CORRUPT_MESSAGE


def test_a_batch_that_ends_early_is_corrupt(tmp_path: Path) -> None:
    assert refused(new_log(tmp_path), batch(5)[:-1]) == ErrorCode.CORRUPT_MESSAGE


def test_an_unknown_magic_is_corrupt(tmp_path: Path) -> None:
    records = batch()
    records[MAGIC_AT] = 3
    assert refused(new_log(tmp_path), records) == ErrorCode.CORRUPT_MESSAGE


def test_two_batches_in_one_produce_are_refused(tmp_path: Path) -> None:
    two = memoryview(bytearray(bytes(batch()) + bytes(batch())))
    assert refused(new_log(tmp_path), two) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    ("at", "form", "value"),
    [
        (0, ">q", 5),  # a base offset
        (COUNT_AT, ">i", 3),  # a count that differs from the offsets
        (COUNT_AT, ">i", 0),
        (COUNT_AT, ">i", -1),
        (LAST_OFFSET_DELTA_AT, ">i", 7),  # a last offset delta that differs from the count
        (LAST_OFFSET_DELTA_AT, ">i", -1),
        (ATTRIBUTES_AT, ">h", CONTROL),  # a control batch
    ],
)
def test_lying_headers_are_refused(tmp_path: Path, at: int, form: str, value: int) -> None:
    assert refused(new_log(tmp_path), fixed(batch(2), at, form, value)) == ErrorCode.INVALID_RECORD


def test_an_idempotent_batch_without_a_sequence_is_refused(tmp_path: Path) -> None:
    records = batch(producer_id=5, epoch=0, sequence=-1)
    assert refused(new_log(tmp_path), records) == ErrorCode.INVALID_RECORD


def test_batches_larger_than_the_settings_allow_are_refused(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(max_message_bytes=500))
    assert refused(log, batch(size=600)) == ErrorCode.MESSAGE_TOO_LARGE
    log.update_config(LogConfig(segment_bytes=500))
    assert refused(log, batch(size=600)) == ErrorCode.RECORD_LIST_TOO_LARGE


def test_timestamps_too_far_ahead_are_refused(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(message_timestamp_after_max_ms=1000))
    append(log, batch(timestamp=NOW_MS + 1000))
    assert refused(log, batch(timestamp=NOW_MS + 1001)) == ErrorCode.INVALID_TIMESTAMP
    with pytest.raises(ApiError, match=r"after\.max\.ms \(1000\) ahead of the broker's clock"):
        append(log, batch(timestamp=NOW_MS + 1001))


def test_log_append_time_is_stamped_with_a_new_checksum(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(message_timestamp_type="LogAppendTime"))
    result = append(log, batch(2, timestamp=5))
    assert result.append_time_ms == NOW_MS
    ((header, raw),) = read_all(log)
    assert header.log_append_time
    assert header.max_timestamp == NOW_MS
    assert header.crc == crc32c(raw[ATTRIBUTES_AT:])


def test_a_client_cannot_make_its_batch_log_append_time(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, fixed(batch(2), ATTRIBUTES_AT, ">h", LOG_APPEND_TIME))
    ((header, raw),) = read_all(log)
    assert not header.log_append_time
    assert header.crc == crc32c(raw[ATTRIBUTES_AT:])


def test_a_coordinator_may_write_markers_and_batches_without_sequences(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, batch(2, producer_id=5, epoch=0, sequence=0, transactional=True))
    append_marker(log, 5, 0, commit=True)
    append(log, batch(1, producer_id=5, epoch=0, transactional=True), origin=Origin.COORDINATOR)
    assert log.log_end_offset == 4


# -- replication


def leader_bytes(*batches: memoryview) -> memoryview:
    return memoryview(bytearray(b"".join(bytes(one) for one in batches)))


def test_a_replica_keeps_offsets_and_epochs_and_leaves_out_a_partial_batch(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    first = batch(2, base_offset=0, leader_epoch=1)
    second = batch(3, base_offset=2, leader_epoch=2)
    result = append(
        log,
        leader_bytes(first, second, batch(1, base_offset=5)[:70]),
        leader_epoch=2,
        origin=Origin.REPLICATION,
    )
    assert (result.base_offset, result.last_offset, result.records) == (0, 4, 5)
    assert [raw for _, raw in read_all(log)] == [bytes(first), bytes(second)]
    assert log.epochs.entries() == [(1, 0), (2, 2)]


def test_a_replica_takes_gaps_but_no_step_back(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, batch(1, base_offset=7, leader_epoch=0), origin=Origin.REPLICATION)
    assert log.log_end_offset == 8
    records = batch(1, base_offset=7, leader_epoch=0)
    assert refused(log, records, origin=Origin.REPLICATION) == ErrorCode.INVALID_RECORD
    records = leader_bytes(
        batch(3, base_offset=8, leader_epoch=0), batch(1, base_offset=9, leader_epoch=0)
    )
    assert refused(log, records, origin=Origin.REPLICATION) == ErrorCode.INVALID_RECORD


def test_a_replica_leaves_out_batches_of_a_newer_epoch_than_its_own(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    records = leader_bytes(
        batch(1, base_offset=0, leader_epoch=3), batch(1, base_offset=1, leader_epoch=4)
    )
    assert append(log, records, leader_epoch=3, origin=Origin.REPLICATION).last_offset == 0
    nothing = append(
        log, batch(1, base_offset=1, leader_epoch=4), leader_epoch=3, origin=Origin.REPLICATION
    )
    assert nothing.records == 0


def test_a_replica_refuses_a_corrupt_batch(tmp_path: Path) -> None:
    records = batch(1, base_offset=0, leader_epoch=0)
    records[-1] ^= 1
    assert (
        refused(new_log(tmp_path), records, origin=Origin.REPLICATION) == ErrorCode.CORRUPT_MESSAGE
    )


def test_a_replica_remembers_producers_as_the_leader_does(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    sent = batch(2, base_offset=0, leader_epoch=0, producer_id=5, epoch=1, sequence=40)
    append(log, sent, origin=Origin.REPLICATION)
    again = append(log, batch(2, producer_id=5, epoch=1, sequence=40))
    assert again.duplicate
    assert again.base_offset == 0


# -- rolling


def test_a_segment_rolls_by_size(tmp_path: Path) -> None:
    size = len(batch(1))
    log = new_log(tmp_path, LogConfig(segment_bytes=3 * size))
    for _ in range(7):
        append(log, batch(1))
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6]
    assert [segment.size for segment in log.segments] == [3 * size, 3 * size, size]


def test_a_segment_rolls_by_the_time_of_its_records(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(segment_ms=1000, message_timestamp_after_max_ms=10**9))
    for later in (0, 1000, 1001, 1500, 3000):
        append(log, batch(1, timestamp=NOW_MS + later))
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4]


def test_without_timestamps_a_segment_rolls_by_the_clock(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(segment_ms=1000))
    for later in (0, 1000, 1001):
        log.append(batch(1, timestamp=-1), leader_epoch=0, now_ms=NOW_MS + later)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_a_segment_rolls_when_an_index_is_full(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(index_interval_bytes=1, segment_index_bytes=36))
    for number in range(6):
        append(log, batch(1, timestamp=NOW_MS + number))
    assert [segment.base_offset for segment in log.segments] == [0, 3]


def test_a_segment_rolls_when_offsets_grow_too_far_from_its_first(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for offset in (0, 2**31 - 1, 2**31, 2**33):
        append(log, batch(1, base_offset=offset, leader_epoch=0), origin=Origin.REPLICATION)
    assert [segment.base_offset for segment in log.segments] == [0, 2**31, 2**33]
    assert [header.base_offset for header, _ in read_all(log)] == [0, 2**31 - 1, 2**31, 2**33]


@pytest.mark.parametrize("seed", range(20))
def test_measured_room_agrees_with_every_roll_limit(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    config = LogConfig(
        segment_bytes=dice.choice((2000, 20_000)),
        segment_ms=dice.choice((500, 10**9)),
        segment_index_bytes=dice.choice((36, 240, 10 << 20)),
        index_interval_bytes=dice.choice((1, 300, 4096)),
        segment_jitter_ms=dice.choice((0, 300)),
        message_timestamp_after_max_ms=10**9,
    )
    log = new_log(tmp_path, config)
    said: set[bool] = set()
    for number in range(120):
        records = batch(
            dice.randint(1, 3), size=dice.randint(0, 200), timestamp=NOW_MS + 10 * number
        )
        asked = len(records), log.log_end_offset + 3, parse_header(records).max_timestamp, NOW_MS
        short = log.segment_list.fits(*asked)
        assert short == log.segment_list._roll_policy.has_room(log.segment_list.active, *asked)
        said.add(short)
        append(log, records)
        if dice.random() < 0.05:
            log.truncate_to(dice.randint(log.log_start_offset, log.log_end_offset), now_ms=NOW_MS)
        if dice.random() < 0.05:
            log.update_config(replace(config, segment_ms=dice.choice((100, 10**9))))
    assert said == {True, False}


def test_jitter_rolls_some_logs_earlier_and_always_the_same_ones() -> None:
    config = LogConfig(segment_ms=1000, segment_jitter_ms=500)
    jitters = {config.jitter_ms("/d", base) for base in range(50)}
    assert all(0 <= jitter < 500 for jitter in jitters)
    assert len(jitters) > 10
    assert config.jitter_ms("/d", 7) == config.jitter_ms("/d", 7)


def test_an_empty_segment_is_not_rolled(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    log.roll(now_ms=NOW_MS)
    assert len(log.segments) == 1
    append(log, batch(1))
    log.roll(now_ms=NOW_MS)
    log.roll(now_ms=NOW_MS)
    assert [segment.base_offset for segment in log.segments] == [0, 1]


# -- what has to be rebuilt first


def spec(config: LogConfig, records: memoryview | None = None) -> RebuildSpec | None:
    return inspect(batch() if records is None else records, config, now_ms=NOW_MS)


def test_an_ordinary_batch_needs_no_rebuilding() -> None:
    assert spec(LogConfig()) is None
    assert spec(LogConfig(compression_type="uncompressed")) is None
    assert spec(LogConfig(compression_type="lz4"), batch(codec=3)) is None
    assert spec(LogConfig(), batch()[:5]) is None


def test_rebuild_when_headers_cannot_decide() -> None:
    keys = spec(LogConfig(cleanup_policy=frozenset({"compact"})))
    assert keys is not None
    assert keys.require_keys
    assert keys.target_codec is None
    codec = spec(LogConfig(compression_type="zstd", compression_zstd_level=7), batch(codec=3))
    assert codec is not None
    assert (codec.target_codec, codec.level) == (4, 7)
    bounds = spec(LogConfig(message_timestamp_before_max_ms=5000))
    assert bounds is not None
    assert (bounds.before_max_ms, bounds.after_max_ms) == (5000, 3_600_000)
    assert (
        spec(
            LogConfig(message_timestamp_before_max_ms=5000, message_timestamp_type="LogAppendTime")
        )
        is None
    )
    deep = spec(LogConfig(message_validation_deep=True))
    assert deep is not None
    assert deep.deep
    old = batch()
    old[16] = 1
    assert spec(LogConfig(), old) is not None


def test_settings_come_by_kafkas_names() -> None:
    config = LogConfig.from_topic_settings(
        {
            "cleanup.policy": "compact, delete",
            "segment.bytes": 99,
            "retention.ms": None,
            "unknown.name": 1,
        }
    )
    assert config.cleanup_policy == {"compact", "delete"}
    assert config.segment_bytes == 99
    assert config.retention_ms == LogConfig().retention_ms
    assert config.compact
    assert config.delete


def test_batches_of_every_codec_are_stored_as_they_came(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    sent = []
    for codec in range(5):
        records = [Record(0, NOW_MS, b"key", b"value" * 100)]
        raw = bytearray(build_batch(records, codec=codec))
        sent.append(bytes(raw[HEADER_SIZE:]))
        append(log, memoryview(raw))
    found = read_all(log)
    assert [raw[HEADER_SIZE:] for _, raw in found] == sent
    assert [header.codec for header, _ in found] == [0, 1, 2, 3, 4]
    assert [
        parse_header(raw).base_offset for _, raw in split(b"".join(raw for _, raw in found))
    ] == [
        0,
        1,
        2,
        3,
        4,
    ]


def claiming(records: memoryview, count: int) -> memoryview:
    """The batch with another number of records in its header."""
    fixed(records, LAST_OFFSET_DELTA_AT, ">i", count - 1)
    return fixed(records, COUNT_AT, ">i", count)


@pytest.mark.parametrize("codec", range(5))
def test_count_that_the_bytes_cannot_hold_is_refused(tmp_path: Path, codec: int) -> None:
    records = memoryview(bytearray(build_batch([Record(0, NOW_MS, None, b"v" * 20)], codec=codec)))
    log = new_log(tmp_path)
    assert refused(log, claiming(records, 2**31 - 1)) == ErrorCode.INVALID_RECORD
    append(log, claiming(records, 1))
    assert log.log_end_offset == 1


@pytest.mark.parametrize("value", [20, 100, 9000], ids=lambda size: f"{size} bytes")
@pytest.mark.parametrize("count", range(1, 9))
def test_count_of_a_short_batch_is_the_number_of_its_records(
    tmp_path: Path, count: int, value: int
) -> None:
    """Three records, and headers that say otherwise. Lengths of records take one, two and three
    bytes.
    """
    log = new_log(tmp_path)
    three = [Record(index, NOW_MS, None, b"v" * value) for index in range(3)]
    records = claiming(memoryview(bytearray(build_batch(three))), count)
    if count == 3:
        append(log, records)
    else:
        assert refused(log, records) == ErrorCode.INVALID_RECORD
    assert log.log_end_offset == (3 if count == 3 else 0)


def test_first_record_of_a_long_batch_must_leave_room_for_the_count(tmp_path: Path) -> None:
    """All records of a long batch are only read by consumers. Kafka reads them when they are
    produced.
    """
    log = new_log(tmp_path)
    long = [Record(index, NOW_MS, None, b"v" * 20) for index in range(30)]
    records = memoryview(bytearray(build_batch(long)))
    for count in (1, 8, 200):
        assert refused(log, claiming(records, count)) == ErrorCode.INVALID_RECORD
    append(log, claiming(records, 30))
    assert log.log_end_offset == 30


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize(
    "length", [0, 10, 1, 200], ids=["empty", "too short", "negative", "beyond the end"]
)
def test_length_of_any_record_of_a_short_batch_is_checked(
    tmp_path: Path, index: int, length: int
) -> None:
    three = [Record(number, NOW_MS, None, b"v" * 20) for number in range(3)]
    records = memoryview(bytearray(build_batch(three)))
    at = HEADER_SIZE + index * ((len(records) - HEADER_SIZE) // 3)
    assert records[at] == 2 * ((len(records) - HEADER_SIZE) // 3 - 1)
    records[at : at + 2] = bytes((length & 127 | (128 if length > 127 else 0), length >> 7))
    reseal(records)
    assert refused(new_log(tmp_path), records) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    "length", [b"\xff\xff\xff\xff\x7f", b"\x01\x00\x00\x00\x00", b"\xff\xff\xff\x0f\x00"]
)
def test_record_length_that_does_not_fit_is_refused(tmp_path: Path, length: bytes) -> None:
    records = memoryview(bytearray(build_batch([Record(0, NOW_MS, None, b"v" * 20)])))
    records[HEADER_SIZE : HEADER_SIZE + 5] = length
    reseal(records)
    assert refused(new_log(tmp_path), records) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", range(5))
def test_records_that_compress_best_are_taken(tmp_path: Path, codec: int) -> None:
    empty = [Record(index, NOW_MS, None, None) for index in range(100_000)]
    records = memoryview(bytearray(build_batch(empty, codec=codec)))
    log = new_log(tmp_path)
    append(log, records)
    assert log.log_end_offset == 100_000
