"""`millstream up --remove NODE`: a broker leaves a cluster for good, once no partition has a replica on it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import typer

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
# A broker that was killed is live until its session ends.
_SESSION_ENDS_S = 60.0
_LOOK_EVERY_S = 0.1
_NAMED = 5


def ask_to_leave(data: Path, word: str, as_json: bool) -> None:
    """Refused while there are replicas on it; it is stopped in good order, forgotten, and its directory put aside."""
    kind, node = parse_node(word, "--remove")
    if kind != BROKER:
        raise typer.BadParameter("only brokers can be removed", param_hint="--remove")
    if not is_owned(data):
        raise ClientError(
            f"no cluster runs in {data}, and only one that runs can tell whether partitions are on broker {node}",
            hint="start it with `millstream up`, or name its --data",
        )
    cluster = running_cluster(data)
    state = known(data, cluster, BROKER, node).state
    _refuse_replicas(cluster, node)
    ran = state in RUNNING
    if ran:
        change(data, BROKER, node, stopping=True)
    try:
        # Once it is unregistered, no new topic has replicas on it. One created before that may have.
        _unregister(running_cluster(data), node)
        _refuse_replicas(running_cluster(data), node)
    except ClientError:
        if ran:
            change(data, BROKER, node, stopping=False)
        raise
    _tell(node, _leave(data, node), as_json)


def _unregister(cluster: ClusterFile, node: int) -> None:
    """Unregister a broker that has stopped, once the controller has noticed that it is gone."""
    from millstream.client.admin.client import Admin

    bootstrap = ",".join(one.address for one in _others_up(cluster, node))
    deadline = time.monotonic() + _SESSION_ENDS_S
    with Admin(bootstrap, timeout_s=DEFAULT_TIMEOUT_S) as admin:
        while True:
            try:
                return admin.cluster.unregister(node)
            except ClientError as error:
                if error.code is not ErrorCode.INVALID_REQUEST or time.monotonic() > deadline:
                    raise
            time.sleep(_LOOK_EVERY_S)


def _others_up(cluster: ClusterFile, node: int) -> list[Entry]:
    others = [one for one in cluster.brokers if one.node_id != node and one.state is State.UP]
    if not others:
        raise ClientError(
            f"no broker but {node} is up", hint="the last one cannot be removed; start another one first"
        )
    return others


def _refuse_replicas(cluster: ClusterFile, node: int) -> None:
    others = _others_up(cluster, node)
    bootstrap = ",".join(one.address for one in others)
    found, most = replicas_on(bootstrap, node)
    if not found:
        return
    named = ", ".join(found[:_NAMED]) + (" and others" if len(found) > _NAMED else "")
    nodes = ",".join(str(one.node_id) for one in others)
    move = f"millstream reassign execute --brokers {nodes} --bootstrap {others[0].address}"
    fewer = f"{move} --replication-factor {len(others)}"
    raise ClientError(
        f"broker {node} has replicas of {len(found)} partition{'s' * (len(found) > 1)}: {named}",
        hint=f"move them first: {move}"
        if most <= len(others)
        else f"some have {most} replicas, and {counted(len(others), 'broker')} would be left: add one first (millstream up --add), or keep fewer replicas: {fewer}",
    )


def replicas_on(bootstrap: str, node: int) -> tuple[list[str], int]:
    """The partitions that are on a broker, or on their way there, by their names, and how many replicas one of them has at most."""
    from millstream.client.admin.client import Admin

    with Admin(bootstrap, timeout_s=DEFAULT_TIMEOUT_S) as admin:
        replicas = admin.reassignments.current()
    there = {tp: nodes for tp, nodes in sorted(replicas.items()) if node in nodes}
    return [f"{tp.topic}-{tp.partition}" for tp in there], max(map(len, there.values()), default=0)


def _leave(data: Path, node: int) -> Path:
    """Where its directory is then."""
    with cluster_file.locked(data):
        cluster = running_cluster(data)
        entry = known(data, cluster, BROKER, node)
        if entry.state in RUNNING or entry.state is State.WANTED:
            raise ClientError(f"broker {node} has been started meanwhile", hint="try again")
        entry.state = State.LEAVING
        cluster_file.write(data, cluster)
        aside = cluster_file.aside(data / f"{BROKER}-{node}")
    deadline = time.monotonic() + _TIMEOUT_S
    while (there := running_cluster(data).broker(node)) is not None:
        if there.state is not State.LEAVING or time.monotonic() > deadline:
            raise ClientError(
                f"broker {node} is not removed", hint="the command that runs the cluster says why"
            )
        time.sleep(_LOOK_EVERY_S)
    return aside


def _tell(node: int, aside: Path, as_json: bool) -> None:
    if as_json:
        print_json({"kind": BROKER, "node_id": node, "state": "removed", "directory": str(aside)})
    else:
        print(f"broker {node} is removed; its directory is {os.path.relpath(aside)} now and may be deleted")
