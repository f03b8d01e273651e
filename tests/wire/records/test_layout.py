"""The layout of a record batch: positions of fields agree with the struct of the whole header."""

from __future__ import annotations

import struct

import pytest

from millstream.wire.records import layout
from millstream.wire.records.batch import BatchHeader, Record, build_batch, parse_header
from millstream.wire.records.compression import Codec

FIELDS = {
    "length": (layout.LENGTH_AT, ">i"),
    "leader_epoch": (layout.LEADER_EPOCH_AT, ">i"),
    "magic": (layout.MAGIC_AT, ">b"),
    "crc": (layout.CRC_AT, ">I"),
    "attributes": (layout.ATTRIBUTES_AT, ">h"),
    "last_offset_delta": (layout.LAST_OFFSET_DELTA_AT, ">i"),
    "base_timestamp": (layout.BASE_TIMESTAMP_AT, ">q"),
    "max_timestamp": (layout.MAX_TIMESTAMP_AT, ">q"),
    "producer_id": (layout.PRODUCER_ID_AT, ">q"),
    "producer_epoch": (layout.PRODUCER_EPOCH_AT, ">h"),
    "base_sequence": (layout.BASE_SEQUENCE_AT, ">i"),
    "count": (layout.COUNT_AT, ">i"),
}
VALUES = BatchHeader(1 << 40, 61, 7, 2, 0xDEADBEEF, 0x35, 11, 1 << 41, 1 << 42, 1 << 43, 9, 13, 12)


def test_table_lists_every_header_field_but_the_base_offset() -> None:
    assert ["base_offset", *FIELDS] == list(BatchHeader._fields)


@pytest.mark.parametrize("name", FIELDS)
def test_position_of_each_field_agrees_with_the_header_struct(name: str) -> None:
    position, form = FIELDS[name]
    assert struct.unpack_from(form, layout.HEADER.pack(*VALUES), position)[0] == getattr(
        VALUES, name
    )


def test_header_ends_where_the_records_begin() -> None:
    assert layout.HEADER.size == layout.HEADER_SIZE == layout.COUNT_AT + 4 == 61
    assert layout.LENGTH_AT + 4 == layout.LOG_OVERHEAD == layout.LEADER_EPOCH_AT


def test_producer_struct_covers_id_epoch_and_sequence() -> None:
    packed = layout.HEADER.pack(*VALUES)
    assert layout.PRODUCER.unpack_from(packed, layout.PRODUCER_ID_AT) == VALUES[9:12]


def test_flags_byte_holds_all_known_attribute_bits() -> None:
    batch = build_batch(
        [Record(0, 1, None, b"v")],
        codec=Codec.LZ4,
        timestamp_type=1,
        transactional=True,
        control=True,
    )
    expected = Codec.LZ4 | layout.LOG_APPEND_TIME | layout.TRANSACTIONAL | layout.CONTROL
    assert batch[layout.ATTRIBUTES_AT] == 0
    assert batch[layout.FLAGS_AT] == expected == parse_header(batch).attributes
    assert batch[layout.FLAGS_AT] & layout.CODEC_MASK == Codec.LZ4
    bits = (
        layout.CODEC_MASK,
        layout.LOG_APPEND_TIME,
        layout.TRANSACTIONAL,
        layout.CONTROL,
        layout.DELETE_HORIZON,
    )
    assert sum(bits) == layout.KNOWN_BITS
