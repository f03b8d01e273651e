"""The header of Confluent's serializers: a zero byte, and the id of the schema in the registry."""

from __future__ import annotations

import struct

from millstream.pipelines.formats.arrow import Unreadable

_HEADER = struct.Struct(">bI")


def skip_header(value: bytes) -> tuple[int, bytes]:
    """Return the id of the schema, and the data after the header."""
    if len(value) < _HEADER.size or value[0]:
        raise Unreadable(
            f"no Confluent header (0 and four bytes) before the value: {value[:5].hex(' ') or 'empty'}"
        )
    return _HEADER.unpack_from(value)[1], value[_HEADER.size :]


def skip_message_indexes(data: bytes) -> bytes:
    """Skip Protobuf's indexes, which choose a message of the file; usually one zero byte."""
    count, position = _varint(data, 0)
    for _ in range(count):
        _, position = _varint(data, position)
    return data[position:]


def with_header(schema_id: int, data: bytes, indexes: bytes = b"") -> bytes:
    return _HEADER.pack(0, schema_id) + indexes + data


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a zigzag number and the position after it. Message indexes are small."""
    value = shift = 0
    while True:
        if position >= len(data) or shift > 28:
            raise Unreadable("the message indexes after the Confluent header are not valid")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value >> 1, position
