"""Compression codecs of record batches, with a bound on what decompression may produce."""

from __future__ import annotations

from enum import IntEnum

from millstream.wire.corrupt import UnknownCodec


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: int, data: bytes, level: int | None = None) -> bytes:
    if codec == Codec.NONE:
        return data
    raise UnknownCodec(f"unknown compression codec {codec}")


def decompress(codec: int, data: bytes | bytearray | memoryview, *, max_bytes: int, magic: int = 2) -> bytes:
    if codec == Codec.NONE:
        return bytes(data)
    raise UnknownCodec(f"unknown compression codec {codec}")
