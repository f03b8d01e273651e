"""The .snapshot files: the state of a partition's producers at an offset.

Kafka's version 1: int16 version, uint32 CRC-32C of the rest, int32 count, then 46 bytes per
producer. Only the last batch of each producer is kept, so after a restart the five-batch window of
duplicates grows from one again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from millstream.wire.records.checksum import crc32c

_VERSION: Final = 1
_HEAD: Final = struct.Struct(">hIi")
_ENTRY: Final = struct.Struct(">qhiqiqiq")
_BODY_AT: Final = 6


class SnapshotEntry(NamedTuple):
    """One producer, in the order of the file. Missing offsets and sequences are -1."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


class CorruptSnapshot(Exception):
    """A snapshot that cannot be trusted. An older one, or the log, replaces it."""


def encode(entries: Iterable[SnapshotEntry]) -> bytes:
    packed = [_ENTRY.pack(*entry) for entry in entries]
    body = struct.pack(">i", len(packed)) + b"".join(packed)
    return struct.pack(">hI", _VERSION, crc32c(body)) + body


def decode(data: bytes) -> list[SnapshotEntry]:
    if len(data) < _HEAD.size:
        raise CorruptSnapshot(f"{len(data)} bytes are too few for a snapshot")
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise CorruptSnapshot(f"version {version}, but only {_VERSION} is supported")
    if crc32c(memoryview(data)[_BODY_AT:]) != crc:
        raise CorruptSnapshot("its checksum is wrong")
    if count * _ENTRY.size != len(data) - _HEAD.size:
        raise CorruptSnapshot(f"{count} producers do not fill {len(data)} bytes")
    return [SnapshotEntry(*fields) for fields in _ENTRY.iter_unpack(data[_HEAD.size :])]
