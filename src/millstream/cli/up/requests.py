"""Requests of another process to a running `millstream up`: add, start or stop a node.

A request is written into ``cluster.json``, and so is the response.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from millstream.cli.support import declare
from millstream.cli.support.output import note, print_json
from millstream.client.errors import ClientError
from millstream.local import cluster_file
from millstream.local.cluster_file import BROKER, RUNNING, ZOOKEEPER, ClusterFile, Entry, State
from millstream.local.foreground import is_owned, refuse_used_ports
from millstream.local.zookeeper import HOST, free_ports

_POLL_S = 0.1
_TIMEOUT_S = 60.0


def new_broker(cluster: ClusterFile) -> Entry:
    node_id = max((broker.node_id for broker in cluster.brokers), default=-1) + 1
    return Entry(node_id, HOST, broker_port(cluster, node_id))


def broker_port(cluster: ClusterFile, node_id: int) -> int:
    return cluster.port + node_id if cluster.port else free_ports(1)[0]


def parse_node(word: str, option: str) -> tuple[str, int]:
    """Parse a node: 2 or broker-2 is a broker, zookeeper-2 a ZooKeeper server."""
    kind, _, number = word.rpartition("-")
    if kind not in ("", BROKER, ZOOKEEPER) or not (number.isascii() and number.isdigit()):
        raise declare.BadParameter(
            f"{word!r} is not a broker (2) or a ZooKeeper server (zookeeper-2)", param_hint=option
        )
    return kind or BROKER, int(number)


def check_request(requests: dict[str, bool], start_options: dict[str, object]) -> None:
    """Raise a usage error for several requests at once, or for options of a start."""
    options = [option for option, chosen in requests.items() if chosen]
    if len(options) > 1:
        raise declare.BadParameter(f"{' and '.join(options)} cannot be used together")
    if unused := [option for option, value in start_options.items() if value is not None]:
        raise declare.BadParameter(
            f"{unused[0]} cannot be used with {options[0]}: the running cluster keeps the options of its start"
        )


def send_request(data: Path, start: str | None, stop: str | None, as_json: bool) -> None:
    """Write a request to start, stop or (with neither) add a node, and wait until it is done."""
    word = stop if stop is not None else start
    kind, node = (
        (BROKER, None)
        if word is None
        else parse_node(word, "--stop" if stop is not None else "--start")
    )
    _print(kind, change(data, kind, node, stopping=stop is not None), as_json)


def change(data: Path, kind: str, node: int | None, *, stopping: bool) -> Entry:
    """Have a node started (None: a new broker) or stopped, and return its new entry."""
    running_cluster(data)  # raises if there is no directory to lock
    with cluster_file.locked(data):
        cluster = running_cluster(data)
        entry = new_broker(cluster) if node is None else known(data, cluster, kind, node)
        _request(cluster, kind, entry, stopping=stopping)
        cluster_file.write(data, cluster)
    return _await(data, kind, entry.node_id, State.STOPPED if stopping else State.UP)


def running_cluster(data: Path) -> ClusterFile:
    if not is_owned(data):
        raise ClientError(
            f"no cluster is running in {data}",
            hint="start it with `millstream up`, or choose its directory with --data",
        )
    cluster = cluster_file.read(data)
    if cluster is None or cluster.supervisor is None:
        raise ClientError(f"the cluster in {data} is still starting, or stopping", hint="try again")
    return cluster


def known(data: Path, cluster: ClusterFile, kind: str, node: int) -> Entry:
    entry = cluster.find(kind, node)
    if entry is None:
        noun = "broker" if kind == BROKER else "ZooKeeper server"
        raise ClientError(
            f"this cluster has no {noun} {node}", hint=f"see {data / cluster_file.FILE}"
        )
    return entry


def _request(cluster: ClusterFile, kind: str, entry: Entry, *, stopping: bool) -> None:
    name = f"{kind} {entry.node_id}"
    if stopping and entry.state not in (State.UP, State.SILENT):
        raise ClientError(f"{name} is not running", hint="start it with --start")
    if not stopping and entry.state in RUNNING:
        raise ClientError(f"{name} is already running", hint="stop it with --stop first")
    if not stopping:
        refuse_used_ports(HOST, {name: entry.port}, "stop the process that uses it")
    entry.state = State.UNWANTED if stopping else State.WANTED
    if kind == BROKER and cluster.broker(entry.node_id) is None:
        cluster.brokers.append(entry)


def _await(data: Path, kind: str, node_id: int, state: State) -> Entry:
    name = f"{kind} {node_id}"
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        cluster = cluster_file.read(data)
        if cluster is None or cluster.supervisor is None:
            raise ClientError(
                f"the cluster in {data} was stopped", hint="start it with `millstream up`"
            )
        entry = cluster.find(kind, node_id)
        if entry is not None and entry.state is state:
            return entry
        if entry is not None and entry.state is State.DEAD:
            raise ClientError(f"{name} did not start", hint=f"see {entry.log}")
        if entry is not None and state is State.UP and _waits_for_others(cluster, kind, entry):
            note(
                "it serves no clients until a majority of the ZooKeeper servers run: start the others too"
            )
            return entry
        time.sleep(_POLL_S)
    raise ClientError(f"{name} is not {state.value} after {_TIMEOUT_S:.0f} s", hint="see its log")


def _waits_for_others(cluster: ClusterFile, kind: str, entry: Entry) -> bool:
    """Return whether a ZooKeeper server cannot be up yet, because its ensemble has no majority."""
    if kind != ZOOKEEPER or entry.pid is None:
        return False
    running = sum(
        server.state in RUNNING and server.pid is not None for server in cluster.zookeepers
    )
    return 2 * running <= len(cluster.zookeepers)


def _print(kind: str, entry: Entry, as_json: bool) -> None:
    if as_json:
        node = {"kind": kind, "node_id": entry.node_id, "address": entry.address}
        print_json(node | {"state": entry.state.value, "pid": entry.pid})
    else:
        log = os.path.relpath(entry.log)
        print(f"{kind} {entry.node_id} is {entry.state.value}: {entry.address}, log {log}")
