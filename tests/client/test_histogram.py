"""Percentiles of a histogram."""

from __future__ import annotations

from millstream.client.histogram import Histogram


def test_percentiles_are_within_one_per_cent_and_histograms_merge() -> None:
    low, high = Histogram(), Histogram()
    for value in range(1, 100_001):
        (low if value <= 50_000 else high).add(value)
    low.merge(Histogram.from_dict(high.as_dict()))
    assert (low.count, low.lowest, low.highest, round(low.mean)) == (100_000, 1, 100_000, 50_000)
    for share in (1, 50, 95, 99, 99.9):
        assert abs(low.percentile(share) - share * 1000) <= share * 10
    assert low.percentile(100) == 100_000
    assert Histogram().percentile(99) == 0
