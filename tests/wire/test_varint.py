"""Varints: round trips, the edges of both widths, and agreement with aiokafka's
and kafka-python's.
"""

from __future__ import annotations

import pytest
from aiokafka.record.util import decode_varint as aiokafka_decode
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.util import encode_varint as kafka_python_encode

from millstream.wire.varint import (
    encode_unsigned_varint,
    encode_varint,
    encode_varlong,
    read_unsigned_varint,
    read_unsigned_varlong,
    read_varint,
    read_varlong,
    size_of_unsigned_varint,
    size_of_varint,
)

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (8191, "fe7f"),
        (-8192, "ff7f"),
        (8192, "808001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
    ],
)
def test_known_varints(value: int, encoded: str) -> None:
    assert encode_varint(value).hex() == encoded
    assert encode_varlong(value).hex() == encoded
    assert read_varint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


@settings(deadline=None)
@given(INT32)
def test_varint_round_trip_and_size(value: int) -> None:
    data = b"\xaa" + encode_varint(value)
    assert read_varint(data, 1) == (value, len(data))
    assert read_varint(memoryview(data), 1) == (value, len(data))
    assert size_of_varint(value) == len(data) - 1


@settings(deadline=None)
@given(INT64)
def test_varlong_round_trip_and_agreement_with_other_clients(value: int) -> None:
    data = encode_varlong(value)
    theirs = bytearray()
    kafka_python_encode(value, theirs.append)
    assert data == theirs
    assert read_varlong(data, 0) == (value, len(data)) == aiokafka_decode(bytearray(data), 0)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_unsigned_round_trip_and_size(value: int) -> None:
    data = encode_unsigned_varint(value)
    assert read_unsigned_varint(data, 0) == (value, len(data))
    assert size_of_unsigned_varint(value) == len(data)


def test_a_difference_beyond_64_bits_wraps_as_in_java() -> None:
    assert read_varlong(encode_varlong(2**64 - 1), 0)[0] == -1
    assert read_varlong(encode_varlong(2**63), 0)[0] == -(2**63)


def test_bits_beyond_the_width_are_dropped() -> None:
    assert read_unsigned_varint(b"\xff\xff\xff\xff\x7f", 0) == (2**32 - 1, 5)
    assert read_unsigned_varlong(b"\xff" * 9 + b"\x7f", 0) == (2**64 - 1, 10)


def test_too_long_is_a_value_error_and_too_short_an_index_error() -> None:
    with pytest.raises(ValueError, match="longer than 5 bytes"):
        read_varint(b"\x80" * 5 + b"\0", 0)
    with pytest.raises(ValueError, match="longer than 10 bytes"):
        read_varlong(b"\x80" * 10 + b"\0", 0)
    with pytest.raises(IndexError):
        read_varint(b"\x80", 0)
