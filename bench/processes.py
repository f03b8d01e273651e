"""Child processes whose output is always read, so that they never block; and load generators."""

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
    """A measurement that failed; the text is the reason in the report."""


def wait_for(condition: Callable[[], bool], event: str, timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise BenchFailed(f"waited {timeout_s:.0f} s for {event}")
        time.sleep(0.05)


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child, which finds this project.

    It caches compiled modules, as an installed package does, but apart from the sources.
    """
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    own = {
        "PYTHONPATH": os.pathsep.join(p for p in paths if p),
        "PYTHONPYCACHEPREFIX": str(BYTECODE),
    }
    return (
        {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | own | dict(extra)
    )


class Output:
    """Reads a pipe in a thread, so that the process never blocks on it, and keeps the lines."""

    def __init__(self, pipe: IO[str]) -> None:
        self.lines: list[str] = []
        self._pipe = pipe
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._pipe:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_line(self, position: int, timeout_s: float) -> str | None:
        """Return the line at this position, or None at the end of the output or the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.lines) > position or self._ended, timeout_s)
            return self.lines[position] if len(self.lines) > position else None

    def close(self) -> None:
        self._thread.join(5.0)
        self._pipe.close()


class Load:
    """A generator in a process: wait until it is ready, start it, get its result."""

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
        """Wait for its next stage. Most generators have one."""
        if self.output.wait_line(self.stages, timeout_s) != "ready":
            raise BenchFailed(self._failure("did not get ready"))
        self.stages += 1

    def go(self) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise BenchFailed(self._failure("ended early")) from None

    def result(self, timeout_s: float = 180.0) -> dict[str, Any]:
        line = self.output.wait_line(self.stages, timeout_s)
        if line is None:
            raise BenchFailed(self._failure("gave no result"))
        result: dict[str, Any] = json.loads(line)
        return result

    def _failure(self, event: str) -> str:
        self.process.kill()
        self.process.wait()
        self.errors.close()
        last = self.errors.lines[-1] if self.errors.lines else ""
        return (
            f"the {self.name} generator {event}: {last}"
            if last
            else f"the {self.name} generator {event}"
        )

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
