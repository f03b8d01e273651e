"""The transaction index of a segment: the aborted transactions whose marker lies in it.

An entry is 34 bytes, big-endian: version 0, producer id, first offset, last offset (of the marker),
and the last stable offset when the marker was written. The latter tells a search when it may stop.
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
    """Parse a file, without a torn last entry. Raises ValueError for another version."""
    for version, _entry in _rows(data):
        if version != _VERSION:
            raise ValueError(f"an aborted transaction of unknown version {version}")
    return [entry for _version, entry in _rows(data)]


def valid_entries(data: bytes) -> list[AbortedTransaction]:
    """Return the entries that are plausible; a power cut may leave zeros in place of others."""
    return [entry for version, entry in _rows(data) if _fault(version, entry) is None]


def fault(data: bytes) -> str | None:
    """Return why the data cannot be an index, or None. A torn last entry is not a fault."""
    return next(
        (fault for version, entry in _rows(data) if (fault := _fault(version, entry))), None
    )


def _rows(data: bytes) -> Iterator[tuple[int, AbortedTransaction]]:
    for version, *rest in _ENTRY.iter_unpack(data[: len(data) - len(data) % ENTRY_SIZE]):
        yield version, AbortedTransaction(*rest)


def _fault(version: int, entry: AbortedTransaction) -> str | None:
    if version != _VERSION:
        return f"an aborted transaction of unknown version {version}"
    if entry.producer_id < 0 or not 0 <= entry.first_offset < entry.last_offset:
        return f"an invalid aborted transaction: {entry}"
    return None


def encode(entries: Iterable[AbortedTransaction]) -> bytes:
    return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries)


def search(
    entries: Iterable[AbortedTransaction], first_offset: int, end_offset: int
) -> tuple[list[AbortedTransaction], bool]:
    """Return the transactions that overlap a range, and whether later segments can be skipped."""
    matches = []
    for entry in entries:
        if entry.last_offset >= first_offset and entry.first_offset < end_offset:
            matches.append(entry)
        if entry.last_stable_offset >= end_offset:
            return matches, True
    return matches, False
