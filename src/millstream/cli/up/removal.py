"""`millstream up --remove NODE`: remove a broker for good, once it has no replicas."""

from __future__ import annotations

import os
import time
from pathlib import Path

from millstream.cli.support import declare
from millstream.cli.support.output import print_json
from millstream.cli.up.requests import change, known, parse_node, running_cluster
from millstream.client.connection import DEFAULT_TIMEOUT_S
from millstream.client.errors import ClientError
from millstream.core.errors import ErrorCode
from millstream.core.words import counted
from millstream.local import cluster_file
from millstream.local.cluster_file import BROKER, RUNNING, ClusterFile, Entry, State
from millstream.local.foreground import is_owned

_TIMEOUT_S = 10.0
# A killed broker stays registered until its session expires.
_SESSION_EXPIRES_S = 60.0
_POLL_S = 0.1
_MAX_LISTED = 5


def remove_broker(data: Path, word: str, as_json: bool) -> None:
    """Shut a broker down, unregister it, and rename its directory. Refuse if it has replicas."""
    kind, node = parse_node(word, "--remove")
    if kind != BROKER:
        raise declare.BadParameter("only brokers can be removed", param_hint="--remove")
    if not is_owned(data):
        raise ClientError(
            f"no cluster is running in {data}, and only a running cluster knows whether broker {node} has replicas",
            hint="start it with `millstream up`, or choose its directory with --data",
        )
    cluster = running_cluster(data)
    state = known(data, cluster, BROKER, node).state
    _refuse_replicas(cluster, node)
    was_running = state in RUNNING
    if was_running:
        change(data, BROKER, node, stopping=True)
    try:
        # An unregistered broker gets no new replicas, but may have got some just before.
        _unregister(running_cluster(data), node)
        _refuse_replicas(running_cluster(data), node)
    except ClientError:
        if was_running:
            change(data, BROKER, node, stopping=False)
        raise
    _report(node, _leave(data, node), as_json)


def _unregister(cluster: ClusterFile, node: int) -> None:
    """Unregister a stopped broker, once the controller has noticed that it is gone."""
    from millstream.client.admin.client import Admin

    bootstrap = ",".join(broker.address for broker in _others_up(cluster, node))
    deadline = time.monotonic() + _SESSION_EXPIRES_S
    with Admin(bootstrap, timeout_s=DEFAULT_TIMEOUT_S) as admin:
        while True:
            try:
                return admin.cluster.unregister(node)
            except ClientError as error:
                if error.code is not ErrorCode.INVALID_REQUEST or time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_S)


def _others_up(cluster: ClusterFile, node: int) -> list[Entry]:
    others = [
        broker for broker in cluster.brokers if broker.node_id != node and broker.state is State.UP
    ]
    if not others:
        raise ClientError(
            f"no other broker than {node} is up",
            hint="the last broker cannot be removed; start another one first",
        )
    return others


def _refuse_replicas(cluster: ClusterFile, node: int) -> None:
    others = _others_up(cluster, node)
    bootstrap = ",".join(broker.address for broker in others)
    partitions, max_replicas = replicas_on(bootstrap, node)
    if not partitions:
        return
    shown = ", ".join(partitions[:_MAX_LISTED]) + (
        " and others" if len(partitions) > _MAX_LISTED else ""
    )
    nodes = ",".join(str(broker.node_id) for broker in others)
    command = f"millstream reassign execute --brokers {nodes} --bootstrap {others[0].address}"
    if max_replicas <= len(others):
        hint = f"move them first: {command}"
    else:
        hint = (
            f"some have {max_replicas} replicas, but only {counted(len(others), 'broker')} would remain: "
            f"add a broker first (millstream up --add), "
            f"or use fewer replicas: {command} --replication-factor {len(others)}"
        )
    raise ClientError(
        f"broker {node} has replicas of {counted(len(partitions), 'partition')}: {shown}", hint=hint
    )


def replicas_on(bootstrap: str, node: int) -> tuple[list[str], int]:
    """Return the names of partitions with a replica on a broker, and their largest replica count.

    Replicas that are still being added count too.
    """
    from millstream.client.admin.client import Admin

    with Admin(bootstrap, timeout_s=DEFAULT_TIMEOUT_S) as admin:
        replicas = admin.reassignments.current()
    hosted = {tp: nodes for tp, nodes in sorted(replicas.items()) if node in nodes}
    return [f"{tp.topic}-{tp.partition}" for tp in hosted], max(
        map(len, hosted.values()), default=0
    )


def _leave(data: Path, node: int) -> Path:
    """Ask the supervisor to forget a broker, and return the new name of its directory."""
    with cluster_file.locked(data):
        cluster = running_cluster(data)
        entry = known(data, cluster, BROKER, node)
        if entry.state in RUNNING or entry.state is State.WANTED:
            raise ClientError(
                f"broker {node} was started again during the removal", hint="try again"
            )
        entry.state = State.LEAVING
        cluster_file.write(data, cluster)
        renamed = cluster_file.removed_name(data / f"{BROKER}-{node}")
    deadline = time.monotonic() + _TIMEOUT_S
    while (remaining := running_cluster(data).broker(node)) is not None:
        if remaining.state is not State.LEAVING or time.monotonic() > deadline:
            raise ClientError(
                f"broker {node} was not removed",
                hint="see the output of the `millstream up` that runs the cluster",
            )
        time.sleep(_POLL_S)
    return renamed


def _report(node: int, directory: Path, as_json: bool) -> None:
    if as_json:
        print_json(
            {"kind": BROKER, "node_id": node, "state": "removed", "directory": str(directory)}
        )
    else:
        print(
            f"removed broker {node}; its directory is now {os.path.relpath(directory)} and may be deleted"
        )
