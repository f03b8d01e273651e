"""Rebuilding what clients produce and converting what old clients fetch: results, codes, and
damage.
"""

from __future__ import annotations

import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.errors import ApiError, ErrorCode
from millstream.wire.records import legacy
from millstream.wire.records.batch import (
    Record,
    build_batch,
    build_marker,
    crc_matches,
    parse_header,
    read_records,
    stamp_append_time,
)
from millstream.wire.records.compression import Codec, compress
from millstream.wire.records.convert import (
    LOG_APPEND_TIME,
    RebuildSpec,
    RecordsRejected,
    down_convert,
    rebuild,
)
from millstream.wire.records.layout import (
    ATTRIBUTES_AT,
    COUNT_AT,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    LOG_OVERHEAD,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
)
from millstream.wire.records.legacy import build_message_set, read_message_set
from support.batches import reseal

LIMIT = 1 << 20
T0 = 1_700_000_000_000
NOW = T0 + 1000
OLD_CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
RECORDS = [
    Record(0, T0, b"a", b"one" * 50, (("h", b"1"), ("g", None))),
    Record(1, T0 + 7, None, None),
    Record(2, T0 - 3, b"", b""),
    Record(3, -1, b"b", b"two" * 50),
]
PRODUCER = {"producer_id": 12, "producer_epoch": 3, "base_sequence": 40, "transactional": True}


def spec(**fields: Any) -> RebuildSpec:
    return RebuildSpec(**({"max_decompressed_bytes": LIMIT, "now_ms": NOW} | fields))


def code_of(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        call()
    return caught.value.code


def batch_with(position: int, form: str, value: int, **fields: Any) -> bytes:
    batch = bytearray(build_batch(RECORDS, **fields))
    struct.pack_into(form, batch, position, value)
    return reseal(batch)


def checked(batch: bytes) -> list[Record]:
    header = parse_header(batch)
    assert header.size == len(batch)
    assert crc_matches(batch, 0, header)
    assert header.count == header.last_offset_delta + 1
    return read_records(batch, max_bytes=LIMIT)


# ---------------------------------------------------------------- version 2


@pytest.mark.parametrize("codec", list(Codec))
def test_what_needs_no_change_comes_back_as_the_same_object(codec: Codec) -> None:
    batch = build_batch(RECORDS, codec=codec, **PRODUCER)
    assert rebuild(batch, spec()) is batch
    assert (
        rebuild(batch, spec(target_codec=int(codec), before_max_ms=5000, after_max_ms=5000))
        is batch
    )


@pytest.mark.parametrize("target", list(Codec))
@pytest.mark.parametrize("source", list(Codec))
def test_recompression_keeps_records_and_producer(source: Codec, target: Codec) -> None:
    batch = build_batch(RECORDS, codec=source, **PRODUCER)
    rebuilt = rebuild(batch, spec(target_codec=int(target)))
    assert checked(rebuilt) == RECORDS
    before, after = parse_header(batch), parse_header(rebuilt)
    assert after.codec == target
    assert after.transactional
    same = [
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "base_timestamp",
        "max_timestamp",
        "count",
    ]
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]


def test_level_of_the_target_codec_is_used() -> None:
    batch = build_batch([Record(i, T0, b"k%d" % i, b"some value %d" % (i * i)) for i in range(500)])
    fast, best = (
        rebuild(batch, spec(target_codec=int(Codec.GZIP), level=level)) for level in (1, 9)
    )
    assert len(best) < len(fast)


def test_wrong_maximum_timestamp_is_put_right() -> None:
    rebuilt = rebuild(batch_with(MAX_TIMESTAMP_AT, ">q", T0 + 999_999), spec())
    assert parse_header(rebuilt).max_timestamp == T0 + 7
    assert checked(rebuilt) == RECORDS


