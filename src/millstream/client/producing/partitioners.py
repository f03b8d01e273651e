"""Which partition a record goes to, when it does not say: by name, or by a function of one's own.

``key``          the same key, the same partition (murmur2, as the Java client); without a key, sticky. The default.
``round-robin``  one partition after the other, whatever the key.
``random``       any, whatever the key.
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

# Keys go where the Java client sends them; librdkafka's own default (CRC-32) would split a key.
BY_KEY = "murmur2_random"
STICKY_BYTES = 16_384  # what KIP-794 lets go to one partition: a batch


def find_partitioner(given: PartitionerName | Partitioner) -> Partitioner | None:
    """The function that is meant; None for ``key``, which librdkafka does itself."""
    if callable(given):
        return given
    if given == "key":
        return None
    if given not in _NAMED:
        raise ClientError(
            f"there is no partitioner {given!r}", hint=f"there are key, {', '.join(_NAMED)}, and functions"
        )
    return _NAMED[given]()


def checked_partition(found: object, topic: str, partitions: int) -> int:
    """What a partitioner returned; ClientError where that is no partition: the library would take
    -1 for any, silently.
    """
    try:
        number = operator.index(found)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if not 0 <= number < partitions or isinstance(found, bool):
        raise ClientError(
            f"the partitioner returned {found!r} for a record for {topic!r}, which has {partitions} partitions",
            hint=f"it has to return a number from 0 to {partitions - 1}",
        )
    return number


class RoundRobin:
    """Each topic has a turn of its own."""

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
    """Another partition when about a batch has gone to the last."""

    def __init__(self) -> None:
        self._now: dict[str, tuple[int, int]] = {}

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        at, sent = self._now.get(topic, (-1, STICKY_BYTES))
        if sent >= STICKY_BYTES or at >= partitions:
            at, sent = _another(at, partitions), 0
        self._now[topic] = at, sent + len(key or b"") + len(value or b"")
        return at


def _another(last: int, partitions: int) -> int:
    if partitions == 1 or not 0 <= last < partitions:
        return random.randrange(partitions)
    return (last + 1 + random.randrange(partitions - 1)) % partitions


_NAMED: dict[str, Callable[[], Partitioner]] = {"round-robin": RoundRobin, "random": Random, "sticky": Sticky}


def murmur2(data: bytes) -> int:
    """Kafka's hash of a key, for who wants to know where a key goes: ``murmur2(key) % partitions``;
    never negative.
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
