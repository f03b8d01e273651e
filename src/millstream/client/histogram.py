"""A histogram of durations: constant memory, percentiles within one per cent, mergeable.

Buckets grow with the value: there are 128 between one power of two and the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_STEPS = 128
_SHIFT = 7


class Histogram:
    """A histogram of whole numbers, for example microseconds; negative ones count as 0."""

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
        """Return the value at or below which ``share`` per cent lie; 0 if empty."""
        return self.percentiles([share])[0]

    def percentiles(self, shares: Iterable[float]) -> list[int]:
        ranks = [max(1, -int(-share * self.count // 100)) for share in shares]
        values = {}
        seen, targets = 0, sorted(set(ranks))
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            while targets and seen >= targets[0]:
                values[targets.pop(0)] = min(max(_middle(bucket), self.lowest), self.highest)
        return [self.highest if rank >= self.count else values[rank] for rank in ranks]

    def as_dict(self) -> dict[str, object]:
        """Return a form for another process, for ``from_dict``."""
        return {
            "total": self.total,
            "lowest": self.lowest,
            "highest": self.highest,
            "buckets": list(self._buckets.items()),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Histogram:
        histogram = cls()
        histogram._buckets = {int(bucket): int(times) for bucket, times in data["buckets"]}  # type: ignore[attr-defined]
        histogram.count = sum(histogram._buckets.values())
        histogram.total, histogram.lowest, histogram.highest = (
            int(data[name])  # type: ignore[call-overload]
            for name in ("total", "lowest", "highest")
        )
        return histogram


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