def test_without_any_timestamp_the_maximum_is_minus_one() -> None:
    batch = build_batch([Record(0, -1, b"k", b"v")])
    assert rebuild(batch, spec(after_max_ms=0, before_max_ms=0)) is batch
    assert parse_header(batch).max_timestamp == -1


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_append_time_topic_stamps_now(codec: Codec) -> None:
    rebuilt = rebuild(build_batch(RECORDS, codec=codec), spec(timestamp_type=LOG_APPEND_TIME))
    assert checked(rebuilt) == [record._replace(timestamp=NOW) for record in RECORDS]


def test_claim_of_append_time_is_dropped_on_a_create_time_topic() -> None:
    batch = bytearray(build_batch(RECORDS[:3]))
    stamp_append_time(batch, 0, parse_header(batch), NOW)
    assert checked(rebuild(bytes(batch), spec())) == RECORDS[:3]


def test_claim_of_append_time_is_refused_on_an_append_time_topic_and_without_a_timestamp() -> None:
    batch = bytearray(build_batch(RECORDS))
    stamp_append_time(batch, 0, parse_header(batch), NOW)
    for asked in (spec(timestamp_type=LOG_APPEND_TIME), spec()):
        assert (
            code_of(lambda asked=asked: rebuild(bytes(batch), asked)) is ErrorCode.INVALID_TIMESTAMP
        )


def test_deltas_out_of_order_are_renumbered_not_refused() -> None:
    disorder = [
        record._replace(offset=offset) for record, offset in zip(RECORDS, [0, 0, 7, 1], strict=True)
    ]
    batch = build_batch(disorder, last_offset=3, codec=Codec.LZ4, **PRODUCER)
    rebuilt = rebuild(batch, spec())
    assert checked(rebuilt) == RECORDS
    header = parse_header(rebuilt)
    assert (header.codec, header.producer_id, header.base_sequence, header.transactional) == (
        3,
        12,
        40,
        True,
    )


def test_delete_horizon_is_not_for_clients_to_set() -> None:
    rebuilt = rebuild(build_batch(RECORDS, delete_horizon_ms=1), spec())
    assert not parse_header(rebuilt).has_delete_horizon
    assert checked(rebuilt) == RECORDS


# ---------------------------------------------------------------- refused records


def test_records_without_keys_are_named() -> None:
    with pytest.raises(RecordsRejected) as caught:
        rebuild(build_batch([*RECORDS, RECORDS[1]._replace(offset=4)]), spec(require_keys=True))
    assert caught.value.code is ErrorCode.INVALID_RECORD
    assert [index for index, _ in caught.value.record_errors] == [1, 4]
    assert "key" in caught.value.record_errors[0][1]


def test_timestamps_at_the_bounds_pass_and_beyond_are_named() -> None:
    batch = build_batch(RECORDS)
    assert rebuild(batch, spec(before_max_ms=1003, after_max_ms=0)) is batch
    with pytest.raises(RecordsRejected) as caught:
        rebuild(batch, spec(before_max_ms=1002))
    assert caught.value.code is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in caught.value.record_errors] == [2], (
        "-1 is no timestamp, and passes"
    )
    with pytest.raises(RecordsRejected) as caught:
        rebuild(batch, spec(now_ms=T0 - 10, after_max_ms=9))
    assert [index for index, _ in caught.value.record_errors] == [0, 1]


def test_one_bad_timestamp_decides_the_code_but_a_missing_key_comes_first_for_its_record() -> None:
    batch = build_batch(RECORDS)
    with pytest.raises(RecordsRejected) as caught:
        rebuild(batch, spec(require_keys=True, now_ms=T0 - 10, after_max_ms=0))
    assert caught.value.code is ErrorCode.INVALID_TIMESTAMP
    assert [(index, "key" in why) for index, why in caught.value.record_errors] == [
        (0, False),
        (1, True),
        (2, False),
    ]
    with pytest.raises(RecordsRejected) as caught:
        rebuild(
            build_batch([RECORDS[1]._replace(offset=0)]),
            spec(require_keys=True, after_max_ms=0, now_ms=0),
        )
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_append_time_topics_have_no_bounds() -> None:
    rebuilt = rebuild(
        build_batch(RECORDS), spec(timestamp_type=LOG_APPEND_TIME, before_max_ms=0, after_max_ms=0)
    )
    assert parse_header(rebuilt).max_timestamp == NOW


