"""Peers and generators as processes: start, detect as ready, measure memory and CPU, stop, clean
up.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from bench import fetch, streams
from bench.load import frames
from bench.model import Peer
from bench.pages import Ballast
from bench.processes import ROOT, BenchFailed, Load, Output, environment
from bench.topics import create_topics, leaders, wait_served

KAFKA = "kafka"
WARM_UP = "warm-up"


def missing(requires: Mapping[str, tuple[str, ...]]) -> str | None:
    """Return why a peer or a scenario with these requirements cannot run here, or None.

    Programs that can be fetched are fetched.
    """
    for program in requires.get("programs", ()):
        if shutil.which(program) is None:
            return f"no program {program}"
    for module in requires.get("modules", ()):
        if find_spec(module) is None:
            return f"no Python module {module}"
    for name in requires.get("fetched", ()):
        if reason := fetch.obtain(name):
            return reason
    return None


def version(peer: Peer) -> str:
    if not peer.version:
        return "unknown"
    command = _filled(peer.version, _words(peer))
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment({}), timeout=60, check=False
    )
    lines = done.stdout.strip().splitlines() if done.returncode == 0 else []
    return lines[-1] if lines else "unknown"


@dataclass(slots=True)
class Broker:
    """A running peer. Memory and CPU are those of the process and all its children."""

    peer: Peer
    process: subprocess.Popen[str]
    address: str
    work: Path
    output: Output
    exec_at: float  # perf_counter
    started_s: float = 0.0  # from exec until the first response to ApiVersions
    report: Path | None = None
    _reports: int = field(default=0)

    @property
    def data(self) -> Path:
        return self.work / "data"

    def _family(self) -> list[psutil.Process]:
        head = psutil.Process(self.process.pid)
        return [head, *head.children(recursive=True)]

    def resident_bytes(self) -> int:
        return int(sum(_read(p, lambda p: p.memory_info().rss) for p in self._family()))

    def cpu_s(self) -> float:
        """Return the CPU time, including children that have ended, which the kernel adds to their
        parent.
        """
        times = [_read(p, lambda p: p.cpu_times()) or (0.0,) for p in self._family()]
        return float(sum(sum(t[:4]) for t in times))

    def create_topic(
        self, name: str, partitions: int, settings: Mapping[str, Any] | None = None
    ) -> None:
        if self.peer.topics == "stdin":
            self._command(f"topic {name} {partitions}")
        elif self.peer.protocol != KAFKA:
            streams.protocol(self.peer.protocol).create(self.address, name)
        else:
            create_topics(self.address, [name], partitions, settings or {}, self.peer.replication)
            wait_served(self.address, name, partitions)

    def leaders(self, topic: str, partitions: int) -> list[str]:
        """Return the address of each partition's leader."""
        return leaders(self.address, topic, partitions)

    def _command(self, line: str) -> None:
        assert self.process.stdin is not None
        seen = len(self.output.lines)
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        response = self.output.wait_line(seen, 10.0)
        if response != "ok":
            raise BenchFailed(f"{line}: {response}")

    def reset_callbacks(self) -> None:
        self.process.send_signal(signal.SIGUSR2)
        time.sleep(0.05)

    def callbacks(self) -> dict[str, Any]:
        """Request the report of bench.timed_loop, and wait for it."""
        assert self.report is not None
        self.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if self.report.exists():
                report: dict[str, Any] = json.loads(self.report.read_text())
                if report["written"] > self._reports:
                    self._reports = report["written"]
                    return report
            time.sleep(0.02)
        raise BenchFailed("the timed loop wrote no report")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(self.peer.stop_timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
        self.output.close()


def _read(process: psutil.Process, getter: Any) -> Any:
    try:
        return getter(process)
    except psutil.NoSuchProcess:
        return 0


class Workshop:
    """Starts peers and generators, each with a fresh directory, and removes everything."""

    def __init__(self, scratch: str | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="millstream-bench-", dir=scratch))
        self._runs = 0
        self.ballast = Ballast(self.folder)

    def close(self) -> None:
        self.ballast.drop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def new_work(self) -> Path:
        self._runs += 1
        work = self.folder / str(self._runs)
        (work / "data").mkdir(parents=True)
        return work

    @contextmanager
    def broker(
        self,
        peer: Peer,
        settings: Mapping[str, Any] | None = None,
        *,
        timed: bool = False,
        warm: bool = True,
        work: Path | None = None,
    ) -> Iterator[Broker]:
        """Start a peer, and warm it up if it needs that.

        A given `work` directory is kept, for a restart on its data; a fresh one is removed.
        """
        folder = work or self.new_work()
        broker = _start(peer, settings or {}, folder, timed)
        try:
            if warm and peer.warm_up_requests:
                self._warm_up(broker)
            yield broker
        except BenchFailed as error:
            raise BenchFailed(f"{error} (its last line: {_last_line(broker)})") from None
        finally:
            broker.stop()
            if work is None:
                shutil.rmtree(folder, ignore_errors=True)
            self.ballast.restore()

    def _warm_up(self, broker: Broker) -> None:
        """Send small requests to a separate topic.

        A JVM interprets code that has not run some ten thousand times.
        """
        partitions = broker.peer.replication  # a leader on every node
        broker.create_topic(WARM_UP, partitions)
        for request in ("produce", "fetch"):
            count = broker.peer.warm_up_requests
            job: dict[str, Any] = {
                "message_bytes": 100,
                "connections": 1,
                "depth": 64,
                "warmup_requests": 1,
            }
            job |= {"routes": broker.leaders(WARM_UP, partitions), "topic": WARM_UP}
            with self.load("requests", job | {"request": request, "requests": count}) as load:
                load.wait_ready()
                load.go()
                load.result()

    @contextmanager
    def load(self, name: str, job: Mapping[str, Any], peer: Peer | None = None) -> Iterator[Load]:
        """Start a generator; for a peer with another protocol, the generator of that protocol."""
        if peer is not None and peer.protocol != KAFKA:
            name, job = f"stream_{name}", dict(job) | {"protocol": peer.protocol}
        load = Load(name, job)
        try:
            yield load
        finally:
            load.close()


