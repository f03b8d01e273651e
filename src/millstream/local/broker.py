"""A broker as a child process: start, wait until ready, kill, stop, restart.

Used by ``millstream demo``, ``millstream up`` and the fixtures of the test suite.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from millstream.local.process import LocalProcess, ProcessFailed

READY = re.compile(
    r"^millstream ready: node (?P<node>\d+), (?P<listener>\S+), data (?P<data>.+), (?P<seconds>[\d.]+) s$",
    re.M,
)


def has_records(directory: Path) -> bool:
    """Return whether the broker of this directory ever started far enough to store records."""
    return (directory / "data" / "meta.properties").exists()


class BrokerFailed(ProcessFailed):
    """The broker exited early, or was not ready or stopped in time; includes its last output."""


class LocalBroker(LocalProcess):
    """A ``millstream serve`` child. With port 0 the system picks a port, which restarts keep."""

    title = "broker"
    failure = BrokerFailed

    def __init__(
        self, directory: str | Path, settings: Mapping[str, object] | None = None, *, port: int = 0
    ) -> None:
        super().__init__(directory, "broker.log")
        self.data_dir = self.directory / "data"
        self.settings = {name: str(value) for name, value in (settings or {}).items()}
        self.host = "127.0.0.1"
        self.port = port
        self.ready_s = 0.0
        self.ready_line = ""

    @property
    def bootstrap(self) -> str:
        """The bootstrap address for clients: ``127.0.0.1:PORT``."""
        return f"{self.host}:{self.port}"

    def command(self) -> list[str]:
        """Return the command of the child; settings of the caller override the defaults."""
        settings = {
            "listeners": f"PLAINTEXT://{self.host}:{self.port}",
            "log.dirs": str(self.data_dir),
        } | self.settings
        words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        return [sys.executable, "-m", "millstream", "serve", *words]

    def restart(
        self, *, kill: bool = False, settings: Mapping[str, object] | None = None
    ) -> LocalBroker:
        """Stop or kill the broker if it is running, and start it with the same port and data."""
        if self.running:
            self.kill() if kill else self.stop()
        self.settings |= {name: str(value) for name, value in (settings or {}).items()}
        return self.start()

    def is_ready(self) -> bool:
        match = READY.search(self.output())
        if match is None:
            return False
        self.ready_line = match[0]
        self.ready_s = float(match["seconds"])
        self.host, _, port = match["listener"].rpartition("//")[2].rpartition(":")
        self.port = int(port)
        return True
