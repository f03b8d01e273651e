"""A server as a child process: start, wait until it is ready, stop, kill, pause, restart.

Brokers (``broker``) and ZooKeeper servers (``zookeeper``) are such children. A child writes its
output to a file instead of a pipe, so that it never blocks on a parent that does not read.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from millstream.local.signals import uninterrupted

# Generous, because startup is slow on a busy machine, and an exited process is noticed at once.
READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
_POLL_S = 0.01
TAIL_LINES = 30

# Runs the command in its arguments. On Linux the kernel sends it SIGTERM when the parent exits,
# even if the parent was killed.
_TIED = """\
import ctypes, os, signal, sys
try:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
except (OSError, AttributeError):
    pass
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


class ProcessFailed(Exception):
    """The child exited early, or was not ready or stopped in time; includes its last output."""


class LocalProcess:
    """A child process. Subclasses define its command and how to tell that it is ready."""

    title = "process"
    failure: type[ProcessFailed] = ProcessFailed

    def __init__(self, directory: str | Path, log_name: str) -> None:
        self.directory = Path(directory)
        self.log_file = self.directory / log_name
        # A tied child ends with its parent, and does not receive Ctrl-C of the parent's
        # terminal. It must be spawned from the main thread.
        self.tied = False
        self.exit_code: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return child_environment()

    def is_ready(self) -> bool:
        """Return whether the child can be used; called repeatedly until it can."""
        raise NotImplementedError

    @property
    def pid(self) -> int:
        if self._process is None:
            raise self.failure(f"the {self.title} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        if self._process is None:
            return False
        with uninterrupted():
            self.exit_code = self._process.poll()
        return self.exit_code is None

    def start(self) -> Self:
        """Start the child and return when it is ready."""
        self.spawn()
        return self.wait_ready()

    def spawn(self, *, keep_open: Sequence[int] = ()) -> None:
        """Start the child and return at once; it inherits the ``keep_open`` file descriptors."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._log_start = self.log_file.stat().st_size if self.log_file.exists() else 0
        command = self.command()
        if self.tied:
            command = [sys.executable, "-ISc", _TIED, str(os.getpid()), *command]
        self.exit_code = None
        with uninterrupted(), self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment(),
                start_new_session=self.tied,
                pass_fds=keep_open,
            )

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> Self:
        """Return when the child is ready. On timeout, exit or Ctrl-C kill it and raise."""
        try:
            self._wait_ready(time.monotonic() + timeout_s, timeout_s)
        except BaseException:
            self.kill()  # do not leave a child behind after Ctrl-C
            raise
        return self

    def _wait_ready(self, deadline: float, timeout_s: float) -> None:
        while True:
            running = self.running
            if self.is_ready():
                return
            if not running:
                self._process = None
                raise self.failure(
                    f"the {self.title} exited with code {self.exit_code} before it was ready\n{self.tail()}"
                )
            if time.monotonic() > deadline:
                raise self.failure(
                    f"the {self.title} was not ready within {timeout_s:.0f} s\n{self.tail()}"
                )
            time.sleep(_POLL_S)

    def output(self) -> str:
        """Return the output since the last start."""
        with self.log_file.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def tail(self, lines: int = TAIL_LINES) -> str:
        return "\n".join(self.output().splitlines()[-lines:])

    def kill(self) -> None:
        """Send SIGKILL and wait until the process has exited."""
        self._signal(signal.SIGKILL)

    def stop(self) -> int:
        """Send SIGTERM for a clean shutdown, wait, and return the exit code."""
        return self._signal(signal.SIGTERM)

    def ask_to_stop(self) -> None:
        """Send SIGTERM without waiting, also to a paused process."""
        if self.running:
            os.kill(self.pid, signal.SIGTERM)
            os.kill(self.pid, signal.SIGCONT)

    def pause(self) -> None:
        """Send SIGSTOP: the process exists but does not respond."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        if self.running:
            os.kill(self.pid, number)
        timed_out = not self._wait_for_exit(STOP_TIMEOUT_S)
        if timed_out:
            os.kill(self.pid, signal.SIGKILL)
            self._wait_for_exit(math.inf)
        # Forget the process only now: after Ctrl-C above it can still be killed.
        self._process = None
        if timed_out:
            raise self.failure(
                f"the {self.title} did not stop within {STOP_TIMEOUT_S:.0f} s\n{self.tail()}"
            )
        assert self.exit_code is not None
        return self.exit_code

    def _wait_for_exit(self, timeout_s: float) -> bool:
        """Return whether the process exited in time. (Popen.wait could be torn apart by Ctrl-C.)"""
        deadline_s = time.monotonic() + timeout_s
        pause_s = _POLL_S / 16
        while self.running:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_S)
        return True

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill() if error else self.stop()


def child_environment() -> dict[str, str]:
    """Return an environment to import the parent's package and to print unbuffered."""
    source = str(Path(__file__).resolve().parents[2])
    path = os.environ.get("PYTHONPATH")
    return os.environ | {
        "PYTHONPATH": f"{source}{os.pathsep}{path}" if path else source,
        "PYTHONUNBUFFERED": "1",
    }
