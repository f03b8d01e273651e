"""The arithmetic of the capacity planner: how much disk, how many brokers. Exactly, and as one does it on the back of an envelope.

Both ways are of use: the exact one to compare plans, the rounded one because nobody buys 2.31 TB. The rounded one rounds on the way as a
person would: the disk of the whole retention to a whole terabyte, the share of a broker's network up to tens of megabits, the demand up
to hundreds, and the number of brokers before it is multiplied by the copies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12


@dataclass(frozen=True)
class Disk:
    """What is to be kept. ``overhead`` is what indexes and other files add, ``compression`` what is left of a byte."""

    messages_per_day: float = 100_000_000
    message_bytes: float = 1 * KB
    replicas: int = 2
    retention_days: float = 14
    overhead: float = 0.10
    compression: float = 0.75

    @property
    def per_day(self) -> float:
        return self.messages_per_day * self.message_bytes * self.replicas

    @property
    def per_day_with_overhead(self) -> float:
        return self.per_day * (1 + self.overhead)

    @property
    def kept(self) -> float:
        return self.per_day_with_overhead * self.retention_days

    @property
    def exact(self) -> float:
        return self.kept * self.compression

    @property
    def rounded_kept(self) -> float:
        return round(self.kept / TB) * TB if self.kept >= TB else self.kept

    @property
    def rounded(self) -> float:
        return self.rounded_kept * self.compression


@dataclass(frozen=True)
class Network:
    """What is to pass. Kafka may use ``usable`` of a broker's network; ``reserve`` of that is kept for peaks."""

    bytes_per_hour: float = 1 * TB
    nic_bits_per_s: float = 1e9
    usable: float = 0.70
    reserve: float = 2 / 3
    copies: int = 3

    @property
    def share(self) -> float:
        """Bits a second that one broker gives in ordinary times."""
        return self.nic_bits_per_s * self.usable * (1 - self.reserve)

    @property
    def demand(self) -> float:
        """Bits a second."""
        return self.bytes_per_hour * 8 / 3600

    @property
    def exact(self) -> int:
        return _at_least(self.demand / self.share)

    @property
    def exact_with_copies(self) -> int:
        return _at_least(self.demand * self.copies / self.share)

    @property
    def rounded_share(self) -> float:
        return _up(self.share, 10 * MB)

    @property
    def rounded_demand(self) -> float:
        return _up(math.floor(self.bytes_per_hour / 3600 / MB) * MB * 8, 100 * MB)

    @property
    def rounded(self) -> int:
        return _at_least(self.rounded_demand / self.rounded_share)

    @property
    def rounded_with_copies(self) -> int:
        return self.rounded * self.copies


def _up(value: float, step: float) -> float:
    return math.ceil(round(value / step, 9)) * step


def _at_least(brokers: float) -> int:
    return max(1, math.ceil(round(brokers, 9)))
