"""Child processes: their output read without ever blocking them, and load generators on top of that."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO, Any

from bench.model import HERE

ROOT = HERE.parent
PATIENCE_S = 120.0
BYTECODE = HERE / "results" / "bytecode"


class BenchFailed(Exception):
    """A measurement that could not be made; the text is the reason given in the report."""


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise BenchFailed(f"{what} not seen in {timeout_s:.0f} s")
        time.sleep(0.05)


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Children find this project, and keep compiled modules (apart from the sources) as an installed package does."""
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(p for p in paths if p), "PYTHONPYCACHEPREFIX": str(BYTECODE)}
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | own | dict(extra)


class Output:
    """Reads a pipe in a thread so that the process never blocks on it; keeps the lines."""

    def __init__(self, pipe: IO[str]) -> None:
        self.lines: list[str] = []
        self._pipe = pipe
        self._news = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._pipe:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def wait_line(self, position: int, timeout_s: float) -> str | None:
        """The line at this position, or None when the output ends or the time is up."""
        with self._news:
            self._news.wait_for(lambda: len(self.lines) > position or self._ended, timeout_s)
            return self.lines[position] if len(self.lines) > position else None

    def close(self) -> None:
        self._thread.join(5.0)
        self._pipe.close()


class Load:
    """A generator in its own process: wait until it is ready, let it go, take its result."""

    def __init__(self, name: str, job: Mapping[str, Any]) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"bench.load.{name}", json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment({}),
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        self.output, self.errors = Output(self.process.stdout), Output(self.process.stderr)
        self.stages = 0

    def wait_ready(self, timeout_s: float = 120.0) -> None:
        """For its next stage: most generators have one."""
        if self.output.wait_line(self.stages, timeout_s) != "ready":
            raise BenchFailed(self._why("did not get ready"))
        self.stages += 1

    def go(self) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise BenchFailed(self._why("ended early")) from None

    def result(self, timeout_s: float = 180.0) -> dict[str, Any]:
        line = self.output.wait_line(self.stages, timeout_s)
        if line is None:
            raise BenchFailed(self._why("gave no result"))
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _why(self, what: str) -> str:
        self.process.kill()
        self.process.wait()
        self.errors.close()
        last = self.errors.lines[-1] if self.errors.lines else ""
        return f"the {self.name} generator {what}: {last}" if last else f"the {self.name} generator {what}"

    def close(self) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
            self.process.wait(10.0)
        except BrokenPipeError:
            pass
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.process.wait()
        self.output.close()
        self.errors.close()
