"""A failure that repeats is logged now and then, with how often it happened."""

from __future__ import annotations

import logging

import pytest

from millstream.log.rate_limited_logging import FIRST_QUIET_MS, LONGEST_QUIET_MS, RateLimitedLog

logger = logging.getLogger("test")


class Limited:
    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.log = RateLimitedLog(logger, lambda: self.now_ms)

    def fail(self, key: str = "/a") -> None:
        self.log.log(logging.ERROR, key, f"{key} is full")


def test_each_key_is_logged_at_once_and_then_after_a_pause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limited = Limited()
    for _ in range(50):
        limited.fail("/a")
    limited.fail("/b")
    assert caplog.messages == ["/a is full", "/b is full"]
    caplog.clear()
    limited.now_ms += FIRST_QUIET_MS
    limited.fail("/a")
    limited.fail("/b")
    assert caplog.messages == [
        "/a is full (and 49 more like it since the last message)",
        "/b is full",
    ]


def test_failures_that_go_on_for_a_day_are_a_few_lines_an_hour(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limited = Limited()
    for _ in range(24 * 3600):
        limited.fail()
        limited.now_ms += 1000
    assert (
        24 * 3_600_000 / LONGEST_QUIET_MS - 1
        < len(caplog.messages)
        < 24 * 3_600_000 / LONGEST_QUIET_MS + 10
    )


def test_seventy_five_seconds_of_a_full_disk_are_four_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limited = Limited()
    for _ in range(75 * 25):
        limited.fail()
        limited.now_ms += 40
    assert len(caplog.messages) == 4


def test_failure_after_a_quiet_time_counts_as_the_first(caplog: pytest.LogCaptureFixture) -> None:
    limited = Limited()
    for _ in range(100):
        limited.fail()
        limited.now_ms += 1000
    limited.now_ms += LONGEST_QUIET_MS
    caplog.clear()
    limited.fail()
    limited.now_ms += FIRST_QUIET_MS
    limited.fail()
    assert len(caplog.messages) == 2
