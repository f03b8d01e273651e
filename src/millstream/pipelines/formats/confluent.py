"""The bytes that Confluent's serializers put in front of a value: a zero, and the number of the schema in its registry."""

from __future__ import annotations

import struct

from millstream.pipelines.formats.arrow import Unreadable

_HEADER = struct.Struct(">bI")


def skip_header(value: bytes) -> tuple[int, bytes]:
    """The number of the schema, and what follows."""
    if len(value) < _HEADER.size or value[0]:
        raise Unreadable(
            f"no Confluent header (0 and four bytes) before the value: {value[:5].hex(' ') or 'empty'}"
        )
    return _HEADER.unpack_from(value)[1], value[_HEADER.size :]


def skip_message_indexes(data: bytes) -> bytes:
    """Protobuf has a list of numbers more, which message of its file it is; usually one zero byte, for the first."""
    count, position = _varint(data, 0)
    for _ in range(count):
        _, position = _varint(data, position)
    return data[position:]


def with_header(schema_id: int, data: bytes, indexes: bytes = b"") -> bytes:
    return _HEADER.pack(0, schema_id) + indexes + data


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag number; those of a list of indexes are small."""
    value = shift = 0
    while True:
        if position >= len(data) or shift > 28:
            raise Unreadable("the list of message indexes after the Confluent header is broken")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value >> 1, position
