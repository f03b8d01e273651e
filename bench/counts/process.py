"""The same operations in a broker process under strace or callgrind.

They count its system calls and instructions. The broker runs twice, with less and with more work;
the difference excludes its startup and shutdown. These counts vary slightly between runs (timers,
threads), so they are not for a test.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.counts.work import WORK, Work, error_of
from bench.load import frames

READY_S = 180.0
FEW, MANY = 100, 600
FEW_MB, MANY_MB = 10, 40
TOOLS = {
    "strace": ["strace", "-f", "-c", "-U", "name,calls", "-o"],
    "callgrind": ["valgrind", "-q", "--tool=callgrind", "--callgrind-out-file={}"],
}
INSTRUCTIONS = "instructions"


def is_installed(tool: str) -> bool:
    return shutil.which(TOOLS[tool][0]) is not None


def per_operation(tool: str, name: str) -> dict[str, float]:
    """Return system calls by name, or instructions, for one operation (or for one MB)."""
    work = WORK[name]
    small, large = (FEW_MB, MANY_MB) if work.megabytes else (FEW, MANY)
    less, more = _run(tool, work, small), _run(tool, work, large)
    counts = {key: (more[key] - less.get(key, 0)) / (large - small) for key in more}
    return {key: value for key, value in counts.items() if value >= 0.05}


def _run(tool: str, work: Work, times: int) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as scratch:
        counted, address = Path(scratch, "counted"), f"127.0.0.1:{_free_port()}"
        command = [part.format(counted) for part in TOOLS[tool]]
        command += [str(counted)] if tool == "strace" else []
        command += [sys.executable, "-m", "millstream", "serve"]
        for setting in (
            f"listeners=PLAINTEXT://{address}",
            f"log.dirs={scratch}/data",
            "offsets.topic.num.partitions=1",
        ):
            command += ["--set", setting]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _drive(address, work, times)
        finally:
            _stop(process, tool)
        return _read_strace(counted) if tool == "strace" else _read_callgrind(counted)


def _stop(process: subprocess.Popen[bytes], tool: str) -> None:
    """Send SIGTERM to the broker: strace does not forward signals to its child."""
    broker = process.pid
    if tool == "strace":
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        broker = int(children[0])
    os.kill(broker, signal.SIGTERM)
    process.wait(READY_S)


class _Client:
    """A connection to the broker."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def ask(self, frame: bytes) -> bytes:
        self._sock.sendall(frame)
        return frames.read_response(self._sock)


def _drive(address: str, work: Work, times: int) -> None:
    with _connected(address) as sock:
        client = _Client(sock)
        frames_of = work.prepare(client)
        for number in range(times):
            operation = frames_of(number)
            for frame in operation:
                sock.sendall(frame)
            responses = [frames.read_response(sock) for _ in operation]
            if error := error_of(work, responses[-1]):
                raise AssertionError(f"the broker answers with error {error}")


def _connected(address: str) -> socket.socket:
    deadline_s = time.monotonic() + READY_S
    while True:
        try:
            return frames.connect(address, timeout_s=READY_S)
        except OSError:
            if time.monotonic() > deadline_s:
                raise
        time.sleep(0.1)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _read_strace(file: Path) -> dict[str, int]:
    rows = re.findall(r"^\s*([a-z_0-9]+)\s+(\d+)\s*$", file.read_text(), re.M)
    return {name: int(calls) for name, calls in rows if name != "total"}


def _read_callgrind(file: Path) -> dict[str, int]:
    match = re.search(r"^(?:totals|summary): (\d+)", file.read_text(), re.M)
    if match is None:
        raise AssertionError("callgrind has written no total")
    return {INSTRUCTIONS: int(match[1])}
