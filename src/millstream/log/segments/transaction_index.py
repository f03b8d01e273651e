"""The transaction index of a segment: the aborted transactions whose marker lies in it.

An entry is 34 bytes, big-endian: version 0, producer id, first offset, last offset (the marker's), and the last
stable offset when the marker was written, which tells a search when it may stop.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

_ENTRY: Final = struct.Struct(">hqqqq")
ENTRY_SIZE: Final = _ENTRY.size
_VERSION: Final = 0


class AbortedTransaction(NamedTuple):
    """A transaction whose records a read_committed consumer must skip."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def parse(data: bytes) -> list[AbortedTransaction]:
    """All entries of a file; raises ValueError for another version. A torn last entry is left out."""
    for version, _entry in _rows(data):
        if version != _VERSION:
            raise ValueError(f"an aborted transaction of version {version}, where only 0 is known")
    return [entry for _version, entry in _rows(data)]


def sound(data: bytes) -> list[AbortedTransaction]:
    """The entries that can be true; a power cut may leave zeros in place of others."""
    return [entry for version, entry in _rows(data) if _fault(version, entry) is None]


def fault(data: bytes) -> str | None:
    """Why this cannot be the contents of an index, or None. A torn last entry is no fault."""
    return next((fault for version, entry in _rows(data) if (fault := _fault(version, entry))), None)


def _rows(data: bytes) -> Iterator[tuple[int, AbortedTransaction]]:
    for version, *rest in _ENTRY.iter_unpack(data[: len(data) - len(data) % ENTRY_SIZE]):
        yield version, AbortedTransaction(*rest)


def _fault(version: int, entry: AbortedTransaction) -> str | None:
    if version != _VERSION:
        return f"an aborted transaction of version {version}, where only {_VERSION} is known"
    if entry.producer_id < 0 or not 0 <= entry.first_offset < entry.last_offset:
        return f"an aborted transaction that cannot be: {entry}"
    return None


def encode(entries: Iterable[AbortedTransaction]) -> bytes:
    return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries)


def search(
    entries: Iterable[AbortedTransaction], first_offset: int, end_offset: int
) -> tuple[list[AbortedTransaction], bool]:
    """Those that touch the range, and whether later segments can be left out."""
    found = []
    for entry in entries:
        if entry.last_offset >= first_offset and entry.first_offset < end_offset:
            found.append(entry)
        if entry.last_stable_offset >= end_offset:
            return found, True
    return found, False
