"""``make fuzz [MINUTES=n | FRAMES=n] [SEED=k]``: mutated frames over real sockets, and a verdict.

A broker process gets frames over several connections, pipelined. Beside them a healthy neighbour
produces and reads back its own records, and a probe measures the latency of the event loop. The run
fails if the broker dies, logs a traceback or a line for every malformed frame, if the neighbour
gets an error or waits longer than ``PATIENCE_S``, if the broker spends more than ``LONGEST_CPU_S``
of CPU before it answers the probe, or if memory does not come back to within ``SPARE_BYTES`` of
what it was after the warm-up, in which every API and version has been used.
"""

from __future__ import annotations

import argparse
import collections
import select
import shutil
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from fuzz.frames import TOPICS, Frames
from millstream.local.broker import LocalBroker
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.delete_topics import DeleteTopicsRequest
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.records.batch import build_batch
from millstream.wire.records.payload import Record
from support import raw
from support.samples import VERSIONS

WARM_UP_FRAMES = 20_000
CONNECTIONS = 8
LONGEST_BURST = 16
SILENCE_S = 0.05
SPARE_BYTES = 20 * 1024 * 1024
PATIENCE_S = 60.0
# CPU and not time: a machine with other things to do answers late, and that is no fault of the
# broker.
LONGEST_CPU_S = 1.0
PROBE_EVERY_S = 0.01
# Malformed frames are rate-limited in the log; this leaves room for topics that come and go.
FRAMES_PER_LINE = 5
SETTLE_S = 120.0
KEPT_FRAMES = 200
SIGNS = ("Traceback (most recent call last)", "failed unexpectedly")
# Frames may create topics, but not so many partitions that their memory hides a leak.
SETTINGS = {"num.partitions": 1, "auto.create.topics.enable": "false", "max.connections": 2000}


class Connection:
    """One socket of the attacker: a burst of frames, their answers, the next burst."""

    def __init__(self, address: str, frames: Frames) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), PATIENCE_S)
        self.socket.setblocking(False)
        self._frames = frames
        self._waiting = bytearray()
        self._received = bytearray()
        self._outstanding = 0
        self._sent_s = 0.0
        self.answered = 0

    def read(self) -> bool:
        """Count the answers that have arrived; return False at the end of the stream."""
        data = self.socket.recv(1 << 20)
        self._received += data
        while len(self._received) >= 4:
            end = 4 + raw.SIZE.unpack_from(self._received)[0]
            if len(self._received) < end:
                break
            del self._received[:end]
            self._outstanding -= 1
            self.answered += 1
        return bool(data)

    def write(self) -> list[bytes]:
        """Send what is left of a burst, or begin the next one and return its frames.

        A frame that a broker takes for part of a longer one gets no answer, so a burst is not
        waited for long.
        """
        burst: list[bytes] = []
        if not self._waiting:
            if self._outstanding > 0 and time.monotonic() < self._sent_s + SILENCE_S:
                return burst
            dice = self._frames.dice
            count = 1 if dice.random() < 0.85 else dice.randrange(2, LONGEST_BURST)
            burst = [self._frames.next() for _ in range(count)]
            self._waiting += b"".join(burst)
            self._outstanding = count
            self._sent_s = time.monotonic()
        del self._waiting[: self.socket.send(self._waiting)]
        return burst


@dataclass
class Attacker:
    """Sends frames over several connections at the same time."""

    address: str
    frames: Frames
    sent: int = 0
    answered: int = 0
    closed: int = 0
    last: collections.deque[bytes] = field(
        default_factory=lambda: collections.deque(maxlen=KEPT_FRAMES)
    )

    def send(self, count: int, until_s: float) -> None:
        """Send this many frames, or until the time is over."""
        end = self.sent + count
        connections: list[Connection] = []
        try:
            while self.sent < end and time.monotonic() < until_s:
                while len(connections) < CONNECTIONS:
                    connections.append(Connection(self.address, self.frames))
                readable, writable, _ = select.select(
                    [one.socket for one in connections],
                    [one.socket for one in connections],
                    [],
                    1.0,
                )
                before = self.sent
                for connection in list(connections):
                    if not self._step(
                        connection, connection.socket in readable, connection.socket in writable
                    ):
                        connections.remove(connection)
                        self._close(connection)
                if self.sent == before:
                    time.sleep(0.0005)  # every connection waits for answers
        finally:
            for connection in connections:
                self._close(connection)

    def _close(self, connection: Connection) -> None:
        connection.socket.close()
        self.answered += connection.answered
        self.closed += 1

    def _step(self, connection: Connection, readable: bool, writable: bool) -> bool:
        """Read and write what goes; return False when the connection has ended."""
        try:
            if readable and not connection.read():
                return False
            if writable:
                burst = connection.write()
                self.last.extend(burst)
                self.sent += len(burst)
        except BlockingIOError:
            return True
        except OSError:
            return False
        # Clients that go away in the middle of a request are part of it.
        return self.frames.dice.random() > 0.0005


