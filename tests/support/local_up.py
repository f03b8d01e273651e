"""``millstream up`` in a process of its own, and what it tells."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from millstream.local import cluster_file
from millstream.local.cluster_file import ClusterFile
from millstream.local.process import child_environment
from support.processes import wait_until

Row = dict[str, Any]


class Up:
    """The command with its events, as they come."""

    def __init__(self, data: Path, *words: str) -> None:
        self.data = data
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "millstream",
                "up",
                "--data",
                str(data),
                "--format",
                "json",
                *words,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=child_environment(),
        )
        self.events: list[Row] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.events.extend(json.loads(line) for line in self.process.stdout)

    def errors(self) -> str:
        """Of a process that has ended. (Its output is read as it comes: `communicate` would take a
        part of it.)
        """
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def seen(self, **wanted: object) -> list[Row]:
        return [row for row in list(self.events) if wanted.items() <= row.items()]

    def until(self, **wanted: object) -> Row:
        def there() -> bool:
            return bool(self.seen(**wanted)) or self.process.poll() is not None

        wait_until(there, str(wanted), 90)
        assert self.seen(**wanted), (
            self.events,
            self.process.stderr and self.process.stderr.read(),
        )
        return self.seen(**wanted)[0]

    def file(self) -> ClusterFile:
        found = cluster_file.read(self.data)
        assert found is not None
        return found

    def pids(self) -> list[int]:
        file = self.file()
        return [one.pid for one in (*file.zookeepers, *file.brokers) if one.pid is not None]

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        self._reader.join(120)
        return self.process.wait(120)