def _words(peer: Peer) -> dict[str, str]:
    return dict(os.environ) | fetch.words() | {"python": sys.executable} | dict(peer.words)


def _filled(command: tuple[str, ...], words: Mapping[str, str]) -> list[str]:
    return [
        re.sub(r"\{(\w+)\}", lambda m: words.get(m.group(1), m.group(0)), part) for part in command
    ]


def _start(peer: Peer, settings: Mapping[str, Any], work: Path, timed: bool) -> Broker:
    words = _words(peer) | {"work": str(work), "data": str(work / "data")}
    words |= _ports(work)
    for name, text in peer.files.items():
        (work / name).write_text(_filled((text,), words)[0])
    for step in peer.prepare:
        done = subprocess.run(
            _filled(step, words), capture_output=True, text=True, cwd=work, check=False
        )
        if done.returncode:
            output = (done.stdout + done.stderr).strip().splitlines()
            raise BenchFailed(
                f"{peer.title} cannot be prepared: {output[-1] if output else done.returncode}"
            )
    command = _filled(peer.command, words)
    for name, value in settings.items():
        command += _filled(peer.setting, {"name": name, "value": str(value)})
    report = None
    if timed:
        report = work / "callbacks.json"
        report.unlink(missing_ok=True)
        command = [command[0], "-m", "bench.timed_loop", str(report), *command[2:]]
    return _launch(peer, command, work, words["port"], report)


def _launch(peer: Peer, command: list[str], work: Path, port: str, report: Path | None) -> Broker:
    extra = dict(peer.environment) | ({"MILLSTREAM_LOOP": "asyncio"} if report else {})
    log = (work / "stderr").open("a")
    started = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        cwd=ROOT if peer.ready else work,
        env=environment(extra),
    )
    log.close()
    assert process.stdout is not None
    address = f"127.0.0.1:{port}"
    broker = Broker(peer, process, address, work, Output(process.stdout), started, report=report)
    try:
        if peer.ready is not None:
            broker.address = _wait_address(broker)
        _wait_response(broker)
    except BaseException:
        broker.stop()
        raise
    broker.started_s = time.perf_counter() - started
    return broker


def _wait_address(broker: Broker) -> str:
    """Follow stdout until the line with the address."""
    deadline, position = time.monotonic() + broker.peer.start_timeout_s, 0
    while (line := broker.output.wait_line(position, deadline - time.monotonic())) is not None:
        position += 1
        if match := re.search(broker.peer.ready or "", line):
            return match["address"]
    raise BenchFailed(f"{broker.peer.title} did not start: {_last_line(broker)}")


def _wait_response(broker: Broker) -> None:
    """Wait for the first response to ApiVersions, or to the ping of another protocol.

    If no line prints the address, the port is tried every millisecond.
    """
    deadline = time.monotonic() + broker.peer.start_timeout_s
    while time.monotonic() < deadline and broker.process.poll() is None:
        try:
            _probe(broker)
            return
        except OSError:
            time.sleep(0.001)
    raise BenchFailed(
        f"{broker.peer.title} did not answer on {broker.address}: {_last_line(broker)}"
    )


def _probe(broker: Broker) -> None:
    if broker.peer.protocol != KAFKA:
        streams.protocol(broker.peer.protocol).ping(broker.address)
        return
    with frames.connect(broker.address, 5.0) as sock:
        sock.sendall(frames.api_versions())
        frames.read_response(sock)


def _last_line(broker: Broker) -> str:
    lines = (broker.work / "stderr").read_text(
        errors="replace"
    ).strip().splitlines() or broker.output.lines
    return lines[-1] if lines else "no output"


def _ports(work: Path) -> dict[str, str]:
    """Return the same ports after a restart on the same data.

    Apache Kafka stores its controller's address there.
    """
    stored = work / "ports.json"
    if not stored.exists():
        stored.write_text(json.dumps({"port": str(_free_port()), "port2": str(_free_port())}))
    ports: dict[str, str] = json.loads(stored.read_text())
    return ports


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
