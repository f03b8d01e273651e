"""The arithmetic of the capacity planner: disk size and number of brokers, exact and rounded.

Exact results serve to compare plans. Rounded results serve for purchases, because 2.31 TB cannot be
bought. Rounding happens at each step, as on the back of an envelope: the disk for the whole
retention to a terabyte, a broker's share of the network up to tens of megabits, the demand up to
hundreds, and the number of brokers before it is multiplied by the copies. All values are fractions,
because a third of a network has no exact float.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12


@dataclass(frozen=True)
class Disk:
    """The data to store.

    ``overhead`` is the share that indexes and other files add, ``compression`` the compressed size
    of a byte.
    """

    messages_per_day: Fraction = Fraction(100_000_000)
    message_bytes: Fraction = Fraction(KB)
    replicas: int = 2
    retention_days: Fraction = Fraction(14)
    overhead: Fraction = Fraction(10, 100)
    compression: Fraction = Fraction(3, 4)

    @property
    def per_day(self) -> Fraction:
        return self.messages_per_day * self.message_bytes * self.replicas

    @property
    def per_day_with_overhead(self) -> Fraction:
        return self.per_day * (1 + self.overhead)

    @property
    def kept(self) -> Fraction:
        return self.per_day_with_overhead * self.retention_days

    @property
    def exact(self) -> Fraction:
        return self.kept * self.compression

    @property
    def rounded_kept(self) -> Fraction:
        return Fraction(round(self.kept / TB) * TB) if self.kept >= TB else self.kept

    @property
    def rounded(self) -> Fraction:
        return self.rounded_kept * self.compression


@dataclass(frozen=True)
class Network:
    """The traffic to handle.

    Kafka may use the share ``usable`` of a broker's network; the share ``reserve`` of that is kept
    for peaks.
    """

    bytes_per_hour: Fraction = Fraction(TB)
    nic_bits_per_s: Fraction = Fraction(10**9)
    usable: Fraction = Fraction(70, 100)
    reserve: Fraction = Fraction(2, 3)
    copies: int = 3

    @property
    def share(self) -> Fraction:
        """Bits per second that one broker handles outside peaks."""
        return self.nic_bits_per_s * self.usable * (1 - self.reserve)

    @property
    def demand(self) -> Fraction:
        """Traffic in bits per second."""
        return self.bytes_per_hour * 8 / 3600

    @property
    def exact(self) -> int:
        return _at_least(self.demand / self.share)

    @property
    def exact_with_copies(self) -> int:
        return _at_least(self.demand * self.copies / self.share)

    @property
    def rounded_share(self) -> Fraction:
        return _up(self.share, 10 * MB)

    @property
    def rounded_demand(self) -> Fraction:
        return _up(Fraction(math.floor(self.bytes_per_hour / 3600 / MB) * MB * 8), 100 * MB)

    @property
    def rounded(self) -> int:
        return _at_least(self.rounded_demand / self.rounded_share)

    @property
    def rounded_with_copies(self) -> int:
        return self.rounded * self.copies


def _up(value: Fraction, step: int) -> Fraction:
    return Fraction(math.ceil(value / step) * step)


def _at_least(brokers: Fraction) -> int:
    return max(1, math.ceil(brokers))
