"""The partition of a record that does not name one: by a name, or by a function.

``key``          the same key, the same partition (murmur2, as in the Java client); sticky without a
                 key. The default.
``round-robin``  one partition after the other, whatever the key.
``random``       any partition, whatever the key.
``sticky``       one partition for a while, then another, whatever the key: the largest batches.

A function is called as ``function(topic, key, value, partitions)``, with bytes and the number of
partitions, and returns a number below that.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from typing import Literal

from millstream.client.errors import ClientError

Partitioner = Callable[[str, bytes | None, bytes | None, int], int]
PartitionerName = Literal["key", "round-robin", "random", "sticky"]

# Keys go where the Java client sends them. With librdkafka's default (CRC-32), records of one key
# would be in two partitions if both clients write.
BY_KEY = "murmur2_random"
# The bytes for one partition before the next, as in KIP-794: a batch.
STICKY_BYTES = 16_384


def find_partitioner(choice: PartitionerName | Partitioner) -> Partitioner | None:
    """Return the function; None for ``key``, which librdkafka implements."""
    if callable(choice):
        return choice
    if choice == "key":
        return None
    if choice not in _NAMED:
        raise ClientError(
            f"unknown partitioner {choice!r}",
            hint=f"choose key, {', '.join(_NAMED)}, or a function",
        )
    return _NAMED[choice]()


def checked_partition(result: object, topic: str, partitions: int) -> int:
    """Return the result of a partitioner; ClientError if it is not a partition.

    librdkafka would silently treat -1 as any partition.
    """
    try:
        number = operator.index(result)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if not 0 <= number < partitions or isinstance(result, bool):
        raise ClientError(
            f"the partitioner returned {result!r} for a record for {topic!r}, "
            f"which has {partitions} partitions",
            hint=f"it has to return a number from 0 to {partitions - 1}",
        )
    return number


class RoundRobin:
    """One partition after the other, separately for each topic."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        turn = self._turns.get(topic, random.randrange(partitions))
        self._turns[topic] = turn + 1
        return turn % partitions


class Random:
    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        return random.randrange(partitions)


class Sticky:
    """The same partition until about a batch has gone to it."""

    def __init__(self) -> None:
        self._current: dict[str, tuple[int, int]] = {}

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        partition, sent = self._current.get(topic, (-1, STICKY_BYTES))
        if sent >= STICKY_BYTES or partition >= partitions:
            partition, sent = _another(partition, partitions), 0
        self._current[topic] = partition, sent + len(key or b"") + len(value or b"")
        return partition


def _another(last: int, partitions: int) -> int:
    if partitions == 1 or not 0 <= last < partitions:
        return random.randrange(partitions)
    return (last + 1 + random.randrange(partitions - 1)) % partitions


_NAMED: dict[str, Callable[[], Partitioner]] = {
    "round-robin": RoundRobin,
    "random": Random,
    "sticky": Sticky,
}


def murmur2(data: bytes) -> int:
    """Return Kafka's hash of a key, which is never negative.

    The partition of a key is ``murmur2(key) % partitions``.
    """
    length = len(data)
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    hashed = (0x9747B28C ^ length) & mask
    for at in range(0, length - 3, 4):
        word = int.from_bytes(data[at : at + 4], "little") * multiplier & mask
        word ^= word >> 24
        hashed = hashed * multiplier & mask ^ word * multiplier & mask
    if rest := data[length & ~3 :]:
        hashed = (hashed ^ int.from_bytes(rest, "little")) * multiplier & mask
    hashed = (hashed ^ hashed >> 13) * multiplier & mask
    return (hashed ^ hashed >> 15) & 0x7FFFFFFF
