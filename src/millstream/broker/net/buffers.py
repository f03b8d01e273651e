"""Shared receive buffers: a connection holds one only while it has part of a request.

A thousand idle connections therefore cost nothing, and a large request does not leave its buffer
behind. Large buffers are anonymous memory maps: a page takes memory only when data arrives in it.
"""

from __future__ import annotations

import mmap

SMALL = 64 * 1024
_MAPPED = 512 * 1024
_KEEP_BYTES = 16 * 1024 * 1024

Buffer = bytearray | mmap.mmap


def copy_of(data: memoryview) -> memoryview:
    """Return a writable copy of a part of a buffer.

    The memory of a large copy returns to the system as soon as it is released. The allocator would
    keep hundreds of megabytes after a burst.
    """
    if len(data) < _MAPPED:
        return memoryview(bytearray(data))
    copy = memoryview(mmap.mmap(-1, len(data)))
    copy[:] = data
    return copy


class BufferPool:
    """Buffers of SMALL bytes or a larger power of two. The most recent one is reused first."""

    def __init__(self) -> None:
        self._free: dict[int, list[Buffer]] = {}
        self._kept = 0

    def take(self, size: int) -> Buffer:
        capacity = SMALL if size <= SMALL else 1 << (size - 1).bit_length()
        return self.spare(capacity) or (
            bytearray(capacity) if capacity < _MAPPED else mmap.mmap(-1, capacity)
        )

    def spare(self, capacity: int) -> Buffer | None:
        """Return a free buffer of exactly this capacity, or None."""
        stack = self._free.get(capacity)
        if not stack:
            return None
        self._kept -= capacity
        return stack.pop()

    def give(self, buffer: Buffer) -> None:
        capacity = len(buffer)
        if self._kept + capacity <= _KEEP_BYTES:
            self._kept += capacity
            self._free.setdefault(capacity, []).append(buffer)
