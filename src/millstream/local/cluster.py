"""A cluster on this machine: ZooKeeper servers and brokers as child processes of one, which starts, watches and stops them.

Nothing is started again by itself: a process that died is told, with the last lines of its log, and stays away until somebody asks
for it in ``cluster.json``. All is stopped in good order: brokers one after another, so that each can hand over what it leads, but none waits
for long for the one before; and ZooKeeper when nobody needs it any more.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from millstream.client.errors import ClientError
from millstream.local import cluster_file
from millstream.local.broker import LocalBroker
from millstream.local.cluster_file import (
    BROKER,
    RUNNING,
    ZOOKEEPER,
    ClusterFile,
    Entry,
    State,
    ZooKeeperEntry,
)
from millstream.local.process import READY_TIMEOUT_S, STOP_TIMEOUT_S, LocalProcess
from millstream.local.zookeeper import LocalZooKeeper, Member, server_mode

PROBE_EVERY_S = 1.0
PROBE_TIMEOUT_S = 2.0
# When all stop, the next broker is asked when the one before has ended, or after this: what that one led is with others by then, as far as it can
# be, and what it still has to write need not be waited for.
HAND_OVER_S = 2.0
STOP_ALL_TIMEOUT_S = 60.0
_REMIND_EVERY_S = 5.0
_REPLICAS = 3

# ApiVersions, version 0, correlation id 1, no client id: the first thing that any client asks.
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)


def broker_answers(host: str, port: int, timeout_s: float = PROBE_TIMEOUT_S) -> bool:
    """Whether a broker accepts a connection and answers ApiVersions on it."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as peer:
            peer.sendall(_API_VERSIONS)
            head = b""
            while len(head) < 10 and (more := peer.recv(10 - len(head))):
                head += more
    except OSError:
        return False
    return len(head) == 10 and struct.unpack(">iih", head)[1:] == (1, 0)


@dataclass(slots=True)
class Part:
    """A process of the cluster, its row in the file, and what was last seen of it."""

    kind: str  # broker or zookeeper
    entry: Entry
    process: LocalProcess
    mode: str = ""  # leader, follower, standalone: ZooKeeper's only
    tail: str = ""
    can_start_again: bool = True  # not where all of it is ending because this one has died
    spawned_s: float = 0.0
    asked_to_stop_s: float = 0.0
    probe: Future[str | None] | None = field(default=None, repr=False)
    probed_s: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.kind} {self.entry.node_id}"


Told = Callable[[Part], None]
Remark = Callable[[str], None]


