"""A broker as a child process: start, wait until ready, kill, restart on the same port and data, stop.

Used by ``millstream demo`` and by the fixtures of the test suite. The child writes to a file, not to a pipe, so that a
chatty broker never blocks on a parent that does not read.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

READY = re.compile(
    r"^millstream ready: node (?P<node>\d+), (?P<listener>\S+), data (?P<data>.+), (?P<seconds>[\d.]+) s$",
    re.M,
)
READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0


class BrokerFailed(Exception):
    """The child ended before it was ready, or did not become ready or stop in time; carries its last output."""


class LocalBroker:
    """One ``millstream serve`` child. The port is chosen by the system at the first start and kept at restarts."""

    def __init__(self, directory: str | Path, settings: Mapping[str, object] | None = None) -> None:
        self.directory = Path(directory)
        self.data_dir = self.directory / "data"
        self.log_file = self.directory / "broker.log"
        self.settings = {name: str(value) for name, value in (settings or {}).items()}
        self.host = "127.0.0.1"
        self.port = 0
        self.ready_s = 0.0
        self.ready_line = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def bootstrap(self) -> str:
        """What a client is given: ``127.0.0.1:PORT``."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise BrokerFailed("the broker is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> LocalBroker:
        """Start the child and return when it has printed its ready line."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._log_start = self.log_file.stat().st_size if self.log_file.exists() else 0
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_child_environment()
            )
        try:
            self._wait_ready()
        except BaseException:
            self.kill()  # Ctrl-C must not leave a child behind
            raise
        return self

    def command(self) -> list[str]:
        """The command of the child; a setting given by the caller wins over ours."""
        settings = {
            "listeners": f"PLAINTEXT://{self.host}:{self.port}",
            "log.dirs": str(self.data_dir),
        } | self.settings
        words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        return [sys.executable, "-m", "millstream", "serve", *words]

    def output(self) -> str:
        """What the broker has printed since its last start."""
        with self.log_file.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def kill(self) -> None:
        """kill -9, and wait until the process is gone."""
        self._signal(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM, a clean shutdown; the exit code of the broker."""
        return self._signal(signal.SIGTERM)

    def restart(self, *, kill: bool = False, settings: Mapping[str, object] | None = None) -> LocalBroker:
        """Stop (or kill -9) the broker if it runs and start it again on the same port and data."""
        if self.running:
            self.kill() if kill else self.stop()
        self.settings |= {name: str(value) for name, value in (settings or {}).items()}
        return self.start()

    def _signal(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        process, self._process = self._process, None
        if process.poll() is None:
            process.send_signal(number)
        try:
            return process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BrokerFailed(
                f"the broker did not stop within {STOP_TIMEOUT_S:.0f} s\n{self._tail()}"
            ) from None

    def _wait_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            ended = self._process.poll()
            if found := READY.search(self.output()):
                self._note_ready(found)
                return
            if ended is not None:
                self._process = None
                raise BrokerFailed(
                    f"the broker ended with exit code {ended} before it was ready\n{self._tail()}"
                )
            if time.monotonic() > deadline:
                raise BrokerFailed(f"the broker was not ready within {READY_TIMEOUT_S:.0f} s\n{self._tail()}")
            time.sleep(0.005)

    def _note_ready(self, found: re.Match[str]) -> None:
        self.ready_line = found[0]
        self.ready_s = float(found["seconds"])
        self.host, _, port = found["listener"].rpartition("//")[2].rpartition(":")
        self.port = int(port)

    def _tail(self, lines: int = 30) -> str:
        return "\n".join(self.output().splitlines()[-lines:])

    def __enter__(self) -> LocalBroker:
        return self if self.running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill() if error else self.stop()


def _child_environment() -> dict[str, str]:
    """The child finds the package where the parent found it, installed or not, and prints without delay."""
    source = str(Path(__file__).resolve().parents[2])
    path = os.environ.get("PYTHONPATH")
    return os.environ | {
        "PYTHONPATH": f"{source}{os.pathsep}{path}" if path else source,
        "PYTHONUNBUFFERED": "1",
    }
