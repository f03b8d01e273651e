"""The memory of the cleaner: the last offset of every key of the dirty section.

Its size is bounded by log.cleaner.dedupe.buffer.size, at 24 bytes per key as in Kafka. While there
are few keys they are in a dict, which costs about 200 bytes each but is ten times as fast. When the
dict has used up the buffer, it is converted to packed buckets of 16 bytes of MD5 and 8 of offset.
Two keys with the same MD5 would count as one, as in Kafka: that is less likely than a memory fault.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Final

from millstream.wire.records.payload import KeyColumns

try:
    from _md5 import md5  # type: ignore[import-not-found]  # faster than OpenSSL's for short keys
except ImportError:

    def md5(data: bytes = b"") -> hashlib._Hash:
        return hashlib.md5(data, usedforsecurity=False)


ENTRY_BYTES: Final = 24
_DIGEST_BYTES: Final = 16
_DICT_ENTRY_BYTES: Final = 190  # slot, key object and offset object, without the bytes of the key
_KEYS_PER_BUCKET: Final = 64
_pack_offset = struct.Struct(">q").pack


class OffsetMapTooSmall(ValueError):
    """The buffer cannot hold a single key, so cleaning would never progress."""


class OffsetMap:
    """Keys and their latest offsets; `latest_offset` is the last offset that the map has seen."""

    def __init__(self, memory_bytes: int, load_factor: float) -> None:
        self.capacity = int(memory_bytes // ENTRY_BYTES * load_factor)
        if self.capacity < 1:
            raise OffsetMapTooSmall(
                f"log.cleaner.dedupe.buffer.size {memory_bytes} is too small for even one key; raise it"
            )
        self.latest_offset = -1
        self._memory_bytes = memory_bytes
        self._dict: dict[bytes, int] = {}
        self._dict_bytes = 0
        self._packed: _PackedMap | None = None

    def __len__(self) -> int:
        return len(self._dict) if self._packed is None else self._packed.count

    @property
    def packed(self) -> bool:
        return self._packed is not None

    @property
    def get(self) -> Callable[[bytes, int], int]:
        """The lookup `get(key, default)`. Get it once per batch."""
        return self._dict.get if self._packed is None else self._packed.get

    def add(self, offsets: Sequence[int], keys: Sequence[bytes | None]) -> bool:
        """Add the keys of a batch. Return False if the map is full.

        Then `latest_offset` is that of the last key added, and the rest of the log waits for the
        next round.
        """
        if len(self) + len(keys) > self.capacity:
            return self._add_until_full(offsets, keys)
        if self._packed is None:
            self._add_to_dict(offsets, keys)
        else:
            self._packed.put_all(offsets, keys)
        return True

    def _add_to_dict(self, offsets: Sequence[int], keys: Sequence[bytes | None]) -> None:
        latest, before = self._dict, len(self._dict)
        latest.update(zip(keys, offsets, strict=True))  # type: ignore[arg-type]  # None goes below
        latest.pop(None, None)  # type: ignore[call-overload]
        added = len(latest) - before
        if added:
            key_bytes = sum(len(key) for key in keys if key is not None) // len(keys)
            self._dict_bytes += added * (_DICT_ENTRY_BYTES + key_bytes)
            if self._dict_bytes > self._memory_bytes:
                self._pack()

    def _pack(self) -> None:
        self._packed = _PackedMap(self.capacity)
        while self._dict:
            self._packed.put(*self._dict.popitem())
        self._dict = {}

    def _add_until_full(self, offsets: Sequence[int], keys: Sequence[bytes | None]) -> bool:
        for offset, key in zip(offsets, keys, strict=True):
            if key is None:
                continue
            if len(self) >= self.capacity:
                return False
            if self._packed is None:
                self._add_to_dict((offset,), (key,))
            else:
                self._packed.put(key, offset)
            self.latest_offset = offset
        return True

    def survivors(self) -> array[int] | None:
        """Return the offsets in the map, in order; None if it is packed, to save memory."""
        return array("q", sorted(self._dict.values())) if self._packed is None else None


def from_offset(first_offset: int, columns: KeyColumns) -> KeyColumns:
    """Return the part of a batch at or above an offset."""
    offsets, keys, inside = columns
    later = [index for index, offset in enumerate(offsets) if offset >= first_offset]
    return KeyColumns([offsets[index] for index in later], [keys[index] for index in later], inside)


class _PackedMap:
    """Buckets of adjacent entries. A search within a bucket is a search for bytes, in C."""

    def __init__(self, capacity: int) -> None:
        bits = min(24, max(0, (capacity // _KEYS_PER_BUCKET).bit_length()))
        self.count = 0
        self._mask = (1 << bits) - 1
        self._buckets = [bytearray() for _ in range(1 << bits)]

    def put(self, key: bytes, offset: int) -> None:
        digest = md5(key).digest()
        bucket = self._buckets[(digest[0] << 16 | digest[1] << 8 | digest[2]) & self._mask]
        at = _find(bucket, digest)
        if at < 0:
            bucket += digest + _pack_offset(offset)
            self.count += 1
        else:
            bucket[at + _DIGEST_BYTES : at + ENTRY_BYTES] = _pack_offset(offset)

    def put_all(self, offsets: Sequence[int], keys: Sequence[bytes | None]) -> None:
        for offset, key in zip(offsets, keys, strict=True):
            if key is not None:
                self.put(key, offset)

    def get(self, key: bytes, default: int) -> int:
        digest = md5(key).digest()
        bucket = self._buckets[(digest[0] << 16 | digest[1] << 8 | digest[2]) & self._mask]
        at = _find(bucket, digest)
        return (
            default
            if at < 0
            else int.from_bytes(bucket[at + _DIGEST_BYTES : at + ENTRY_BYTES], "big")
        )


def _find(bucket: bytearray, digest: bytes) -> int:
    at = bucket.find(digest)
    while at > 0 and at % ENTRY_BYTES:  # the bytes occur across two entries
        at = bucket.find(digest, at + 1)
    return at