class LocalCluster:
    """``told(part)`` hears of every change, ``remark(text)`` of what else somebody who watches wants to know. Used from one thread, the main one: children end with the thread that made them."""

    def __init__(
        self,
        directory: Path,
        cluster: ClusterFile,
        settings: Mapping[str, str],
        told: Told,
        remark: Remark,
    ) -> None:
        self.directory = directory
        self.cluster = cluster
        self._settings = dict(settings)
        self._told = told
        self._remark = remark
        self._probes = ThreadPoolExecutor(thread_name_prefix="probe")
        self._seen_ns = 0  # when the file was written, as far as this process has
        self._complaints: set[str] = set()  # about the file, as told
        self._started = False
        self.zookeepers = [self._zookeeper(one) for one in cluster.zookeepers]
        self.brokers = [self._broker(one) for one in cluster.brokers]

    @property
    def parts(self) -> list[Part]:
        return self.zookeepers + self.brokers

    def _zookeeper(self, entry: ZooKeeperEntry) -> Part:
        ensemble = [
            Member(one.node_id, one.port, one.peer_port, one.election_port) for one in self.cluster.zookeepers
        ]
        process = LocalZooKeeper(
            self.directory / f"zookeeper-{entry.node_id}",
            entry.port,
            node_id=entry.node_id,
            ensemble=ensemble if len(ensemble) > 1 else (),
        )
        return self._part(ZOOKEEPER, entry, process, process.data_dir)

    def _broker(self, entry: Entry) -> Part:
        settings = (
            cluster_settings(len(self.cluster.brokers))
            | self._settings
            | {"node.id": str(entry.node_id), "zookeeper.connect": self.cluster.zookeeper_connect}
        )
        process = LocalBroker(self.directory / f"broker-{entry.node_id}", settings, port=entry.port)
        return self._part(BROKER, entry, process, process.data_dir)

    def _part(self, kind: str, entry: Entry, process: LocalProcess, data: Path) -> Part:
        process.tied = True
        entry.data, entry.log = str(data), str(process.log_file)
        return Part(kind, entry, process)

    # ---- starting -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """ZooKeeper first, then all brokers at once. ClientError where one of them does not come up: then all are stopped."""
        self.cluster.supervisor = os.getpid()
        for parts in (self.zookeepers, self.brokers):
            for part in parts:
                self._spawn(part)
            while not all(part.entry.state is State.UP for part in parts):
                self.look()
                for part in parts:
                    if part.entry.state is State.DEAD:
                        raise ClientError(f"{part.name} did not come up: {_last_line(part)}")
                time.sleep(0.02)
        self._started = True

    def _spawn(self, part: Part) -> None:
        part.process.spawn()
        part.spawned_s = time.monotonic()
        part.tail, part.probe = "", None
        part.entry.pid = part.process.pid
        self._change(part, State.STARTING)

    def _change(self, part: Part, state: State) -> None:
        part.entry.state = state
        if state not in RUNNING:
            part.entry.pid = None
        self._save()
        self._told(part)

    def _save(self) -> None:
        """Leaves in the file what somebody else has asked for meanwhile. Trouble with the file is told, and no reason to stop anything: what
        runs is known without it."""
        try:
            with cluster_file.locked(self.directory):
                self._take_requests()
                self._write()
        except OSError as error:
            self._cannot_write(error)

    def _write(self) -> None:
        cluster_file.write(self.directory, self.cluster)
        self._seen_ns = self._changed_ns()
        self._complaints.clear()

    def _cannot_write(self, error: OSError) -> None:
        self._seen_ns = -1  # so that the next look tries again
        path = self.directory / cluster_file.FILE
        self._complain(f"cannot write {path}: {error.strerror}; all goes on, but nobody can ask for changes")

    def _complain(self, text: str) -> None:
        """Once, however often it is met until the file is written again."""
        if text not in self._complaints:
            self._complaints.add(text)
            self._remark(text)

    # ---- watching -------------------------------------------------------------------------------------------

    def look(self) -> None:
        """One round: who died, who became ready, who answers, and what is asked for in the file."""
        if self._changed_ns() != self._seen_ns:
            self._save()
        for part in list(self.parts):
            self._look_at(part)

    def _look_at(self, part: Part) -> None:
        state = part.entry.state
        if state is State.WANTED:
            self._start_again(part)
        elif state is State.UNWANTED:
            self._ask_to_stop(part)
        elif state is State.STOPPING:
            self._wait_for_end(part, STOP_TIMEOUT_S)
        elif state in RUNNING and not part.process.running:
            part.tail = part.process.tail()
            part.can_start_again = self._started
            self._change(part, State.DEAD)
        elif state is State.STARTING:
            self._wait_for(part)
        elif state in RUNNING:
            self._probe(part)

    def _start_again(self, part: Part) -> None:
        """What cannot be started is told; the others go on."""
        try:
            self._spawn(part)
        except ClientError as error:
            part.tail, part.process.exit_code = str(error), None
            self._change(part, State.STARTING)  # in place of the request, which would be taken again
            self._change(part, State.DEAD)

    def _wait_for(self, part: Part) -> None:
        if part.kind == BROKER and not part.process.is_ready():
            if time.monotonic() - part.spawned_s > READY_TIMEOUT_S:
                part.process.kill()
            return
        self._probe(part)

    def _probe(self, part: Part) -> None:
        """In a thread: a process that is paused answers late or never, and must not hold up the others."""
        now_s = time.monotonic()
        if part.probe is None:
            starting = part.entry.state is State.STARTING
            if starting or now_s - part.probed_s >= PROBE_EVERY_S:
                part.probed_s = now_s
                part.probe = self._probes.submit(_ask, part.kind, part.entry.host, part.entry.port)
        elif part.probe.done():
            mode, part.probe = part.probe.result(), None
            self._probed(part, mode)

    def _probed(self, part: Part, mode: str | None) -> None:
        if mode is None:
            if part.entry.state is State.UP:
                self._change(part, State.SILENT)
        elif part.entry.state is not State.UP or mode != part.mode:
            part.mode = mode
            self._change(part, State.UP)

    def _changed_ns(self) -> int:
        try:
            return (self.directory / cluster_file.FILE).stat().st_mtime_ns
        except OSError:
            return 0

    def _take_requests(self) -> None:
        """Brokers that somebody has added or removed, and processes that somebody has asked to be started or stopped."""
        try:
            there = cluster_file.read(self.directory)
        except ClientError as error:
            self._complain(f"{error.message}; it is written anew, and all goes on")
            return
        if there is None or there.supervisor != os.getpid():
            return
        for added in there.brokers:
            if added.state is State.WANTED and self.cluster.broker(added.node_id) is None:
                self.cluster.brokers.append(added)
                self.brokers.append(self._broker(added))
        for part in self.parts:
            asked = there.find(part.kind, part.entry.node_id)
            if asked is not None and asked.state is State.LEAVING and part.entry.state not in RUNNING:
                self._forget(part)
            elif asked is not None:
                _take_request(part, asked.state)
        self.cluster.bootstrap = ",".join(one.address for one in self.cluster.brokers)

    def _forget(self, part: Part) -> None:
        """A broker that has left for good. Its directory is put aside: a later one of the same number must not take it for its own."""
        directory = part.process.directory
        aside = cluster_file.aside(directory)
        try:
            if directory.exists():
                directory.rename(aside)
        except OSError as error:
            part.entry.state = State.STOPPED
            self._remark(f"{part.name} is not removed: cannot move {directory} to {aside}: {error.strerror}")
            return
        part.entry.state = State.LEAVING
        self.brokers = [one for one in self.brokers if one is not part]
        self.cluster.brokers = [one for one in self.cluster.brokers if one is not part.entry]
        self._remark(f"{part.name} is removed; its directory is {aside} now and may be deleted")

    # ---- stopping -------------------------------------------------------------------------------------------

    def _ask_to_stop(self, part: Part) -> None:
        part.asked_to_stop_s = time.monotonic()
        self._change(part, State.STOPPING)
        part.process.ask_to_stop()

    def _wait_for_end(self, part: Part, timeout_s: float) -> None:
        if part.process.running and time.monotonic() - part.asked_to_stop_s > timeout_s:
            self._remark(
                f"{part.name} did not stop within {timeout_s:.0f} s and is killed; see {part.entry.log}"
            )
            part.process.kill()
        if not part.process.running:
            self._change(part, State.STOPPED)

    def stop(self) -> None:
        """All of it, in good order; what is dead stays so."""
        self.cluster.supervisor = None  # nobody asks for anything any more
        brokers = [part for part in self.brokers if part.entry.state in RUNNING]
        if brokers:
            self._remark(f"stopping {_listed(brokers)}{self._how()}; Ctrl-C again kills what is left")
        self._stop_all(brokers, HAND_OVER_S if self._can_hand_over() else 0.0)
        self._stop_all([part for part in self.zookeepers if part.entry.state in RUNNING], 0.0)
        self._end()

    def _can_hand_over(self) -> bool:
        """Somebody else's ZooKeeper may be there; the brokers find out."""
        return not self.zookeepers or any(part.entry.state is State.UP for part in self.zookeepers)

    def _how(self) -> str:
        if not self._can_hand_over():
            return " at once: ZooKeeper does not answer, so that nothing can be handed over"
        return ", then ZooKeeper" if self.zookeepers else ""

    def _stop_all(self, parts: Sequence[Part], apart_s: float) -> None:
        """One after another, but none later than ``apart_s`` after the one before."""
        begun_s = reminded_s = next_s = time.monotonic()
        unasked = [part for part in parts if part.entry.state is not State.STOPPING]
        while left := [part for part in parts if part.entry.state in RUNNING]:
            now_s = time.monotonic()
            asked = [part for part in left if part not in unasked]
            while unasked and (not asked or now_s >= next_s):
                asked.append(unasked.pop(0))
                self._ask_to_stop(asked[-1])
                next_s = now_s + apart_s
            for part in asked:
                self._wait_for_end(part, STOP_ALL_TIMEOUT_S)
            if now_s - reminded_s >= _REMIND_EVERY_S:
                reminded_s = now_s
                self._remark(f"waiting for {_listed(left)} to stop, {now_s - begun_s:.0f} s so far")
            time.sleep(0.02)

    def _end(self) -> None:
        self._probes.shutdown(wait=False, cancel_futures=True)
        self.cluster.supervisor = None
        try:
            with cluster_file.locked(self.directory):
                self._write()
        except OSError as error:
            self._cannot_write(error)

    def kill(self) -> None:
        """What is still there, at once; the last resort."""
        for part in self.parts:
            part.process.kill()
            if part.entry.state in RUNNING:
                part.entry.state, part.entry.pid = State.STOPPED, None
                self._told(part)
        self._end()


def cluster_settings(brokers: int) -> dict[str, str]:
    """Three replicas where there are brokers for them, and writes that two of them have. Internal topics are not named: they get
    theirs by themselves, also when brokers are added."""
    replicas = min(_REPLICAS, brokers)
    return {
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(max(replicas - 1, 1)),
    }


def _take_request(part: Part, asked: State) -> None:
    if (asked is State.WANTED and part.entry.state not in RUNNING) or (
        asked is State.UNWANTED and part.entry.state in (State.UP, State.SILENT)
    ):
        part.entry.state = asked


def _listed(parts: Sequence[Part]) -> str:
    return ", ".join(part.name for part in parts)


def _ask(kind: str, host: str, port: int) -> str | None:
    if kind == ZOOKEEPER:
        return server_mode(host, port, PROBE_TIMEOUT_S)
    return "" if broker_answers(host, port) else None


def _last_line(part: Part) -> str:
    lines = part.tail.strip().splitlines()
    return lines[-1] if lines else f"see {part.entry.log}"