class Neighbour(threading.Thread):
    """A client that does everything right: what it wrote must come back, soon."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="neighbour", daemon=True)
        self._address = bootstrap
        self._stopping = threading.Event()
        self.rounds = 0
        self.longest_s = 0.0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with raw.RawClient(self._address, timeout_s=PATIENCE_S) as client:
                raw.create_topic(client, "neighbour")
                while not self._stopping.wait(0.02):
                    began_s = time.monotonic()
                    self._round(client)
                    self.longest_s = max(self.longest_s, time.monotonic() - began_s)
                    self.rounds += 1
        except BaseException as error:
            self.error = error

    def _round(self, client: raw.RawClient) -> None:
        value = f"round {self.rounds}".encode()
        batch = bytes(build_batch([Record(0, 0, None, value, ())], base_offset=0))
        answer = raw.produce(client, "neighbour", 0, batch)
        assert answer.error_code == 0, answer
        read = raw.fetch(client, "neighbour", 0, answer.base_offset)
        assert read.error_code == 0, read
        assert value in bytes(read.records), (value, read)
        client.call(MetadataRequest(topics=None), 12)

    def stop(self) -> None:
        self._stopping.set()
        self.join(PATIENCE_S)


class LoopProbe(threading.Thread):
    """The latency of the broker's event loop: how long ApiVersions, which takes no time itself,
    waits for its turn.
    """

    def __init__(self, bootstrap: str, pid: int) -> None:
        super().__init__(name="probe", daemon=True)
        self._address = bootstrap
        self._process = psutil.Process(pid)
        self._stopping = threading.Event()
        self.waits_s: list[float] = []
        self.longest_cpu_s = 0.0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with raw.RawClient(self._address, timeout_s=PATIENCE_S) as client:
                while not self._stopping.wait(PROBE_EVERY_S):
                    began_s, cpu_s = time.monotonic(), self._cpu_s()
                    client.call(ApiVersionsRequest(), 0)
                    self.longest_cpu_s = max(self.longest_cpu_s, self._cpu_s() - cpu_s)
                    self.waits_s.append(time.monotonic() - began_s)
        except BaseException as error:
            self.error = error

    def _cpu_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def latency_s(self, share: float) -> float:
        """Return the wait that this share of the probes did not exceed."""
        return sorted(self.waits_s)[int((len(self.waits_s) - 1) * share)] if self.waits_s else 0.0

    def stop(self) -> None:
        self._stopping.set()
        self.join(PATIENCE_S)

    def problems(self) -> list[str]:
        found = []
        if self.error is not None:
            found.append(f"the probe met {self.error!r}")
        if not self.waits_s:
            found.append("the probe measured nothing")
        if self.longest_cpu_s > LONGEST_CPU_S:
            found.append(
                f"the event loop was busy for {self.longest_cpu_s:.1f} s of CPU before it answered a probe"
            )
        return found


@dataclass
class Verdict:
    """What a run found."""

    frames: int = 0
    lines: int = 0
    loop_latencies_s: tuple[float, float, float] = (0.0, 0.0, 0.0)
    loop_cpu_s: float = 0.0
    answered: int = 0
    closed: int = 0
    rounds: int = 0
    longest_s: float = 0.0
    memory_before: int = 0
    memory_after: int = 0
    memory_peak: int = 0
    problems: list[str] = field(default_factory=list)


class Watch(threading.Thread):
    """The largest resident memory of a process."""

    def __init__(self, pid: int) -> None:
        super().__init__(name="watch", daemon=True)
        self._process = psutil.Process(pid)
        self._stopping = threading.Event()
        self.peak = 0

    def run(self) -> None:
        while not self._stopping.wait(0.25):
            try:
                self.peak = max(self.peak, memory_of(self._process))
            except psutil.Error:
                return

    def stop(self) -> None:
        self._stopping.set()
        self.join()


def memory_of(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


def fuzz(broker: LocalBroker, seed: int, frames: int, minutes: float) -> tuple[Verdict, Attacker]:
    """Attack a running broker and judge it."""
    verdict = Verdict()
    assert broker.pid is not None
    process, watch = psutil.Process(broker.pid), Watch(broker.pid)
    attacker = Attacker(broker.bootstrap, Frames(seed))
    neighbour, probe = Neighbour(broker.bootstrap), LoopProbe(broker.bootstrap, broker.pid)
    neighbour.start()
    probe.start()
    watch.start()
    try:
        warm_up(attacker)
        verdict.memory_before = settled_memory(broker, process, at_most=0)
        until_s = time.monotonic() + minutes * 60 if minutes else float("inf")
        attacker.send(frames, until_s)
        neighbour.stop()
        limit = verdict.memory_before + SPARE_BYTES
        verdict.memory_after = settled_memory(broker, process, at_most=limit)
        if verdict.memory_after > limit:
            verdict.problems.append(
                f"memory: {verdict.memory_before:,} bytes before, {verdict.memory_after:,} after"
            )
    except (OSError, psutil.Error, raw.Closed) as error:
        verdict.problems.append(f"the broker does not answer any more: {error!r}")
    finally:
        neighbour.stop()
        probe.stop()
        watch.stop()
    if neighbour.error is not None:
        verdict.problems.append(f"the neighbour met {neighbour.error!r}")
    if not neighbour.rounds:
        verdict.problems.append("the neighbour did nothing")
    if not broker.running:
        verdict.problems.append("the broker has ended")
    verdict.problems += probe.problems() + complaints(broker)
    verdict.loop_latencies_s = (probe.latency_s(0.5), probe.latency_s(0.99), probe.latency_s(1))
    verdict.loop_cpu_s = probe.longest_cpu_s
    verdict.lines = len(broker.output().splitlines())
    if verdict.lines > attacker.sent // FRAMES_PER_LINE:
        verdict.problems.append(f"{verdict.lines:,} lines in the log for {attacker.sent:,} frames")
    verdict.frames, verdict.answered, verdict.closed = (
        attacker.sent,
        attacker.answered,
        attacker.closed,
    )
    if verdict.answered < verdict.frames // 10:
        verdict.problems.append(
            f"only {verdict.answered:,} of {verdict.frames:,} frames were answered"
        )
    verdict.rounds, verdict.longest_s = neighbour.rounds, neighbour.longest_s
    verdict.memory_peak = watch.peak
    return verdict, attacker


def warm_up(attacker: Attacker) -> None:
    """Use every API and version, and the state that the pools of names allow."""
    with raw.RawClient(attacker.address) as client:
        for name in TOPICS:
            raw.create_topic(client, name)
    for api, version in VERSIONS:
        with raw.RawClient(attacker.address) as client:
            client.write(attacker.frames.frame_of(api, version))
    attacker.send(WARM_UP_FRAMES, float("inf"))


def settled_memory(broker: LocalBroker, process: psutil.Process, *, at_most: int) -> int:
    """Return the resident memory when it is at most that, or when it has not fallen for a while."""
    with raw.RawClient(broker.bootstrap) as client:
        client.call(DeleteTopicsRequest(topic_names=TOPICS, timeout_ms=60_000), 5)
        for name in TOPICS:
            raw.create_topic(client, name)
    deadline_s = time.monotonic() + SETTLE_S
    lowest, lowest_s = memory_of(process), time.monotonic()
    while time.monotonic() < deadline_s and lowest > at_most and time.monotonic() < lowest_s + 10:
        time.sleep(0.5)
        now = memory_of(process)
        if now < lowest:
            lowest, lowest_s = now, time.monotonic()
    return lowest


def complaints(broker: LocalBroker) -> list[str]:
    """Return the lines of the broker's log that no request may cause."""
    lines = broker.output().splitlines()
    found = [number for number, line in enumerate(lines) if any(sign in line for sign in SIGNS)]
    return [" / ".join(lines[number : number + 30]) for number in found[:5]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument(
        "--minutes", type=float, default=0, help="stop after this time; 0 for no limit"
    )
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="millstream-fuzz-"))
    print(f"seed {given.seed}, at most {given.frames:,} frames, data in {directory}", flush=True)
    began_s = time.monotonic()
    with LocalBroker(directory, SETTINGS) as broker:
        verdict, attacker = fuzz(broker, given.seed, given.frames, given.minutes)
    median, most, longest = verdict.loop_latencies_s
    print(
        f"{verdict.frames:,} frames in {time.monotonic() - began_s:.0f} s, {verdict.answered:,} answered, {verdict.closed:,} connections closed\n"
        f"neighbour: {verdict.rounds:,} rounds, the longest {verdict.longest_s * 1000:.0f} ms\n"
        f"event loop: {median * 1000:.1f} ms median, {most * 1000:.0f} ms for 99 %, {longest * 1000:.0f} ms at most; "
        f"{verdict.loop_cpu_s:.2f} s of CPU at most; {verdict.lines:,} lines in the log\n"
        f"memory: {verdict.memory_before / 1e6:.0f} MB before, {verdict.memory_peak / 1e6:.0f} MB at most, "
        f"{verdict.memory_after / 1e6:.0f} MB after"
    )
    if verdict.problems:
        (directory / "last-frames.bin").write_bytes(b"".join(attacker.last))
        print(f"FAILED; the last frames and the broker's log are in {directory}")
        print("\n".join(f"- {problem[:2000]}" for problem in verdict.problems))
        sys.exit(1)
    shutil.rmtree(directory)
    print("1 passed, 0 failed")


if __name__ == "__main__":
    main()
