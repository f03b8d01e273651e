"""The rate of throttled replication, and the lists of throttled replicas."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from millstream.replication.throttle import ThrottledRate, throttled_partitions


def rate(limit: float | None) -> ThrottledRate:
    throttle = ThrottledRate(windows=4, window_ms=1000)
    throttle.limit = limit
    return throttle


def test_no_limit_is_never_exceeded() -> None:
    throttle = rate(None)
    throttle.record(1 << 40, 0)
    assert not throttle.exceeded(0)


def test_limit_stays_exceeded_until_a_burst_is_paid_back() -> None:
    """At 1,000 bytes per second a burst of 3,000 exceeds the limit for three seconds."""
    throttle = rate(1000)
    assert not throttle.exceeded(0)
    throttle.record(3000, 0)
    assert [throttle.exceeded(at) for at in (0, 1000, 2999, 3000)] == [True, True, True, False]


def test_steady_traffic_below_the_limit_is_not_throttled() -> None:
    throttle = rate(1000)
    for at in range(0, 20_000, 100):
        assert not throttle.exceeded(at)
        throttle.record(90, at)
    assert throttle.rate(20_000) == pytest.approx(900, rel=0.1)


def test_traffic_above_the_limit_is_reduced_to_it() -> None:
    throttle = rate(1000)
    sent = 0
    for at in range(0, 60_000, 10):
        if not throttle.exceeded(at):
            throttle.record(100, at)
            sent += 100
    assert sent == pytest.approx(60_000, rel=0.1)


def test_old_windows_expire() -> None:
    throttle = rate(1000)
    throttle.record(1 << 30, 0)
    assert throttle.exceeded(3999) and not throttle.exceeded(4000)


@pytest.mark.parametrize(
    ("texts", "partitions"),
    [
        ((), set()),
        (("*",), None),
        (("0:1", "1:2", "3:1"), {0, 3}),
        (("0:2",), set()),
        (("0:12", "rubbish", ":1"), set()),
    ],
)
def test_throttled_partitions_of_one_broker(
    texts: tuple[str, ...], partitions: Collection[int] | None
) -> None:
    assert throttled_partitions(texts, 1) == partitions
