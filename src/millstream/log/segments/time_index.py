"""The time index of a segment: the largest timestamp so far, and the offset of its batch.

An entry is twelve bytes, big-endian: timestamp, offset relative to the segment's base. Entries
increase in both columns. The bytes are kept as they are on disk: lookups by time are rare, and
retention needs only the last entry.
"""

from __future__ import annotations

import struct
from typing import Final

ENTRY_SIZE: Final = 12
_ENTRY: Final = struct.Struct(">qI")
_NONE: Final = -1


class TimeIndex:
    """Entries in increasing order.

    `written` of them are on disk; -1 if the file has other contents.
    """

    __slots__ = ("base_offset", "data", "last_timestamp", "written")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.data = bytearray()
        self.last_timestamp = _NONE
        self.written = 0

    @classmethod
    def parse(cls, data: bytes, base_offset: int) -> TimeIndex:
        """Parse the contents of a file, without a torn last entry."""
        index = cls(base_offset)
        index.data = bytearray(data[: len(data) - len(data) % ENTRY_SIZE])
        index.written = len(index)
        index.last_timestamp = index.last[0]
        return index

    def __len__(self) -> int:
        return len(self.data) // ENTRY_SIZE

    def entry(self, slot: int) -> tuple[int, int]:
        """Return (timestamp, offset) of an entry."""
        timestamp, relative = _ENTRY.unpack_from(self.data, slot * ENTRY_SIZE)
        return timestamp, self.base_offset + relative

    @property
    def last(self) -> tuple[int, int]:
        return self.entry(len(self) - 1) if self.data else (_NONE, self.base_offset)

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Append an entry if the timestamp is larger than all before."""
        if timestamp > self.last_timestamp:
            self.data += _ENTRY.pack(timestamp, offset - self.base_offset)
            self.last_timestamp = timestamp

    def offset_of(self, timestamp: int) -> int:
        """Return the offset where a search for the timestamp starts.

        At or before its first record.
        """
        slot = self._count_below(timestamp + 1, column=0)
        return self.entry(slot - 1)[1] if slot else self.base_offset

    def truncate(self, offset: int) -> None:
        """Drop the entries at or after an offset."""
        keep = self._count_below(offset, column=1)
        del self.data[keep * ENTRY_SIZE :]
        self.written = min(self.written, keep)
        self.last_timestamp = self.last[0]

    def _count_below(self, bound: int, column: int) -> int:
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[column] < bound:
                low = middle + 1
            else:
                high = middle
        return low

    def fault(self) -> str | None:
        """Return why the index cannot be right, or None. Checks only its end."""
        if len(self) > 1:
            (before, offset_before), (last, offset) = self.entry(len(self) - 2), self.last
            if last < before or offset < offset_before:
                return "its last entries do not increase"
        return None

    def encode(self, first: int = 0) -> bytes:
        """Return the entries from number `first` on, as they are on disk."""
        return bytes(self.data[first * ENTRY_SIZE :])


def last_entry(data: bytes, base_offset: int) -> tuple[int, int]:
    """Return (timestamp, offset) from the last bytes of a file; (-1, base) if it is empty."""
    if len(data) < ENTRY_SIZE:
        return _NONE, base_offset
    timestamp, relative = _ENTRY.unpack_from(data, len(data) - ENTRY_SIZE)
    return timestamp, base_offset + relative
