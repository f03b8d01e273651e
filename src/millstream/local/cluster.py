"""A cluster on this machine: a supervisor with ZooKeeper servers and brokers as child processes.

Dead processes are not restarted. They are reported with the end of their log, and start again only
on a request in ``cluster.json``. At shutdown brokers stop one after another, so that each can hand
over its leaderships, but a slow broker delays the next only briefly. ZooKeeper stops last.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
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
from millstream.local.node import LocalNode
from millstream.local.probes import Probes
from millstream.local.process import READY_TIMEOUT_S, STOP_TIMEOUT_S, LocalProcess
from millstream.local.signals import uninterrupted
from millstream.local.supervised_file import SupervisedFile
from millstream.local.zookeeper import LocalZooKeeper, Member

# At shutdown the next broker stops when the previous one has exited, or after this time. By then
# its leaderships are handed over as far as possible, and its final writes need no waiting.
HAND_OVER_S = 2.0
STOP_ALL_TIMEOUT_S = 60.0
_REMIND_EVERY_S = 5.0
_REPLICAS = 3


OnChange = Callable[[LocalNode], None]
OnRemark = Callable[[str], None]


class LocalCluster:
    """Starts, watches and stops the processes of a cluster.

    Calls ``on_change(node)`` after every change of state, and ``on_remark(text)`` with other news
    for the user. Use it from the main thread only, because children end with the thread that made
    them.
    """

    def __init__(
        self,
        directory: Path,
        cluster: ClusterFile,
        settings: Mapping[str, str],
        on_change: OnChange,
        on_remark: OnRemark,
    ) -> None:
        self.directory = directory
        self.cluster = cluster
        self._settings = dict(settings)
        self._on_change = on_change
        self._remark = on_remark
        self._probes = Probes()
        self._file = SupervisedFile(directory, cluster, on_remark)
        self._started = False
        self.zookeepers = [self._zookeeper(entry) for entry in cluster.zookeepers]
        self.brokers = [self._broker(entry) for entry in cluster.brokers]

    @property
    def nodes(self) -> list[LocalNode]:
        return self.zookeepers + self.brokers

    def _zookeeper(self, entry: ZooKeeperEntry) -> LocalNode:
        ensemble = [
            Member(server.node_id, server.port, server.peer_port, server.election_port)
            for server in self.cluster.zookeepers
        ]
        process = LocalZooKeeper(
            self.directory / f"zookeeper-{entry.node_id}",
            entry.port,
            node_id=entry.node_id,
            ensemble=ensemble if len(ensemble) > 1 else (),
        )
        return self._node(ZOOKEEPER, entry, process, process.data_dir)

    def _broker(self, entry: Entry) -> LocalNode:
        settings = (
            cluster_settings(len(self.cluster.brokers))
            | self._settings
            | {"node.id": str(entry.node_id), "zookeeper.connect": self.cluster.zookeeper_connect}
        )
        process = LocalBroker(self.directory / f"broker-{entry.node_id}", settings, port=entry.port)
        return self._node(BROKER, entry, process, process.data_dir)

    def _node(self, kind: str, entry: Entry, process: LocalProcess, data: Path) -> LocalNode:
        process.tied = True
        entry.data, entry.log = str(data), str(process.log_file)
        return LocalNode(kind, entry, process)

    # ---- starting ----

    def start(self) -> None:
        """Start ZooKeeper first, then all brokers at once. Raise ClientError if a node fails.

        The caller then stops all nodes.
        """
        self.cluster.supervisor = os.getpid()
        for nodes in (self.zookeepers, self.brokers):
            for node in nodes:
                self._spawn(node)
            while not all(node.entry.state is State.UP for node in nodes):
                self.poll()
                for node in nodes:
                    if node.entry.state is State.DEAD:
                        raise ClientError(f"{node.name} did not start: {_last_line(node)}")
                time.sleep(0.02)
        self._started = True

    def _spawn(self, node: LocalNode) -> None:
        node.process.spawn()
        node.spawned_s = time.monotonic()
        node.tail, node.probe = "", None
        node.entry.pid = node.process.pid
        self._change(node, State.STARTING)

    def _change(self, node: LocalNode, state: State) -> None:
        node.entry.state = state
        if state not in RUNNING:
            node.entry.pid = None
        self._save()
        self._on_change(node)

    def _save(self) -> None:
        self._file.save(self._take_requests)

    # ---- watching ----

    def poll(self) -> None:
        """Check once for dead, ready and silent nodes, and for requests in the file."""
        with uninterrupted():
            if self._file.changed:
                self._save()
            for node in list(self.nodes):
                self._poll_node(node)

    def _poll_node(self, node: LocalNode) -> None:
        state = node.entry.state
        if state is State.WANTED:
            self._restart(node)
        elif state is State.UNWANTED:
            self._ask_to_stop(node)
        elif state is State.STOPPING:
            self._wait_for_exit(node, STOP_TIMEOUT_S)
        elif state in RUNNING and not node.process.running:
            node.tail = node.process.tail()
            node.can_start_again = self._started
            self._change(node, State.DEAD)
        elif state is State.STARTING:
            self._wait_until_ready(node)
        elif state in RUNNING:
            self._probe(node)

    def _restart(self, node: LocalNode) -> None:
        """Start a node; report a failure, without effect on the others."""
        try:
            self._spawn(node)
        except ClientError as error:
            node.tail, node.process.exit_code = str(error), None
            self._change(node, State.STARTING)  # replaces the request in the file
            self._change(node, State.DEAD)

    def _wait_until_ready(self, node: LocalNode) -> None:
        if node.kind == BROKER and not node.process.is_ready():
            if time.monotonic() - node.spawned_s > READY_TIMEOUT_S:
                node.process.kill()
            return
        self._probe(node)

    def _probe(self, node: LocalNode) -> None:
        result = self._probes.poll(node)
        if result is None:
            return
        if not result.answers:
            if node.entry.state is State.UP:
                self._change(node, State.SILENT)
        elif node.entry.state is not State.UP or result.mode != node.mode:
            node.mode = result.mode
            self._change(node, State.UP)

    def _take_requests(self, written: ClusterFile) -> None:
        """Take over requests from the file: add or remove a broker, start or stop a node."""
        for added in written.brokers:
            if added.state is State.WANTED and self.cluster.broker(added.node_id) is None:
                self.cluster.brokers.append(added)
                self.brokers.append(self._broker(added))
        for node in self.nodes:
            request = written.find(node.kind, node.entry.node_id)
            if (
                request is not None
                and request.state is State.LEAVING
                and node.entry.state not in RUNNING
            ):
                self._forget(node)
            elif request is not None:
                _take_request(node, request.state)
        self.cluster.bootstrap = ",".join(broker.address for broker in self.cluster.brokers)

    def _forget(self, node: LocalNode) -> None:
        """Forget a removed broker. Rename its directory, so that a new broker does not reuse it."""
        directory = node.process.directory
        renamed = cluster_file.removed_name(directory)
        try:
            if directory.exists():
                directory.rename(renamed)
        except OSError as error:
            node.entry.state = State.STOPPED
            self._remark(
                f"{node.name} was not removed: cannot rename {directory} to {renamed}: {error.strerror}"
            )
            return
        node.entry.state = State.LEAVING
        self.brokers = [broker for broker in self.brokers if broker is not node]
        self.cluster.brokers = [entry for entry in self.cluster.brokers if entry is not node.entry]
        self._remark(f"removed {node.name}; its directory is now {renamed} and may be deleted")

    # ---- stopping ----

    def _ask_to_stop(self, node: LocalNode) -> None:
        with uninterrupted():
            node.stop_requested_s = time.monotonic()
            self._change(node, State.STOPPING)
            node.process.ask_to_stop()

    def _wait_for_exit(self, node: LocalNode, timeout_s: float) -> None:
        if node.process.running and time.monotonic() - node.stop_requested_s > timeout_s:
            self._remark(
                f"killing {node.name}, which did not stop within {timeout_s:.0f} s; see {node.entry.log}"
            )
            node.process.kill()
        if not node.process.running:
            with uninterrupted():
                self._change(node, State.STOPPED)

    def stop(self) -> None:
        """Shut the cluster down cleanly; dead nodes stay dead."""
        self.cluster.supervisor = None  # so that no more requests are written
        brokers = [node for node in self.brokers if node.entry.state in RUNNING]
        if brokers:
            self._remark(
                f"stopping {_listed(brokers)}{self._stop_remark()}; press Ctrl-C again to kill the remaining processes"
            )
        self._stop_all(brokers, HAND_OVER_S if self._can_hand_over() else 0.0)
        self._stop_all([node for node in self.zookeepers if node.entry.state in RUNNING], 0.0)
        self._end()

    def _can_hand_over(self) -> bool:
        """Return whether brokers can hand over; an external ZooKeeper is assumed to respond."""
        return not self.zookeepers or any(node.entry.state is State.UP for node in self.zookeepers)

    def _stop_remark(self) -> str:
        if not self._can_hand_over():
            return " at once, without handing over leadership, because ZooKeeper does not respond"
        return ", then ZooKeeper" if self.zookeepers else ""

    def _stop_all(self, nodes: Sequence[LocalNode], apart_s: float) -> None:
        """Stop nodes one after another, each at most ``apart_s`` after the previous one."""
        begun_s = reminded_s = next_s = time.monotonic()
        waiting = [node for node in nodes if node.entry.state is not State.STOPPING]
        while left := [node for node in nodes if node.entry.state in RUNNING]:
            now_s = time.monotonic()
            stopping = [node for node in left if node not in waiting]
            while waiting and (not stopping or now_s >= next_s):
                stopping.append(waiting.pop(0))
                self._ask_to_stop(stopping[-1])
                next_s = now_s + apart_s
            for node in stopping:
                self._wait_for_exit(node, STOP_ALL_TIMEOUT_S)
            if now_s - reminded_s >= _REMIND_EVERY_S:
                reminded_s = now_s
                self._remark(
                    f"waiting for {_listed(left)} to stop ({now_s - begun_s:.0f} s so far)"
                )
            time.sleep(0.02)

    def _end(self) -> None:
        self._probes.close()
        self.cluster.supervisor = None
        self._file.save(None)

    def kill(self) -> None:
        """Kill all remaining processes at once, as the last resort."""
        for node in self.nodes:
            node.process.kill()
            if node.entry.state in RUNNING:
                node.entry.state, node.entry.pid = State.STOPPED, None
                self._on_change(node)
        self._end()


def cluster_settings(brokers: int) -> dict[str, str]:
    """Return settings for up to three replicas, with writes acknowledged by all but one of them.

    Internal topics need no settings: they get replicas automatically, also when brokers are added.
    """
    replicas = min(_REPLICAS, brokers)
    return {
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(max(replicas - 1, 1)),
    }


def _take_request(node: LocalNode, requested: State) -> None:
    if (requested is State.WANTED and node.entry.state not in RUNNING) or (
        requested is State.UNWANTED and node.entry.state in (State.UP, State.SILENT)
    ):
        node.entry.state = requested


def _listed(nodes: Sequence[LocalNode]) -> str:
    return ", ".join(node.name for node in nodes)


def _last_line(node: LocalNode) -> str:
    lines = node.tail.strip().splitlines()
    return lines[-1] if lines else f"see {node.entry.log}"
