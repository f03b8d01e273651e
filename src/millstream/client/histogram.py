"""A histogram of durations: constant memory, percentiles within one per cent, and two of them can
be added.

Buckets grow with the value: 128 of them between a power of two and the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_STEPS = 128
_SHIFT = 7


class Histogram:
    """Of whole numbers, microseconds for example; negative ones count as 0."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.lowest = 0
        self.highest = 0
        self._buckets: dict[int, int] = {}

    def add(self, value: int, times: int = 1) -> None:
        value = max(int(value), 0)
        bucket = _bucket(value)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + times
        self.lowest = value if not self.count else min(self.lowest, value)
        self.highest = max(self.highest, value)
        self.count += times
        self.total += value * times

    def merge(self, other: Histogram) -> None:
        if not other.count:
            return
        for bucket, times in other._buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + times
        self.lowest = other.lowest if not self.count else min(self.lowest, other.lowest)
        self.highest = max(self.highest, other.highest)
        self.count += other.count
        self.total += other.total

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def percentile(self, share: float) -> int:
        """The value below or at which so many per cent are; 0 of an empty one."""
        return self.percentiles([share])[0]

    def percentiles(self, shares: Iterable[float]) -> list[int]:
        wanted = [max(1, -int(-share * self.count // 100)) for share in shares]
        found = {}
        seen, targets = 0, sorted(set(wanted))
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            while targets and seen >= targets[0]:
                found[targets.pop(0)] = min(max(_middle(bucket), self.lowest), self.highest)
        return [self.highest if one >= self.count else found[one] for one in wanted]

    def as_dict(self) -> dict[str, object]:
        """For another process; ``from_dict`` reads it."""
        return {
            "total": self.total,
            "lowest": self.lowest,
            "highest": self.highest,
            "buckets": list(self._buckets.items()),
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, object]) -> Histogram:
        made = cls()
        made._buckets = {int(bucket): int(times) for bucket, times in found["buckets"]}  # type: ignore[attr-defined]
        made.count = sum(made._buckets.values())
        made.total, made.lowest, made.highest = (int(found[name]) for name in ("total", "lowest", "highest"))  # type: ignore[call-overload]
        return made


def _bucket(value: int) -> int:
    if value < _STEPS:
        return value
    power = value.bit_length() - 1 - _SHIFT
    return (power << _SHIFT) + (value >> power)


def _middle(bucket: int) -> int:
    if bucket < _STEPS:
        return bucket
    power = (bucket >> _SHIFT) - 1
    low = (bucket - (power << _SHIFT)) << power
    return low + ((1 << power) >> 1)
