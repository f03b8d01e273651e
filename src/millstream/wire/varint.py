"""Variable-length integers of the protocol.

Each byte has 7 bits, least significant first; the top bit marks that more bytes follow. Signed
integers are zigzag encoded (0, -1, 1, -2, ...). As in Kafka, a 32-bit varint has at most 5 bytes, a
64-bit varint at most 10, and bits beyond the width are dropped.

Readers take a buffer and a position, and return the value and the position after it. They raise
IndexError at the end of the buffer, and ValueError if the varint is too long.
"""

from __future__ import annotations

from typing import Final

Buffer = bytes | bytearray | memoryview

_MASK_32: Final = 0xFFFFFFFF
_MASK_64: Final = 0xFFFFFFFFFFFFFFFF
_SHIFTS_32: Final = range(0, 35, 7)
_SHIFTS_64: Final = range(0, 70, 7)
_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(128))


def read_unsigned_varint(buf: Buffer, pos: int) -> tuple[int, int]:
    first = buf[pos]
    if first < 128:
        return first, pos + 1
    second = buf[pos + 1]
    if second < 128:
        return first & 127 | second << 7, pos + 2
    third = buf[pos + 2]
    if third < 128:
        return first & 127 | (second & 127) << 7 | third << 14, pos + 3
    return _read_long(buf, pos, _SHIFTS_32, _MASK_32)


def read_unsigned_varlong(buf: Buffer, pos: int) -> tuple[int, int]:
    return _read_long(buf, pos, _SHIFTS_64, _MASK_64)


def _read_long(buf: Buffer, pos: int, shifts: range, mask: int) -> tuple[int, int]:
    value = 0
    for shift in shifts:
        byte = buf[pos]
        pos += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & mask, pos
    raise ValueError(f"a variable-length number is longer than {len(shifts)} bytes")


def read_varint(buf: Buffer, pos: int) -> tuple[int, int]:
    value, pos = read_unsigned_varint(buf, pos)
    return (value >> 1) ^ -(value & 1), pos


def read_varlong(buf: Buffer, pos: int) -> tuple[int, int]:
    value, pos = read_unsigned_varlong(buf, pos)
    return (value >> 1) ^ -(value & 1), pos


def encode_unsigned_varint(value: int) -> bytes:
    """Encode a non-negative value. The caller checks its width."""
    if value < 128:
        return _ONE_BYTE[value]
    if value < 16384:
        return (value & 127 | 128 | (value >> 7) << 8).to_bytes(2, "little")
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


# Indexed by the value itself: a negative index counts from the end, where negative values are.
_ONE_BYTE_ZIGZAG: Final = (*_ONE_BYTE[0:128:2], *_ONE_BYTE[127:0:-2])


def encode_varint(value: int) -> bytes:
    """Encode a 32-bit value as zigzag."""
    if -64 <= value < 64:
        return _ONE_BYTE_ZIGZAG[value]
    value = value << 1 if value >= 0 else ~(value << 1)
    if value < 16384:
        return (value & 127 | 128 | (value >> 7) << 8).to_bytes(2, "little")
    return encode_unsigned_varint(value)


def encode_varlong(value: int) -> bytes:
    """Encode a 64-bit value as zigzag. A larger value wraps around, as a long does in Java."""
    if -64 <= value < 64:
        return _ONE_BYTE_ZIGZAG[value]
    value = value << 1 if value >= 0 else ~(value << 1)
    if value < 16384:
        return (value & 127 | 128 | (value >> 7) << 8).to_bytes(2, "little")
    if value > _MASK_64:
        value = _wrapped_zigzag((value >> 1) ^ -(value & 1))
    return encode_unsigned_varint(value)


def _wrapped_zigzag(value: int) -> int:
    value = (value + (1 << 63)) % (1 << 64) - (1 << 63)
    return value << 1 if value >= 0 else ~(value << 1)


def size_of_unsigned_varint(value: int) -> int:
    return (value.bit_length() + 6) // 7 or 1


def size_of_varint(value: int) -> int:
    return size_of_unsigned_varint(value << 1 if value >= 0 else ~(value << 1))
