"""Failures that come in thousands are told now and then."""

from __future__ import annotations

import errno
import logging

import pytest

from millstream.log.complaints import QUIET_MS, Complaints
from millstream.log.errors import StorageError


def full(directory: str) -> StorageError:
    return StorageError(directory, "cannot append", OSError(errno.ENOSPC, "no space left on device"))


def test_the_first_is_told_at_once_and_the_others_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    now_ms = 1000
    complaints = Complaints(lambda: now_ms)
    with caplog.at_level(logging.ERROR):
        for _ in range(50):
            complaints.tell(full("/a"))
        complaints.tell(full("/b"))
        assert [message.partition(":")[0] for message in caplog.messages] == [
            "cannot append in /a",
            "cannot append in /b",
        ]
        caplog.clear()
        now_ms += QUIET_MS
        complaints.tell(full("/a"))
        complaints.tell(full("/b"))
    assert "49 more like it" in caplog.messages[0] and "more like it" not in caplog.messages[1]
