"""The offset index of a segment: every few kilobytes, the last offset and position of a batch.

On disk an entry is eight bytes, big-endian: offset relative to the segment's base, position. In
memory the two columns are arrays, so that a lookup is one bisect in C.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import Final

ENTRY_SIZE: Final = 8
_SWAP: Final = sys.byteorder == "little"


class OffsetIndex:
    """Entries in increasing order of both columns.

    `written` of them are on disk; -1 if the file has other contents.
    """

    __slots__ = ("base_offset", "offsets", "positions", "written")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.offsets = array("I")
        self.positions = array("I")
        self.written = 0

    @classmethod
    def parse(cls, data: bytes, base_offset: int) -> OffsetIndex:
        """Parse the contents of a file, without a torn last entry."""
        index = cls(base_offset)
        columns = array("I", data[: len(data) - len(data) % ENTRY_SIZE])
        if _SWAP:
            columns.byteswap()
        index.offsets = columns[0::2]
        index.positions = columns[1::2]
        index.written = len(index.offsets)
        return index

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def last_offset(self) -> int:
        return self.base_offset + (self.offsets[-1] if self.offsets else 0)

    def append(self, offset: int, position: int) -> None:
        # The position first: a reader in another thread looks at the offsets, then at the position.
        self.positions.append(position)
        self.offsets.append(offset - self.base_offset)

    def position_of(self, offset: int) -> int:
        """Return the position where a search for the offset starts: at or before its batch."""
        slot = (
            bisect_right(self.offsets, offset - self.base_offset)
            if offset >= self.base_offset
            else 0
        )
        return self.positions[slot - 1] if slot else 0

    def position_floor(self, position: int) -> int:
        """Return the last known start of a batch at or before a position of the file."""
        slot = bisect_right(self.positions, position)
        return self.positions[slot - 1] if slot else 0

    def truncate(self, offset: int) -> None:
        """Drop the entries of batches that hold the offset or come after it."""
        keep = (
            bisect_left(self.offsets, offset - self.base_offset)
            if offset >= self.base_offset
            else 0
        )
        del self.offsets[keep:], self.positions[keep:]
        self.written = min(self.written, keep)

    def encode(self, first: int = 0) -> bytes:
        """Return the entries from number `first` on, as they are on disk."""
        columns = array("I", bytes(ENTRY_SIZE * (len(self.offsets) - first)))
        columns[0::2] = self.offsets[first:]
        columns[1::2] = self.positions[first:]
        if _SWAP:
            columns.byteswap()
        return columns.tobytes()

    def fault(self, log_size: int) -> str | None:
        """Return why the index cannot belong to a log of this size, or None.

        Checks only its end.
        """
        if not self.offsets:
            return None
        if self.positions[-1] >= log_size:
            return f"its last position {self.positions[-1]} is beyond the log's {log_size} bytes"
        if len(self.offsets) > 1 and (
            self.offsets[-1] <= self.offsets[-2] or self.positions[-1] <= self.positions[-2]
        ):
            return "its last entries do not increase"
        return None

    def increases(self) -> bool:
        """Return whether both columns increase everywhere: a crash may have torn the index."""
        return all(
            len(set(column)) == len(column) and list(column) == sorted(column)
            for column in (self.offsets, self.positions)
        )
