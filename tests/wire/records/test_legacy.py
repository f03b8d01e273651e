"""Message sets of magic 0 and 1, in both directions with aiokafka and kafka-python, and what real
brokers accept.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder as AiokafkaBuilder
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder as KafkaPythonBuilder
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

from millstream.wire.records import legacy
from millstream.wire.records.compression import Codec, compress
from millstream.wire.records.corrupt import CorruptBatch, CorruptMessage, DecompressedTooLarge
from millstream.wire.records.legacy import build_message_set, parse_messages, read_message_set
from millstream.wire.records.payload import Record

LIMIT = 1 << 20
T0 = 1_700_000_000_000
BYTES = st.none() | st.binary(max_size=100)
CONTENTS = st.lists(st.tuples(st.integers(0, 10**7), BYTES, BYTES), min_size=1, max_size=30)
OLD_CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
FORMATS = st.tuples(st.sampled_from([0, 1]), st.sampled_from(OLD_CODECS))


def numbered(
    contents: Sequence[tuple[int, bytes | None, bytes | None]], magic: int, first: int
) -> list[Record]:
    return [
        Record(first + i, T0 + t if magic else -1, key, value)
        for i, (t, key, value) in enumerate(contents)
    ]


def readable_by_peers(magic: int, codec: Codec) -> bool:
    """Neither peer reads the LZ4 of magic 0 without a package that is not among ours."""
    return not (magic == 0 and codec is Codec.LZ4)


def peer_read(reader: type[Any], data: bytes) -> list[Record]:
    out = []
    entries = reader(data)
    while (batch := entries.next_batch()) is not None:
        assert batch.validate_crc()
        out += [
            Record(r.offset, -1 if r.timestamp is None else r.timestamp, r.key, r.value)
            for r in batch
        ]
    return out


@settings(max_examples=100, deadline=None)
@given(CONTENTS, FORMATS, st.integers(0, 2**40))
def test_round_trip_keeps_offsets(contents: Any, form: tuple[int, Codec], first: int) -> None:
    magic, codec = form
    records = numbered(contents, magic, first)
    assert (
        read_message_set(build_message_set(records, magic, codec=codec), max_bytes=LIMIT) == records
    )


@settings(max_examples=100, deadline=None)
@given(CONTENTS, FORMATS, st.integers(0, 2**40))
def test_other_clients_read_our_sets(contents: Any, form: tuple[int, Codec], first: int) -> None:
    magic, codec = form
    records = numbered(contents, magic, first)
    data = build_message_set(records, magic, codec=codec)
    if readable_by_peers(magic, codec):
        assert peer_read(AiokafkaRecords, data) == records
        if codec is not Codec.SNAPPY:
            assert peer_read(KafkaPythonRecords, data) == records


@settings(max_examples=100, deadline=None)
@given(CONTENTS, FORMATS)
def test_other_clients_sets_are_read(contents: Any, form: tuple[int, Codec]) -> None:
    magic, codec = form
    records = numbered(contents, magic, 0)
    if not readable_by_peers(magic, codec):
        return
    for builder in (
        [AiokafkaBuilder] if codec is Codec.SNAPPY else [AiokafkaBuilder, KafkaPythonBuilder]
    ):
        peer = builder(magic, int(codec), LIMIT)
        for record in records:
            assert peer.append(
                record.offset, record.timestamp if magic else None, record.key, record.value
            )
        assert read_message_set(bytes(peer.build()), max_bytes=LIMIT) == records


@pytest.mark.parametrize("magic", [0, 1])
def test_uncompressed_sets_have_the_same_bytes_as_aiokafkas(magic: int) -> None:
    records = numbered([(0, b"k", b"v"), (5, None, b"w"), (6, b"", None)], magic, 0)
    peer = AiokafkaBuilder(magic, 0, LIMIT)
    for record in records:
        peer.append(record.offset, record.timestamp if magic else None, record.key, record.value)
    assert build_message_set(records, magic) == bytes(peer.build())


def test_known_message_of_magic_0() -> None:
    body = b"\0\0" + struct.pack(">i", 1) + b"k" + struct.pack(">i", 2) + b"vv"
    message = struct.pack(">qiI", 9, 4 + len(body), zlib.crc32(body)) + body
    assert build_message_set([Record(9, T0, b"k", b"vv")], 0) == message


def test_lz4_wrapper_of_magic_0_has_the_checksum_old_clients_expect() -> None:
    (wrapper,) = parse_messages(
        build_message_set([Record(0, -1, None, b"v" * 500)], 0, codec=Codec.LZ4)
    )
    assert wrapper.value is not None
    assert wrapper.value[:7].hex() == "04224d1860401a"


def test_a_set_may_end_inside_a_message() -> None:
    data = build_message_set(numbered([(0, b"k", b"v"), (1, b"k", b"w")], 1, 7), 1)
    for cut in (1, 12, 20, 33):
        assert [r.offset for r in read_message_set(data[:-cut], max_bytes=0)] == [7]
    assert read_message_set(data[:11], max_bytes=0) == []
    assert read_message_set(b"", max_bytes=0) == []


# ---------------------------------------------------------------- wrappers


def wrap(
    inner: bytes,
    magic: int = 1,
    codec: int = Codec.GZIP,
    offset: int = 0,
    *,
    flags: int = 0,
    time: int = T0,
) -> bytes:
    return legacy._encode(
        offset, magic, codec | flags, time, None, compress(codec, inner, magic=magic)
    )


def test_inner_offsets_of_magic_1_are_relative_and_the_wrapper_has_the_last() -> None:
    records = [
        Record(100, T0, b"a", b"1"),
        Record(103, T0 + 9, b"b", b"2"),
    ]  # a gap, as compaction leaves
    data = build_message_set(records, 1, codec=Codec.GZIP)
    (wrapper,) = parse_messages(data)
    assert (wrapper.offset, wrapper.timestamp, wrapper.key) == (103, T0 + 9, None)
    assert read_message_set(data, max_bytes=LIMIT) == records


def test_inner_offsets_of_magic_0_are_absolute() -> None:
    inner = build_message_set([Record(50, -1, b"a", b"1"), Record(51, -1, b"b", b"2")], 0)
    assert [r.offset for r in read_message_set(wrap(inner, 0, offset=51), max_bytes=LIMIT)] == [
        50,
        51,
    ]
    assert [r.offset for r in read_message_set(wrap(inner, 0, offset=0), max_bytes=LIMIT)] == [
        50,
        51,
    ]


def test_wrapper_offset_0_of_some_librdkafka_versions() -> None:
    inner = build_message_set([Record(0, T0, b"a", b"1"), Record(1, T0, b"b", b"2")], 1)
    assert [r.offset for r in read_message_set(wrap(inner, offset=0), max_bytes=LIMIT)] == [0, 1]
    assert [r.offset for r in read_message_set(wrap(inner, offset=41), max_bytes=LIMIT)] == [40, 41]


def test_wrapper_offset_below_the_last_inside_is_refused() -> None:
    inner = build_message_set([Record(5, T0, b"a", b"1")], 1)
    with pytest.raises(CorruptBatch, match="offset 3"):
        read_message_set(wrap(inner, offset=3), max_bytes=LIMIT)


def test_append_time_of_the_wrapper_counts_for_all_inside() -> None:
    records = [Record(0, T0 - 50, b"a", b"1"), Record(1, T0 - 20, b"b", b"2")]
    data = wrap(build_message_set(records, 1), offset=1, flags=0x08)
    assert [r.timestamp for r in read_message_set(data, max_bytes=LIMIT)] == [T0, T0]
    assert [r.timestamp for r in peer_read(AiokafkaRecords, data)] == [T0, T0]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
def test_building_with_append_time(codec: Codec) -> None:
    data = build_message_set(
        [Record(3, 1, b"a", b"1"), Record(4, 2, b"b", b"2")], 1, codec=codec, append_time=T0
    )
    assert all(message.log_append_time for message in parse_messages(data))
    assert read_message_set(data, max_bytes=LIMIT) == [
        Record(3, T0, b"a", b"1"),
        Record(4, T0, b"b", b"2"),
    ]


def test_compressed_message_without_value_is_refused() -> None:
    with pytest.raises(CorruptBatch, match="without a value"):
        read_message_set(legacy._encode(0, 1, Codec.GZIP, T0, b"k", None), max_bytes=LIMIT)


def test_empty_compressed_message_is_rejected() -> None:
    with pytest.raises(CorruptBatch, match="empty"):
        read_message_set(wrap(b""), max_bytes=LIMIT)


def test_nested_compression_is_refused() -> None:
    inner = wrap(build_message_set([Record(0, T0, None, b"v")], 1))
    with pytest.raises(CorruptBatch, match="inside"):
        read_message_set(wrap(inner), max_bytes=LIMIT)


def test_zstd_is_refused_in_both_directions() -> None:
    with pytest.raises(CorruptBatch, match="zstd"):
        read_message_set(wrap(b"x", codec=Codec.ZSTD), max_bytes=LIMIT)
    with pytest.raises(ValueError, match="zstd"):
        build_message_set([Record(0, T0, None, b"v")], 1, codec=Codec.ZSTD)


def test_wrappers_are_bounded() -> None:
    data = build_message_set([Record(0, T0, None, bytes(200_000))], 1, codec=Codec.GZIP)
    with pytest.raises(DecompressedTooLarge):
        read_message_set(data, max_bytes=100_000)


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("magic", [0, 1])
def test_wrong_checksums_outside_and_inside(magic: int) -> None:
    message = bytearray(build_message_set([Record(0, T0, b"key", b"value")], magic))
    message[-1] ^= 1
    with pytest.raises(CorruptMessage, match="CRC"):
        read_message_set(message, max_bytes=LIMIT)
    with pytest.raises(CorruptMessage, match="CRC"):
        read_message_set(wrap(bytes(message), magic), max_bytes=LIMIT)


@pytest.mark.parametrize("size", [-1, 0, 13])
def test_sizes_below_the_smallest_message(size: int) -> None:
    with pytest.raises(CorruptMessage):
        list(parse_messages(struct.pack(">qi", 0, size) + bytes(30)))


@pytest.mark.parametrize("magic", [-1, 2, 3])
def test_other_magic_is_corrupt(magic: int) -> None:
    body = struct.pack(">bbii", magic, 0, -1, -1)
    with pytest.raises(CorruptMessage, match="magic"):
        list(parse_messages(struct.pack(">qiI", 0, 4 + len(body), zlib.crc32(body)) + body))


@pytest.mark.parametrize(
    ("key_size", "value_size"), [(100, -1), (2**31 - 1, -1), (-1, 100), (-1, 2**31 - 1), (1, 0)]
)
def test_lying_key_and_value_sizes(key_size: int, value_size: int) -> None:
    body = struct.pack(">bbii", 0, 0, key_size, value_size)
    with pytest.raises(CorruptMessage):
        list(parse_messages(struct.pack(">qiI", 0, 4 + len(body), zlib.crc32(body)) + body))


@settings(max_examples=300, deadline=None)
@given(
    CONTENTS,
    FORMATS,
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=5),
    st.booleans(),
)
def test_random_damage_gives_records_or_corrupt_batch(
    contents: Any, form: tuple[int, Codec], damage: list[tuple[int, int]], sealed: bool
) -> None:
    data = bytearray(build_message_set(numbered(contents, form[0], 0), form[0], codec=form[1]))
    for position, byte in damage:
        data[position % len(data)] = byte
    if sealed and len(data) > 16:
        size = max(struct.unpack_from(">i", data, 8)[0], 0)
        struct.pack_into(">I", data, 12, zlib.crc32(data[16 : 12 + size]))
    try:
        read_message_set(bytes(data), max_bytes=LIMIT)
    except CorruptBatch:
        pass
