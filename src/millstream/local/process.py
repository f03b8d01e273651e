"""A server as a child process: start, wait until it is ready, stop, kill, pause, start again.

Brokers (``local_broker``) and ZooKeeper servers (``zookeeper_server``) are such children. A child writes to a file, not to a
pipe, so that a chatty one never blocks on a parent that does not read.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

# Generous: a process that has exited is noticed at once, and on a busy machine a start takes long.
READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
_LOOK_EVERY_S = 0.01
TAIL_LINES = 30

# Runs the words that follow, and has the kernel (Linux) send it SIGTERM when the parent is gone, however it ended.
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
    """The child ended before it was ready, or did not become ready or stop in time; carries its last output."""


class LocalProcess:
    """What all children have in common. Subclasses say what to run and when it is ready."""

    what = "process"
    failure: type[ProcessFailed] = ProcessFailed

    def __init__(self, directory: str | Path, log_name: str) -> None:
        self.directory = Path(directory)
        self.log_file = self.directory / log_name
        # Ends with the parent, and does not hear the Ctrl-C that the parent hears; spawn from the main thread only.
        self.tied = False
        self.exit_code: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return child_environment()

    def is_ready(self) -> bool:
        """Whether it can be used; asked again and again until it can."""
        raise NotImplementedError

    @property
    def pid(self) -> int:
        if self._process is None:
            raise self.failure(f"the {self.what} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        if self._process is None:
            return False
        self.exit_code = self._process.poll()
        return self.exit_code is None

    def start(self) -> Self:
        """Start the child and return when it is ready."""
        self.spawn()
        return self.wait_ready()

    def spawn(self, *, keep_open: Sequence[int] = ()) -> None:
        """Start the child and return at once; it has these file descriptors open for as long as it lives."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._log_start = self.log_file.stat().st_size if self.log_file.exists() else 0
        words = self.command()
        if self.tied:
            words = [sys.executable, "-ISc", _TIED, str(os.getpid()), *words]
        self.exit_code = None
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment(),
                start_new_session=self.tied,
                pass_fds=keep_open,
            )

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> Self:
        """Return when it is ready; kill it where it does not become so (or Ctrl-C comes first), and raise."""
        try:
            self._wait_ready(time.monotonic() + timeout_s, timeout_s)
        except BaseException:
            self.kill()  # Ctrl-C must not leave a child behind
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
                    f"the {self.what} ended with exit code {self.exit_code} before it was ready\n{self.tail()}"
                )
            if time.monotonic() > deadline:
                raise self.failure(f"the {self.what} was not ready within {timeout_s:.0f} s\n{self.tail()}")
            time.sleep(_LOOK_EVERY_S)

    def output(self) -> str:
        """What it has printed since its last start."""
        with self.log_file.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def tail(self, lines: int = TAIL_LINES) -> str:
        return "\n".join(self.output().splitlines()[-lines:])

    def kill(self) -> None:
        """kill -9, and wait until the process is gone."""
        self._signal(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM, a clean shutdown; the exit code."""
        return self._signal(signal.SIGTERM)

    def ask_to_stop(self) -> None:
        """SIGTERM, without waiting for what comes of it; also to one that is paused."""
        if self.running:
            os.kill(self.pid, signal.SIGTERM)
            os.kill(self.pid, signal.SIGCONT)

    def pause(self) -> None:
        """SIGSTOP: it is there and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        process = self._process
        if process.poll() is None:
            process.send_signal(number)
        try:
            self.exit_code = process.wait(
                STOP_TIMEOUT_S
            )  # where Ctrl-C comes meanwhile, it can still be killed
            self._process = None
        except subprocess.TimeoutExpired:
            process.kill()
            self.exit_code = process.wait()
            self._process = None
            raise self.failure(
                f"the {self.what} did not stop within {STOP_TIMEOUT_S:.0f} s\n{self.tail()}"
            ) from None
        return self.exit_code

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill() if error else self.stop()


def child_environment() -> dict[str, str]:
    """The child finds the package where the parent found it, installed or not, and prints without delay."""
    source = str(Path(__file__).resolve().parents[2])
    path = os.environ.get("PYTHONPATH")
    return os.environ | {
        "PYTHONPATH": f"{source}{os.pathsep}{path}" if path else source,
        "PYTHONUNBUFFERED": "1",
    }
