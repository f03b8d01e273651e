"""Capacity planning: the two worked examples."""

from __future__ import annotations

import pytest

from millstream.cli.plan.capacity import TB, Disk, Network


def test_two_weeks_of_a_hundred_million_records_a_day() -> None:
    disk = Disk()
    assert disk.per_day == 200e9
    assert disk.per_day_with_overhead == pytest.approx(220e9)
    assert disk.exact == pytest.approx(2.31 * TB)
    assert disk.rounded == pytest.approx(2.25 * TB)


def test_a_terabyte_an_hour_over_gigabit_networks() -> None:
    network = Network()
    assert network.share == pytest.approx(233.33e6, rel=1e-4)
    assert network.rounded_share == 240e6
    assert (network.rounded_demand, network.rounded, network.rounded_with_copies) == (
        2300e6,
        10,
        30,
    )
    assert (network.exact, network.exact_with_copies) == (10, 29)
