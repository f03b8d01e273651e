"""The driver process of the demo's pipeline, and the explanation of its unexpected exit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from millstream.cli.demo.directory import DemoFailed
from millstream.cli.pipeline.run import QUICK_JVM_OPTION

FLOWS = Path(__file__).with_name("flows.py")
PIPELINE = "demo"
STOP_S = 60.0
MAX_LINES = 5
MAX_LINE_LENGTH = 300


class Driver:
    """``millstream pipeline run`` on the demo's flows.

    It runs in a separate process session, so that it can be killed together with its JVM.
    """

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._directory = directory
        self._command = [sys.executable, "-m", "millstream", "pipeline", "run", str(FLOWS)]
        self._command += ["--bootstrap", bootstrap, "--checkpoint", str(directory / "checkpoints")]
        self._command += ["--conf", QUICK_JVM_OPTION, "--format", "json"]
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def log(self) -> Path:
        return self._directory / "pipeline.log"

    def start(self) -> None:
        self.starts += 1
        environment = {
            **os.environ,
            "MILLSTREAM_DEMO_ARCHIVE": str(self._directory / "paid-orders"),
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def status(self) -> dict[str, Any]:
        """Return the driver's status, or nothing while the file is from a killed driver."""
        from millstream.pipelines.run.layout import Layout

        status = Layout(PIPELINE, str(self._directory / "checkpoints")).read_status() or {}
        return status if status.get("pid") == self.pid else {}

    def flows(self) -> list[dict[str, Any]]:
        flows: list[dict[str, Any]] = self.status().get("flows", [])
        return flows

    def check(self) -> None:
        """Raise with the reason if the process has exited."""
        if self._process is not None and self._process.poll() is not None:
            raise DemoFailed(why_it_ended(self._process.returncode, self.flows(), self.log))

    def kill(self) -> None:
        """Kill the driver and its JVM without warning, like a machine failure."""
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        if number == signal.SIGTERM:
            process.send_signal(number)  # the driver stops its JVM itself
            try:
                process.wait(STOP_S)
                return
            except subprocess.TimeoutExpired:
                pass
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def why_it_ended(code: int, flows: list[dict[str, Any]], log: Path) -> str:
    """Return the failed flows with reasons, or the last log lines if no flow failed."""
    from millstream.pipelines.run.progress import times

    how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    reasons = [
        f"flow {flow['flow']} failed {times(flow['failures'])}: {flow['reason']}"
        for flow in flows
        if flow.get("state") == "failed"
    ]
    lines = [
        f"the pipeline exited unexpectedly {how}",
        *(reasons or _last_lines(log)),
        f"log: {log}",
    ]
    return "\n  ".join(lines)


def _last_lines(log: Path) -> list[str]:
    """Return the last lines that are not JSON events; a Python traceback ends with the error."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [line[:MAX_LINE_LENGTH] for line in lines if line.strip() and not _is_event(line)][
        -MAX_LINES:
    ]


def _is_event(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
