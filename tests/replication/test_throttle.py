"""The rate of throttled replication, and which replicas an operator has listed."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from millstream.replication.throttle import ThrottledRate, throttled_partitions


def rate(limit: float | None) -> ThrottledRate:
    made = ThrottledRate(windows=4, window_ms=1000)
    made.limit = limit
    return made


def test_without_a_limit_nothing_is_too_much() -> None:
    throttle = rate(None)
    throttle.record(1 << 40, 0)
    assert not throttle.exceeded(0)


def test_a_burst_is_paid_back() -> None:
    """1,000 bytes per second: of 3,000 at once, two seconds later nothing is owed any more."""
    throttle = rate(1000)
    assert not throttle.exceeded(0)
    throttle.record(3000, 0)
    assert [throttle.exceeded(at) for at in (0, 1000, 2999, 3000)] == [True, True, True, False]


def test_a_steady_flow_at_the_limit_goes_on() -> None:
    throttle = rate(1000)
    for at in range(0, 20_000, 100):
        assert not throttle.exceeded(at)
        throttle.record(90, at)
    assert throttle.rate(20_000) == pytest.approx(900, rel=0.1)


def test_a_flow_above_the_limit_is_held_to_it() -> None:
    throttle = rate(1000)
    sent = 0
    for at in range(0, 60_000, 10):
        if not throttle.exceeded(at):
            throttle.record(100, at)
            sent += 100
    assert sent == pytest.approx(60_000, rel=0.1)


def test_what_was_long_ago_is_forgotten() -> None:
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
def test_the_replicas_of_one_broker(texts: tuple[str, ...], partitions: Collection[int] | None) -> None:
    assert throttled_partitions(texts, 1) == partitions
