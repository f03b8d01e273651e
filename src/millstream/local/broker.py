"""A broker as a child process: start, wait until ready, kill, restart on the same port and data, stop.

Used by ``millstream demo``, by ``millstream up`` and by the fixtures of the test suite.
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
    """Whether the broker of this directory has ever got so far that it could keep some."""
    return (directory / "data" / "meta.properties").exists()


class BrokerFailed(ProcessFailed):
    """The broker ended before it was ready, or did not become ready or stop in time; carries its last output."""


class LocalBroker(LocalProcess):
    """One ``millstream serve`` child. Port 0 is chosen by the system at the first start and kept at restarts."""

    what = "broker"
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
        """What a client is given: ``127.0.0.1:PORT``."""
        return f"{self.host}:{self.port}"

    def command(self) -> list[str]:
        """The command of the child; a setting given by the caller wins over ours."""
        settings = {
            "listeners": f"PLAINTEXT://{self.host}:{self.port}",
            "log.dirs": str(self.data_dir),
        } | self.settings
        words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        return [sys.executable, "-m", "millstream", "serve", *words]

    def restart(self, *, kill: bool = False, settings: Mapping[str, object] | None = None) -> LocalBroker:
        """Stop (or kill -9) the broker if it runs and start it again on the same port and data."""
        if self.running:
            self.kill() if kill else self.stop()
        self.settings |= {name: str(value) for name, value in (settings or {}).items()}
        return self.start()

    def is_ready(self) -> bool:
        found = READY.search(self.output())
        if found is None:
            return False
        self.ready_line = found[0]
        self.ready_s = float(found["seconds"])
        self.host, _, port = found["listener"].rpartition("//")[2].rpartition(":")
        self.port = int(port)
        return True