def test_specs_and_errors_pickle() -> None:
    assert pickle.loads(pickle.dumps(spec(level=3))) == spec(level=3)
    error = pickle.loads(
        pickle.dumps(RecordsRejected(ErrorCode.INVALID_RECORD, "no key", ((3, "why"),)))
    )
    assert (error.code, error.message, error.record_errors) == (
        ErrorCode.INVALID_RECORD,
        "no key",
        ((3, "why"),),
    )
    assert pickle.loads(pickle.dumps(rebuild)) is rebuild


# ---------------------------------------------------------------- refused batches


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (build_batch(RECORDS)[:-1] + b"\1", ErrorCode.CORRUPT_MESSAGE),  # checksum
        (batch_with(MAGIC_AT, ">b", 3), ErrorCode.CORRUPT_MESSAGE),  # magic
        (batch_with(MAGIC_AT, ">b", -1), ErrorCode.CORRUPT_MESSAGE),
        (batch_with(LENGTH_AT, ">i", 48), ErrorCode.CORRUPT_MESSAGE),  # length below the header
        (build_batch(RECORDS)[:30], ErrorCode.CORRUPT_MESSAGE),
        (build_batch(RECORDS)[:-1], ErrorCode.INVALID_RECORD),  # cut
        (build_batch(RECORDS) * 2, ErrorCode.INVALID_RECORD),  # two batches
        (build_batch(RECORDS) + b"x", ErrorCode.INVALID_RECORD),
        (batch_with(0, ">q", 1), ErrorCode.INVALID_RECORD),  # base offset
        (batch_with(COUNT_AT, ">i", 3), ErrorCode.INVALID_RECORD),  # count
        (batch_with(COUNT_AT, ">i", 0), ErrorCode.INVALID_RECORD),
        (batch_with(COUNT_AT, ">i", -4), ErrorCode.INVALID_RECORD),
        (batch_with(LAST_OFFSET_DELTA_AT, ">i", 9), ErrorCode.INVALID_RECORD),  # last offset delta
        (batch_with(LAST_OFFSET_DELTA_AT, ">i", -1), ErrorCode.INVALID_RECORD),
        (build_batch(RECORDS, control=True), ErrorCode.INVALID_RECORD),
        (
            build_batch(RECORDS, producer_id=1, producer_epoch=0),
            ErrorCode.INVALID_RECORD,
        ),  # no sequence
        (batch_with(HEADER_SIZE, ">b", 2), ErrorCode.INVALID_RECORD),  # the length of a record
        (
            batch_with(HEADER_SIZE, ">b", 100, codec=Codec.ZSTD),
            ErrorCode.INVALID_RECORD,
        ),  # not zstd
        (batch_with(ATTRIBUTES_AT, ">h", 1), ErrorCode.INVALID_RECORD),  # says gzip
        (batch_with(ATTRIBUTES_AT, ">h", 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (batch_with(ATTRIBUTES_AT, ">h", 7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (
            build_batch([Record(0, T0, b"k", bytes(LIMIT))], codec=Codec.ZSTD),
            ErrorCode.MESSAGE_TOO_LARGE,
        ),
    ],
)
def test_batches_kafka_would_refuse(batch: bytes, code: ErrorCode) -> None:
    assert code_of(lambda: rebuild(batch, spec())) is code


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_records_and_count_that_disagree_are_invalid(codec: Codec) -> None:
    body = build_batch(RECORDS)[HEADER_SIZE:]
    for wrong in (body + b"\0", body[:-1], body + body[: body[0] // 2 + 1]):
        batch = bytearray(build_batch(RECORDS, codec=codec)[:HEADER_SIZE] + compress(codec, wrong))
        struct.pack_into(">i", batch, LENGTH_AT, len(batch) - LOG_OVERHEAD)
        assert (
            code_of(lambda batch=batch: rebuild(reseal(batch), spec())) is ErrorCode.INVALID_RECORD
        )


# ---------------------------------------------------------------- magic 0 and 1 in


@pytest.mark.parametrize("target", [None, Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_old_sets_become_one_batch(magic: int, codec: Codec, target: Codec | None) -> None:
    old = build_message_set([r._replace(offset=r.offset + 5) for r in RECORDS], magic, codec=codec)
    rebuilt = rebuild(old, spec(target_codec=target))
    expected = [r._replace(headers=(), timestamp=r.timestamp if magic else -1) for r in RECORDS]
    assert checked(rebuilt) == expected
    header = parse_header(rebuilt)
    assert (header.base_offset, header.producer_id, header.base_sequence) == (0, -1, -1)
    assert header.codec == (codec if target is None else target)
    assert header.max_timestamp == (T0 + 7 if magic else -1)
    peer = MemoryRecords(rebuilt).next_batch()
    assert peer is not None
    assert [(r.offset, r.key, r.value) for r in peer] == [
        (r.offset, r.key, r.value) for r in expected
    ]


@pytest.mark.parametrize("magic", [0, 1])
def test_what_aiokafka_produces_to_old_brokers(magic: int) -> None:
    for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY):
        peer = LegacyRecordBatchBuilder(magic, int(codec), LIMIT)
        for i in range(10):
            peer.append(i, T0 + i if magic else None, b"k%d" % i, b"v" * i)
        records = checked(rebuild(bytes(peer.build()), spec(require_keys=True)))
        assert records == [
            Record(i, T0 + i if magic else -1, b"k%d" % i, b"v" * i) for i in range(10)
        ]


def test_append_time_for_old_sets() -> None:
    for magic in (0, 1):
        rebuilt = rebuild(build_message_set(RECORDS, magic), spec(timestamp_type=LOG_APPEND_TIME))
        assert {record.timestamp for record in checked(rebuilt)} == {NOW}


def test_nothing_to_append_is_no_error() -> None:
    old = build_message_set(RECORDS, 1)
    for data in (b"", old[:10], old[:16], old[:30]):
        assert rebuild(data, spec()) == b""


def test_a_partial_last_message_is_left_out() -> None:
    assert len(checked(rebuild(build_message_set(RECORDS, 1)[:-5], spec()))) == 3


def old_with(position: int, byte: int) -> bytes:
    data = bytearray(build_message_set(RECORDS, 1))
    data[position] = byte
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (old_with(40, 0xEE), ErrorCode.CORRUPT_MESSAGE),  # checksum
        (old_with(11, 1), ErrorCode.CORRUPT_MESSAGE),  # size
        (
            build_message_set(RECORDS, 1, codec=Codec.GZIP) + build_message_set(RECORDS, 1),
            ErrorCode.INVALID_RECORD,
        ),
        (build_message_set(RECORDS, 1, codec=Codec.GZIP) * 2, ErrorCode.INVALID_RECORD),
        (build_message_set(RECORDS, 1) + build_message_set(RECORDS, 0), ErrorCode.INVALID_RECORD),
        (legacy._encode(0, 1, Codec.GZIP, T0, None, None), ErrorCode.INVALID_RECORD),
        (legacy._encode(0, 1, Codec.ZSTD, T0, None, b"x"), ErrorCode.INVALID_RECORD),
        (legacy._encode(0, 1, 6, T0, None, b"x"), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (legacy._encode(0, 1, Codec.GZIP, T0, None, b"x"), ErrorCode.INVALID_RECORD),
        (
            legacy._encode(0, 1, Codec.GZIP, T0, None, compress(1, build_message_set(RECORDS, 0))),
            ErrorCode.INVALID_RECORD,
        ),
        (
            legacy._encode(0, 1, Codec.GZIP, T0, None, compress(1, old_with(40, 0xEE))),
            ErrorCode.CORRUPT_MESSAGE,
        ),
        (
            build_message_set([Record(0, T0, None, bytes(LIMIT))], 1, codec=Codec.SNAPPY),
            ErrorCode.MESSAGE_TOO_LARGE,
        ),
        (build_message_set([Record(0, -2, b"k", b"v")], 1), ErrorCode.INVALID_TIMESTAMP),
        (
            build_message_set([Record(0, -1, b"k", b"v")], 1, append_time=-1),
            ErrorCode.INVALID_TIMESTAMP,
        ),
    ],
)
def test_old_sets_kafka_would_refuse(data: bytes, code: ErrorCode) -> None:
    assert code_of(lambda: rebuild(data, spec())) is code


def test_old_sets_obey_keys_and_bounds() -> None:
    old = build_message_set(RECORDS, 1, codec=Codec.LZ4)
    with pytest.raises(RecordsRejected) as caught:
        rebuild(old, spec(require_keys=True))
    assert [index for index, _ in caught.value.record_errors] == [1]
    assert code_of(lambda: rebuild(old, spec(before_max_ms=900))) is ErrorCode.INVALID_TIMESTAMP
    assert rebuild(build_message_set(RECORDS, 0), spec(before_max_ms=0)), (
        "magic 0 has no timestamps"
    )


# ---------------------------------------------------------------- magic 0 and 1 out


def stored(first: int, codec: Codec = Codec.NONE, **fields: Any) -> bytes:
    records = [record._replace(offset=first + record.offset) for record in RECORDS]
    return build_batch(records, base_offset=first, leader_epoch=4, codec=codec, **fields)


def down(batches: bytes, magic: int, first_offset: int = 0) -> bytes:
    return down_convert(batches, magic, first_offset=first_offset, max_decompressed_bytes=LIMIT)


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_stored_batches_for_old_consumers(magic: int, codec: Codec) -> None:
    converted = down(stored(100, codec, **PRODUCER) + stored(200, codec), magic)
    expected = [
        record._replace(
            offset=first + record.offset, headers=(), timestamp=record.timestamp if magic else -1
        )
        for first in (100, 200)
        for record in RECORDS
    ]
    assert read_message_set(converted, max_bytes=LIMIT) == expected
    entries = list(legacy.parse_messages(converted))
    assert {entry.magic for entry in entries} == {magic}
    assert len(entries) == (8 if codec is Codec.NONE else 2), "compressed stays compressed"
    if magic == 1 or codec is not Codec.LZ4:
        theirs = []
        batches = MemoryRecords(converted)
        while (batch := batches.next_batch()) is not None:
            theirs += [(r.offset, r.key, r.value) for r in batch]
        assert theirs == [(r.offset, r.key, r.value) for r in expected]


def test_only_uncompressed_batches_begin_in_the_middle() -> None:
    plain = read_message_set(down(stored(100), 1, first_offset=102), max_bytes=0)
    assert [record.offset for record in plain] == [102, 103]
    packed = read_message_set(down(stored(100, Codec.GZIP), 1, first_offset=102), max_bytes=LIMIT)
    assert [record.offset for record in packed] == [100, 101, 102, 103]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
def test_append_time_is_told_to_old_consumers(codec: Codec) -> None:
    batch = bytearray(stored(100, codec))
    stamp_append_time(batch, 0, parse_header(batch), NOW)
    converted = down(bytes(batch), 1)
    assert all(
        entry.log_append_time and entry.timestamp == NOW
        for entry in legacy.parse_messages(converted)
    )
    assert {record.timestamp for record in read_message_set(converted, max_bytes=LIMIT)} == {NOW}


def test_control_and_empty_batches_have_no_place_in_a_set() -> None:
    marker = build_marker(
        base_offset=104, leader_epoch=0, producer_id=1, producer_epoch=0, coordinator_epoch=0, commit=True,
        timestamp=T0,
    )  # fmt: skip
    empty = build_batch((), base_offset=105, last_offset=120, max_timestamp=T0)
    assert down(stored(100) + marker + empty, 1) == down(stored(100), 1)
    assert down(marker + empty, 1) == b""


def test_compaction_gaps_keep_their_offsets() -> None:
    gaps = [Record(1003, T0, b"a", b"1"), Record(1008, T0, b"b", b"2")]
    for codec in OLD_CODECS:
        for magic in (0, 1):
            batch = build_batch(gaps, base_offset=1000, last_offset=1010, codec=codec)
            records = read_message_set(down(batch, magic), max_bytes=LIMIT)
            assert [record.offset for record in records] == [1003, 1008]


def test_zstd_is_refused_once_it_comes_first() -> None:
    zstd = stored(200, Codec.ZSTD)
    assert code_of(lambda: down(zstd + stored(300), 1)) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert down(stored(100) + zstd + stored(300), 1) == down(stored(100), 1)


def test_a_slice_may_end_inside_a_batch() -> None:
    whole, next_one = stored(100), stored(200)
    for cut in (1, 30, len(next_one) - 5):
        assert down(whole + next_one[:cut], 1) == down(whole, 1)


def test_damaged_and_oversized_stored_batches() -> None:
    damaged = bytearray(stored(100))
    damaged[HEADER_SIZE] = 1
    assert code_of(lambda: down(bytes(damaged), 1)) is ErrorCode.CORRUPT_MESSAGE
    big = build_batch([Record(0, T0, b"k", bytes(LIMIT))], codec=Codec.GZIP)
    assert code_of(lambda: down(big, 1)) is ErrorCode.MESSAGE_TOO_LARGE


# ---------------------------------------------------------------- many small records


@pytest.mark.parametrize("count", [4095, 4096, 4097, 8192, 10_000])
def test_batches_of_several_chunks(count: int) -> None:
    records = [Record(i, T0 + i, b"k%d" % i if i else None, None) for i in range(count)]
    batch = build_batch(records, codec=Codec.LZ4)
    assert rebuild(batch, spec()) is batch
    assert checked(batch) == records
    shuffled = [record._replace(offset=0) for record in records]
    assert checked(rebuild(build_batch(shuffled, last_offset=count - 1), spec())) == records
    old = down(batch, 1)
    assert read_message_set(old, max_bytes=LIMIT) == records
    assert checked(rebuild(old, spec(max_decompressed_bytes=1 << 22))) == records
    with pytest.raises(RecordsRejected) as caught:
        rebuild(batch, spec(require_keys=True, now_ms=T0, after_max_ms=count - 2))
    assert [index for index, _ in caught.value.record_errors] == [0, count - 1]
    assert f"2 of {count} records" in caught.value.message


def test_a_refusal_names_a_hundred_records_at_most() -> None:
    batch = build_batch([Record(i, T0, None, b"v") for i in range(5000)])
    with pytest.raises(RecordsRejected) as caught:
        rebuild(batch, spec(require_keys=True))
    assert [index for index, _ in caught.value.record_errors] == list(range(100))
    assert "5000 of 5000 records" in caught.value.message


# The peak is VmHWM, which begins anew in a new program; ru_maxrss would begin with the size of this
# process.
CHILD = """
import sys
from pathlib import Path
from millstream.wire.records.convert import RebuildSpec, down_convert, rebuild
def peak_kib():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
data = Path(sys.argv[2]).read_bytes()
before = peak_kib()
if sys.argv[1] == "rebuild":
    rebuild(data, RebuildSpec(max_decompressed_bytes=1 << 28, target_codec=0, require_keys=True))
else:
    down_convert(data, 0, first_offset=0, max_decompressed_bytes=1 << 28)
print((peak_kib() - before) // 1024)
"""


@pytest.mark.parametrize(
    ("job", "magic", "limit_mib"), [("rebuild", 2, 24), ("rebuild", 1, 48), ("down", 2, 48)]
)
def test_tiny_records_cost_no_more_memory_than_their_bytes(
    job: str, magic: int, limit_mib: int, tmp_path: Path
) -> None:
    """300,000 records of 8 bytes (or 34 in the old format): decoded all at once they would take 60
    MiB and more.
    """
    records = [Record(i, T0, b"", None) for i in range(300_000)]
    packed = build_batch(records, codec=Codec.LZ4)
    if magic < 2:
        packed = build_message_set(records, magic, codec=Codec.LZ4)
    path = tmp_path / "records"
    path.write_bytes(packed)
    arguments = [sys.executable, "-c", CHILD, job, str(path)]
    result = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert int(result.stdout) <= limit_mib


# ---------------------------------------------------------------- properties

BYTES = st.none() | st.binary(max_size=60)
CONTENTS = st.lists(st.tuples(st.integers(0, 10**6), BYTES, BYTES), min_size=1, max_size=20).map(
    lambda items: [Record(i, T0 + t, key, value) for i, (t, key, value) in enumerate(items)]
)
DAMAGE = st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=5)
REFUSALS = {
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
}


@settings(max_examples=60, deadline=None)
@given(CONTENTS, st.sampled_from([0, 1]), st.sampled_from(OLD_CODECS))
def test_down_and_up_again_is_the_same(records: list[Record], magic: int, codec: Codec) -> None:
    batch = build_batch(records, codec=codec)
    again = checked(rebuild(down(batch, magic), spec()))
    assert again == [
        record._replace(timestamp=record.timestamp if magic else -1) for record in records
    ]


@settings(max_examples=400, deadline=None)
@given(
    CONTENTS,
    st.sampled_from([0, 1, 2]),
    st.sampled_from(OLD_CODECS),
    DAMAGE,
    st.booleans(),
    st.booleans(),
)
def test_rebuild_of_damage_gives_a_valid_batch_or_a_refusal(
    records: list[Record],
    magic: int,
    codec: Codec,
    damage: list[tuple[int, int]],
    sealed: bool,
    keys: bool,
) -> None:
    old = (
        build_message_set(records, magic, codec=codec)
        if magic < 2
        else build_batch(records, codec=codec)
    )
    data = bytearray(old)
    for position, byte in damage:
        data[position % len(data)] = byte
    if sealed and magic == 2:
        data = bytearray(reseal(data))
    asked = spec(require_keys=keys, target_codec=Codec.LZ4, after_max_ms=10**7)
    try:
        rebuilt = rebuild(bytes(data), asked)
    except ApiError as error:
        assert error.code in REFUSALS
    else:
        again = checked(rebuilt) if rebuilt else []
        assert not keys or all(record.key is not None for record in again)


@settings(max_examples=300, deadline=None)
@given(CONTENTS, st.sampled_from([0, 1]), st.sampled_from(list(Codec)), DAMAGE)
def test_down_conversion_of_damage_gives_a_set_or_a_refusal(
    records: list[Record], magic: int, codec: Codec, damage: list[tuple[int, int]]
) -> None:
    data = bytearray(build_batch(records, codec=codec))
    for position, byte in damage:
        data[position % len(data)] = byte
    try:
        converted = down(bytes(data), magic, first_offset=2)
    except ApiError as error:
        assert error.code in REFUSALS
    else:
        assert all(message.magic == magic for message in legacy.parse_messages(converted))


def test_what_aiokafka_produces_is_left_alone() -> None:
    for codec in Codec:
        peer = DefaultRecordBatchBuilder(2, int(codec), 0, -1, -1, -1, LIMIT)
        for i in range(50):
            peer.append(i, T0 + i, b"key", b"value" * i, [("h", b"x")])
        batch = bytes(peer.build())
        assert (
            rebuild(batch, spec(require_keys=True, before_max_ms=10**6, after_max_ms=10**6))
            is batch
        )
