"""Java's String.hashCode, which selects the internal partition of a group or transaction."""

from __future__ import annotations

from functools import lru_cache

# Active groups and transactions recur.
_CACHE_SIZE = 10_000


def java_hash(text: str) -> int:
    """Return the hash as a signed 32-bit number, over UTF-16 code units."""
    value = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(raw), 2):
        value = (31 * value + (raw[index] << 8 | raw[index + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


@lru_cache(_CACHE_SIZE)
def partition_of(key: str, partitions: int) -> int:
    """Return abs(hashCode) mod n; the minimum, which has no absolute value, counts as 0."""
    value = java_hash(key)
    return (0 if value == -(1 << 31) else abs(value)) % partitions
