"""Version 2 batches: header, checksum, stamping, building and reading, against kafka-python and
aiokafka.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

from millstream.wire.records import payload_fast
from millstream.wire.records.batch import (
    BatchHeader,
    ControlMarker,
    CorruptBatch,
    Record,
    build_batch,
    build_marker,
    crc_matches,
    parse_header,
    read_keys,
    read_marker,
    read_records,
    stamp_append_time,
    stamp_offsets,
)
from millstream.wire.records.checksum import crc32c
from millstream.wire.records.compression import Codec
from millstream.wire.records.corrupt import DecompressedTooLarge, UnknownCodec
from millstream.wire.records.layout import (
    ATTRIBUTES_AT,
    COUNT_AT,
    HEADER_SIZE,
    LEADER_EPOCH_AT,
    LENGTH_AT,
)
from millstream.wire.records.payload import (
    decode_key_columns,
    decode_keys,
    decode_records,
    encode_records,
)
from support.batches import reseal

LIMIT = 1 << 20
T0 = 1_700_000_000_000
BYTES = st.none() | st.binary(max_size=200)
HEADERS = st.lists(
    st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=20)), max_size=4
).map(tuple)
CONTENTS = st.lists(
    st.tuples(st.integers(-5000, 10**7), BYTES, BYTES, HEADERS), min_size=1, max_size=40
)
CODECS = st.sampled_from(list(Codec))


def numbered(
    contents: Sequence[tuple[int, bytes | None, bytes | None, Any]], first: int = 0
) -> list[Record]:
    return [
        Record(first + i, T0 + t, key, value, h) for i, (t, key, value, h) in enumerate(contents)
    ]


def peer_build(builder: type[Any], codec: int, records: Sequence[Record], **fields: int) -> bytes:
    state = {
        "is_transactional": 0,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
    } | fields
    peer = builder(magic=2, compression_type=int(codec), batch_size=LIMIT, **state)
    for record in records:
        headers = list(record.headers)
        assert (
            peer.append(record.offset, record.timestamp, record.key, record.value, headers)
            is not None
        )
    return bytes(peer.build())


def peer_read(reader: type[Any], batch: bytes) -> list[Record]:
    parsed = reader(batch).next_batch()
    assert parsed.validate_crc()
    return [
        Record(
            r.offset,
            -1 if r.timestamp is None else r.timestamp,
            r.key,
            r.value,
            tuple(map(tuple, r.headers)),
        )
        for r in parsed
    ]


# ---------------------------------------------------------------- parity


@settings(max_examples=60, deadline=None)
@given(CONTENTS)
def test_uncompressed_batches_have_the_same_bytes_as_those_of_other_clients(contents: Any) -> None:
    records = numbered(contents)
    ours = build_batch(records, producer_id=7, producer_epoch=1, base_sequence=3)
    for builder in (KafkaPythonBuilder, AiokafkaBuilder):
        theirs = bytearray(
            peer_build(builder, 0, records, producer_id=7, producer_epoch=1, base_sequence=3)
        )
        # aiokafka leaves 0 in the leader epoch, which no checksum covers
        struct.pack_into(">i", theirs, LEADER_EPOCH_AT, -1)
        assert ours == bytes(theirs)


@settings(max_examples=100, deadline=None)
@given(CONTENTS, CODECS)
def test_other_clients_batches_are_read(contents: Any, codec: Codec) -> None:
    records = numbered(contents)
    builders = [AiokafkaBuilder] if codec is Codec.SNAPPY else [AiokafkaBuilder, KafkaPythonBuilder]
    for builder in builders:
        batch = peer_build(builder, codec, records)
        assert crc_matches(batch, 0, parse_header(batch))
        assert read_records(batch, max_bytes=LIMIT) == records


@settings(max_examples=100, deadline=None)
@given(CONTENTS, CODECS, st.integers(0, 2**40))
def test_other_clients_read_our_batches(contents: Any, codec: Codec, base_offset: int) -> None:
    records = numbered(contents, base_offset)
    batch = build_batch(records, base_offset=base_offset, codec=codec)
    assert peer_read(AiokafkaRecords, batch) == records
    if codec is not Codec.SNAPPY:  # kafka-python wants python-snappy for that
        assert peer_read(KafkaPythonRecords, batch) == records


@settings(max_examples=100, deadline=None)
@given(CONTENTS, CODECS)
def test_reading_gives_back_what_was_built(contents: Any, codec: Codec) -> None:
    records = numbered(contents, 5)
    batch = build_batch(records, base_offset=5, codec=codec)
    assert read_records(memoryview(batch), max_bytes=LIMIT) == records
    assert read_keys(batch, max_bytes=LIMIT) == [
        (r.offset, r.timestamp, r.key, r.value is None) for r in records
    ]


# ---------------------------------------------------------------- header


def test_every_field_of_a_header() -> None:
    batch = build_batch(
        [Record(10, T0, b"k", b"v"), Record(14, T0 - 5, None, None)],
        base_offset=10,
        leader_epoch=3,
        codec=Codec.LZ4,
        producer_id=77,
        producer_epoch=2,
        base_sequence=2**31 - 2,
        transactional=True,
    )
    header = parse_header(b"??" + batch, 2)
    assert header == BatchHeader(
        base_offset=10,
        length=len(batch) - 12,
        leader_epoch=3,
        magic=2,
        crc=crc32c(batch[ATTRIBUTES_AT:]),
        attributes=0x13,
        last_offset_delta=4,
        base_timestamp=T0,
        max_timestamp=T0,
        producer_id=77,
        producer_epoch=2,
        base_sequence=2**31 - 2,
        count=2,
    )
    assert (header.size, header.last_offset, header.next_offset) == (len(batch), 14, 15)
    assert (header.codec, header.transactional, header.control, header.log_append_time) == (
        3,
        True,
        False,
        False,
    )
    assert (header.has_delete_horizon, header.delete_horizon_ms) == (False, None)
    assert header.last_sequence == 2, "sequences wrap from 2^31-1 to 0"


def test_without_sequence_there_is_no_last_sequence() -> None:
    assert parse_header(build_batch([Record(0, T0, None, b"v")])).last_sequence == -1


def test_checksum_tells_damage_and_missing_bytes() -> None:
    batch = bytearray(build_batch([Record(0, T0, b"key", b"value")]))
    header = parse_header(batch)
    assert crc_matches(batch, 0, header)
    assert crc_matches(memoryview(b"xyz" + batch), 3, header)
    assert not crc_matches(batch[:-1], 0, header)
    batch[-3] ^= 1
    assert not crc_matches(batch, 0, header)


@pytest.mark.parametrize("damage", ["magic", "length", "short"])
def test_what_is_no_batch_says_where(damage: str) -> None:
    batch = bytearray(b"\0" * 9 + build_batch([Record(0, T0, b"key", b"value")]))
    if damage == "magic":
        batch[9 + 16] = 1
    elif damage == "length":
        struct.pack_into(">i", batch, 9 + LENGTH_AT, 48)
    else:
        del batch[9 + HEADER_SIZE - 1 :]
    with pytest.raises(CorruptBatch) as caught:
        parse_header(batch, 9)
    assert caught.value.position == 9
    assert "at byte 9" in str(caught.value)


def test_stamping_offsets_and_epoch_leaves_the_checksum_right() -> None:
    buffer = bytearray(
        b"--" + build_batch([Record(0, T0, b"k", b"v"), Record(1, T0 + 9, b"k", b"v")])
    )
    stamp_offsets(memoryview(buffer), 2, 1000, 8)
    header = parse_header(buffer, 2)
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (1000, 1001, 8)
    assert crc_matches(buffer, 2, header)
    assert [r.offset for r in read_records(buffer[2:], max_bytes=0)] == [1000, 1001]


def test_stamping_append_time_changes_the_timestamp_of_every_record() -> None:
    buffer = bytearray(
        build_batch([Record(0, T0, b"k", b"v"), Record(1, T0 + 9, b"k", b"v")], codec=Codec.GZIP)
    )
    stamped = stamp_append_time(buffer, 0, parse_header(buffer), T0 + 500)
    assert stamped == parse_header(buffer)
    assert (stamped.log_append_time, stamped.max_timestamp, stamped.codec) == (
        True,
        T0 + 500,
        Codec.GZIP,
    )
    assert crc_matches(buffer, 0, stamped)
    assert [r.timestamp for r in read_records(buffer, max_bytes=LIMIT)] == [T0 + 500, T0 + 500]
    assert [k[1] for k in read_keys(buffer, max_bytes=LIMIT)] == [T0 + 500, T0 + 500]
    assert [r.timestamp for r in peer_read(AiokafkaRecords, bytes(buffer))] == [T0 + 500, T0 + 500]


# ---------------------------------------------------------------- special batches


def test_compacted_batch_keeps_its_offset_range_and_gaps() -> None:
    kept = [Record(103, T0, b"a", b"1"), Record(107, T0 + 4, b"b", None)]
    batch = build_batch(kept, base_offset=100, last_offset=109)
    header = parse_header(batch)
    assert (header.base_offset, header.last_offset, header.count) == (100, 109, 2)
    assert read_records(batch, max_bytes=0) == kept


def test_delete_horizon_takes_the_place_of_the_base_timestamp() -> None:
    records = [Record(0, T0, b"a", None), Record(1, T0 + 4, b"b", None)]
    batch = build_batch(records, delete_horizon_ms=T0 + 86_400_000)
    header = parse_header(batch)
    assert (header.delete_horizon_ms, header.max_timestamp) == (T0 + 86_400_000, T0 + 4)
    assert read_records(batch, max_bytes=0) == records


def test_empty_batch_keeps_sequence_and_last_offset() -> None:
    batch = build_batch(
        (), base_offset=20, last_offset=29, max_timestamp=T0, codec=Codec.ZSTD, producer_id=5, producer_epoch=0,
        base_sequence=10,
    )  # fmt: skip
    header = parse_header(batch)
    assert len(batch) == header.size == HEADER_SIZE
    assert (header.last_offset, header.count, header.codec, header.last_sequence) == (29, 0, 0, 19)
    assert (header.base_timestamp, header.max_timestamp) == (-1, T0)
    assert crc_matches(batch, 0, header)
    assert read_records(batch, max_bytes=0) == []


@pytest.mark.parametrize("commit", [True, False])
def test_transaction_marker_round_trip(commit: bool) -> None:
    marker = build_marker(
        base_offset=42, leader_epoch=6, producer_id=9, producer_epoch=3, coordinator_epoch=11, commit=commit,
        timestamp=T0,
    )  # fmt: skip
    header = parse_header(marker)
    assert (header.control, header.transactional, header.count, header.base_offset) == (
        True,
        True,
        1,
        42,
    )
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 3, -1)
    assert crc_matches(marker, 0, header)
    assert read_marker(marker) == ControlMarker(commit, 11)
    (record,) = read_records(marker, max_bytes=0)
    assert record == Record(
        42, T0, struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 11)
    ), "version 0, type; version 0, coordinator epoch"


def test_other_control_records_are_no_marker() -> None:
    leader_change = build_batch([Record(0, T0, struct.pack(">hh", 0, 2), b"")], control=True)
    assert read_marker(leader_change) is None


@pytest.mark.parametrize(("key", "value"), [(None, b""), (b"\0\0", b""), (b"\0\0\0\1", b"\0\0")])
def test_damaged_markers_are_corrupt(key: bytes | None, value: bytes) -> None:
    with pytest.raises(CorruptBatch):
        read_marker(build_batch([Record(0, T0, key, value)], control=True, transactional=True))


def test_header_names_that_are_not_utf8_survive() -> None:
    body = encode_records([Record(0, T0, b"k", b"v", (("aa", b"x"),))], 0, T0).replace(
        b"aa", b"\xff\xfe"
    )
    (record,) = decode_records(body, 1, 0, T0, None)
    assert encode_records([record], 0, T0) == body


def test_extreme_timestamps_wrap_within_64_bits() -> None:
    records = [
        Record(0, -(2**63), b"k", b"v"),
        Record(1, 2**63 - 1, b"k", b"v"),
        Record(2, 5, b"k", b"v"),
    ]
    batch = build_batch(records)
    assert read_records(batch, max_bytes=0) == records
    assert [k[1] for k in read_keys(batch, max_bytes=0)] == [r.timestamp for r in records]


# ---------------------------------------------------------------- lies


def with_field(offset: int, form: str, value: int, codec: int = 0) -> bytes:
    batch = bytearray(build_batch([Record(i, T0, b"k", b"v") for i in range(3)], codec=codec))
    struct.pack_into(form, batch, offset, value)
    return reseal(batch)


@pytest.mark.parametrize("read", [read_records, read_keys])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("count", [-1, 1, 2, 4, 1000, 2**31 - 1])
def test_a_lying_count_is_corrupt(read: Any, codec: Codec, count: int) -> None:
    with pytest.raises(CorruptBatch):
        read(with_field(COUNT_AT, ">i", count, codec), max_bytes=LIMIT)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x0e",
        b"\x01" + bytes(20),  # a record of -1 bytes
        b"\xfe\xff\xff\xff\x0f" + bytes(20),  # of 2 GiB
        b"\x80\x80\x80\x80\x80\x01" + bytes(20),  # a length that does not end
        b"\x0e\0\0\0\x02k\x00\x00\x00",  # a length one too small... and bytes left over
        b"\x10\0\0\0\x02k\x7e\x00\x00",  # a value longer than its record
        b"\x10\0\0\0\xfe\xff\xff\xff\x0fv\x00",  # a key of 2 GiB
        b"\x0e\0\0\0\x01\x01\x03\x00",  # -2 headers
        b"\x0e\0\0\0\x01\x01\x40\x00",  # 32 headers in one byte
        b"\x10\0\0\0\x01\x01\x02\x01\x00",  # a header without a name
        b"\x12\0\0\0\x01\x01\x02\x02a\x20",  # a header value that is not there
    ],
)
def test_lying_lengths_are_corrupt(body: bytes) -> None:
    for decode in (
        decode_records,
        decode_keys,
        payload_fast.decode_records,
        payload_fast.decode_keys,
    ):
        with pytest.raises(CorruptBatch):
            decode(body, 1, 0, T0, None)


def test_negative_lengths_other_than_minus_one_are_null_as_in_kafka() -> None:
    assert decode_records(b"\x0c\0\0\0\x03\x05\0", 1, 0, T0, None) == [Record(0, T0, None, None)]


def test_truncated_batch_is_corrupt() -> None:
    batch = build_batch([Record(0, T0, b"k", b"v")])
    with pytest.raises(CorruptBatch):
        read_records(batch[:-1], max_bytes=0)


def test_unknown_codecs_are_named() -> None:
    with pytest.raises(UnknownCodec, match="codec 5"):
        read_records(with_field(ATTRIBUTES_AT, ">h", 5), max_bytes=LIMIT)


def test_decompression_is_bounded() -> None:
    batch = build_batch([Record(0, T0, None, bytes(100_000))], codec=Codec.ZSTD)
    assert len(read_records(batch, max_bytes=100_100)) == 1
    with pytest.raises(DecompressedTooLarge):
        read_records(batch, max_bytes=99_999)


def test_exceptions_pickle() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(DecompressedTooLarge("too much", 9)))
    assert (type(error), error.reason, error.position) == (DecompressedTooLarge, "too much", 9)


@settings(max_examples=300, deadline=None)
@given(
    CONTENTS,
    CODECS,
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=6),
    st.booleans(),
)
def test_random_damage_gives_records_or_corrupt_batch(
    contents: Any, codec: Codec, damage: list[tuple[int, int]], cut: bool
) -> None:
    batch = bytearray(build_batch(numbered(contents), codec=codec))
    for position, byte in damage:
        batch[position % len(batch)] = byte
    if cut:
        del batch[damage[0][0] % len(batch) :]
    for read in (read_records, read_keys, read_marker):
        try:
            read(bytes(batch), **({} if read is read_marker else {"max_bytes": LIMIT}))
        except CorruptBatch:
            pass


# ---------------------------------------------------------------- the fast reader


@settings(max_examples=100, deadline=None)
@given(CONTENTS, st.integers(0, 2**40), st.none() | st.integers(-1, 2**50))
def test_fast_reader_agrees_with_the_reference(
    contents: Any, base_offset: int, append_time: int | None
) -> None:
    assert payload_fast.available()
    body = encode_records(numbered(contents), 0, T0)
    arguments = (body, len(contents), base_offset, T0, append_time)
    assert payload_fast.decode_records(*arguments) == decode_records(*arguments)
    assert payload_fast.decode_keys(*arguments) == decode_keys(*arguments)
    infos = decode_keys(*arguments)
    for decode in (payload_fast.decode_key_columns, decode_key_columns):
        for last, inside in (
            (base_offset + len(contents) - 1, True),
            (base_offset + len(contents) - 2, False),
        ):
            found = decode(*arguments[:3], last)
            assert found == (
                [info[0] for info in infos],
                [info[2] for info in infos],
                inside or not infos,
            )


@settings(max_examples=200, deadline=None)
@given(
    CONTENTS,
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_fast_reader_survives_damage(contents: Any, damage: list[tuple[int, int]]) -> None:
    body = bytearray(encode_records(numbered(contents), 0, T0))
    for position, byte in damage:
        body[position % len(body)] = byte
    for decode in (payload_fast.decode_records, payload_fast.decode_keys):
        try:
            decode(bytes(body), len(contents), 0, T0, None)
        except CorruptBatch:
            pass


def test_fast_reader_leaves_disorder_to_the_reference() -> None:
    body = encode_records([Record(5, T0, b"k", b"v"), Record(1, T0, b"k", b"v")], 0, T0)
    assert [r.offset for r in payload_fast.decode_records(body, 2, 0, T0, None)] == [5, 1]
    assert payload_fast.decode_key_columns(body, 2, 0, 4) == ([5, 1], [b"k", b"k"], False)
    assert payload_fast.decode_key_columns(body, 2, 0, 5).inside
    assert payload_fast.decode_keys(b"", 0, 0, T0, None) == []
