"""What reaches the terminal of what Java and the processes beside it say: nothing of its remarks,
all that is meant for the user.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from millstream.cli.pipeline.run import _quiet_start

JAVA = """
import sys
print("a remark", file=sys.stderr, flush=True)
sys.stdin.read()
print("millstream: skipped: offsets 2 to 3", file=sys.stderr)
print("another remark", file=sys.stderr)
"""


def java() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", JAVA], stdin=subprocess.PIPE)


def test_remarks_are_kept_back_and_what_is_meant_for_the_user_is_told(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with _quiet_start():
        started = java()
    started.communicate(timeout=60)
    told, deadline_s = "", time.monotonic() + 60
    while "offsets 2 to 3" not in told and time.monotonic() < deadline_s:
        told += capfd.readouterr().err
        time.sleep(0.01)
    assert told == "millstream: skipped: offsets 2 to 3\n"
    print("as before", file=sys.stderr)
    assert capfd.readouterr().err == "as before\n"


def test_a_start_that_fails_shows_what_was_said(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError), _quiet_start():
        java().communicate(timeout=60)
        raise RuntimeError("it did not start")
    assert "a remark\nanother remark\n" in capfd.readouterr().err


def test_who_interrupts_the_start_is_not_told_what_java_said(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(KeyboardInterrupt), _quiet_start():
        os.write(2, b"a page of calls\n")
        raise KeyboardInterrupt
    assert "calls" not in capfd.readouterr().err
