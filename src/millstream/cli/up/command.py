"""``millstream up``: a cluster in the foreground, ZooKeeper and brokers, each a process of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.support.options import Format, OutputFormat, pairs
from millstream.cli.support.output import note
from millstream.cli.up.needs import check_installed
from millstream.cli.up.removal import ask_to_leave
from millstream.cli.up.requests import ask_for, broker_port, check_request, new_broker
from millstream.cli.up.stale_processes import wait_for_those_before
from millstream.cli.up.status import Status, status_for
from millstream.client.errors import ClientError
from millstream.core.words import counted
from millstream.local import cluster_file
from millstream.local.broker import has_records
from millstream.local.cluster import LocalCluster
from millstream.local.cluster_file import (
    BROKER,
    ZOOKEEPER,
    ClusterFile,
    Entry,
    State,
    ZooKeeperEntry,
)
from millstream.local.foreground import (
    own_directory,
    refuse_owned,
    refuse_used_ports,
    stopped_by_signals,
)
from millstream.local.zookeeper import (
    DEFAULT_PORT,
    HOST,
    SERVER,
    free_ports,
    has_tree,
    refuse_member_alone,
)

app = typer.Typer(add_completion=False, rich_markup_mode=None)

DEFAULT_BROKERS = 3
DEFAULT_BROKER_PORT = 9092
# From the port of a server's clients to those of its peers and of elections: 2181, 2888, 3888, as everywhere.
_PEER_STEP, _ELECTION_STEP = 707, 1707
_LOOK_EVERY_S = 0.1
# Settings that differ from broker to broker, or that it has to know itself, and what says them here.
_OWN_SETTINGS = {
    "node.id": "brokers are numbered from 0",
    "broker.id": "brokers are numbered from 0",
    "listeners": "--port says where brokers listen",
    "log.dirs": "--data says where everything is kept",
    "log.dir": "--data says where everything is kept",
    "zookeeper.connect": "--zookeeper names one",
}


@app.command()
def up(
    brokers: Annotated[int | None, typer.Option(min=1, help="How many brokers; 3, or as before.")] = None,
    zookeepers: Annotated[
        int | None, typer.Option(min=1, help="How many ZooKeeper servers; 1, or as before.")
    ] = None,
    zookeeper: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Use this ZooKeeper: HOST:PORT[,HOST:PORT...][/CHROOT]."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="The port of broker 0, 9092; the next ones follow. 0 picks some."
        ),
    ] = None,
    zookeeper_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The port of the first server, 2181; 0 picks some.")
    ] = None,
    data: Annotated[Path, typer.Option(metavar="DIR", help="Where everything is kept.")] = Path("cluster"),
    set: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting of every broker.")
    ] = None,
    add: Annotated[bool, typer.Option("--add", help="Add a broker to the cluster that runs in DIR.")] = False,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="NODE", help="Start one of it that is not running: a broker (2) or zookeeper-2."
        ),
    ] = None,
    stop: Annotated[
        str | None, typer.Option(metavar="NODE", help="Stop one of it: a broker (2) or zookeeper-2.")
    ] = None,
    remove: Annotated[
        str | None,
        typer.Option(metavar="NODE", help="Take a broker out of it for good; it must not have replicas."),
    ] = None,
    format: OutputFormat = Format.table,
) -> None:
    """Start a cluster on this machine and run it in the foreground; Ctrl-C or SIGTERM stops all of it in good order; Ctrl-C again
    kills what is left.

    DIR/cluster.json says what runs where. The next start takes up the data and the ports of the last one.
    """
    as_json = format is Format.json
    data = data.resolve()
    nodes = {"--start": start, "--stop": stop, "--remove": remove}
    asked = {"--add": add} | {word: node is not None for word, node in nodes.items()}
    if any(asked.values()):
        how = {"--brokers": brokers, "--zookeepers": zookeepers, "--zookeeper": zookeeper, "--port": port}
        check_request(asked, {**how, "--zookeeper-port": zookeeper_port, "--set": set or None})
        if remove is not None:
            ask_to_leave(data, remove, as_json)
        else:
            ask_for(data, start, stop, as_json)
        return
    settings = pairs(set, "--set")
    _refuse_own_settings(settings)
    with own_directory(data, "a cluster"), stopped_by_signals():
        wait_for_those_before(data)
        wanted = _plan(data, brokers, zookeepers, zookeeper, port, zookeeper_port)
        check_installed(own_zookeeper=bool(wanted.zookeepers))
        _check_servers(data, wanted)
        _check_ports(wanted)
        _run(data, wanted, settings, as_json)


def _refuse_own_settings(settings: Mapping[str, str]) -> None:
    """They would be ignored, or brokers be ready where nobody looks for them."""
    for name in settings:
        if name in _OWN_SETTINGS:
            raise typer.BadParameter(
                f"{name} is not for every broker the same: {_OWN_SETTINGS[name]}", param_hint="--set"
            )


# ---- planning ---------------------------------------------------------------------------------------------------


def _plan(
    data: Path,
    brokers: int | None,
    zookeepers: int | None,
    zookeeper: str | None,
    port: int | None,
    zookeeper_port: int | None,
) -> ClusterFile:
    """What is to run: what ran here before, as far as the options do not say otherwise."""
    cluster = cluster_file.read(data) or ClusterFile(port=DEFAULT_BROKER_PORT if port is None else port)
    _finish_removals(data, cluster)
    if port is not None and port != cluster.port:
        cluster.port = port
        for one in cluster.brokers:
            one.port = broker_port(cluster, one.node_id)
    _find_brokers(data, cluster)
    _forget_unused_zookeepers(data, cluster, zookeepers, zookeeper)
    _refuse_other_zookeepers(data, cluster, zookeepers, zookeeper)
    _plan_zookeeper(cluster, zookeepers, zookeeper, zookeeper_port)
    _plan_brokers(data, cluster, brokers)
    for entry in (*cluster.brokers, *cluster.zookeepers):
        entry.pid, entry.state = None, State.STOPPED
    cluster.bootstrap = ",".join(one.address for one in cluster.brokers)
    return cluster


def _finish_removals(data: Path, cluster: ClusterFile) -> None:
    """Of brokers that left while the command that ran the cluster was killed. Their directories go aside, as there, or they would be found again."""
    for one in [one for one in cluster.brokers if one.state is State.LEAVING]:
        cluster.brokers.remove(one)
        directory = data / f"{BROKER}-{one.node_id}"
        aside = cluster_file.aside(directory)
        try:
            directory.rename(aside)
            note(f"broker {one.node_id} was removed; its directory is {aside} now and may be deleted")
        except FileNotFoundError:
            pass  # it is aside already
        except OSError as error:
            raise ClientError(
                f"broker {one.node_id} was removed, and {directory} cannot be moved to {aside}: {error.strerror}",
                hint="move it by hand",
            ) from None


def _find_brokers(data: Path, cluster: ClusterFile) -> None:
    """Those with data that the file does not name: it was moved away, or is an old copy. Without them partitions would have no leader, and
    the next thing to try would be an unclean election."""
    for node_id in _numbers(data, BROKER):
        if cluster.broker(node_id) is None and has_records(data / f"{BROKER}-{node_id}"):
            cluster.brokers.append(Entry(node_id, HOST, broker_port(cluster, node_id)))
    cluster.brokers.sort(key=lambda one: one.node_id)


def _numbers(data: Path, kind: str) -> list[int]:
    """Of the directories of brokers, or of servers: not of those that were put aside."""
    names = (path.name.removeprefix(f"{kind}-") for path in data.glob(f"{kind}-*"))
    return sorted(
        int(name) for name in names if name.isascii() and name.isdecimal() and name == str(int(name))
    )


def _refuse_other_zookeepers(
    data: Path, cluster: ClusterFile, count: int | None, address: str | None
) -> None:
    """Where the file is gone and servers with the cluster's metadata are there: new ones beside or instead of them would begin with nothing."""
    there = _numbers(data, ZOOKEEPER)
    if cluster.zookeeper_connect or not any(has_tree(data / f"{ZOOKEEPER}-{one}") for one in there):
        return
    if address is not None or count not in (None, len(there)):
        raise ClientError(
            f"{data} has {len(there)} ZooKeeper servers of its own, with the topics of this cluster",
            hint=f"give --zookeepers {len(there)}, or name another --data",
        )


def _forget_unused_zookeepers(
    data: Path, cluster: ClusterFile, count: int | None, address: str | None
) -> None:
    """Where others are asked for: those of a start that failed before any of them had written something stand in nobody's way."""
    asked = address is not None or count not in (None, len(cluster.zookeepers))
    used = any(has_tree(data / f"zookeeper-{one.node_id}") for one in cluster.zookeepers)
    # Brokers with data belong to the tree of their cluster, also where that is lost.
    used = used or any(has_records(data / f"broker-{one.node_id}") for one in cluster.brokers)
    if asked and cluster.zookeepers and not used:
        cluster.zookeepers, cluster.zookeeper_connect = [], ""


def _plan_zookeeper(cluster: ClusterFile, count: int | None, address: str | None, port: int | None) -> None:
    known = bool(cluster.zookeeper_connect)
    if address is not None:
        if count is not None:
            raise typer.BadParameter("--zookeepers and --zookeeper exclude each other")
        if known and cluster.zookeepers:
            raise ClientError(
                "this cluster has its own ZooKeeper, with its topics in it", hint="name another --data"
            )
        cluster.zookeeper_connect = address
        return
    if known and not cluster.zookeepers and count is None:
        return  # somebody else's, as before
    if known and count not in (None, len(cluster.zookeepers)):
        raise ClientError(
            f"this cluster has {counted(len(cluster.zookeepers), 'ZooKeeper server')} of its own, not {count}",
            hint="leave out --zookeepers, or name another --data",
        )
    if not known:
        cluster.zookeepers = _new_zookeepers(count or 1, DEFAULT_PORT if port is None else port)
    elif port is not None:
        _move_zookeepers(cluster.zookeepers, _new_zookeepers(len(cluster.zookeepers), port))
    cluster.zookeeper_connect = ",".join(one.address for one in cluster.zookeepers)


def _new_zookeepers(count: int, port: int) -> list[ZooKeeperEntry]:
    if port:
        firsts = (port, port + _PEER_STEP, port + _ELECTION_STEP)
        ports = [first + number for number in range(count) for first in firsts]
    else:
        ports = free_ports(3 * count)
    triples = zip(ports[0::3], ports[1::3], ports[2::3], strict=True)
    return [
        ZooKeeperEntry(number, HOST, client, peer_port=peer, election_port=election)
        for number, (client, peer, election) in enumerate(triples, 1)
    ]


def _move_zookeepers(entries: list[ZooKeeperEntry], to: list[ZooKeeperEntry]) -> None:
    for entry, other in zip(entries, to, strict=True):
        entry.port, entry.peer_port, entry.election_port = other.port, other.peer_port, other.election_port


def _plan_brokers(data: Path, cluster: ClusterFile, count: int | None) -> None:
    used = [one for one in cluster.brokers if has_records(data / f"broker-{one.node_id}")]
    if count is not None and count < len(used):
        nodes = ", ".join(str(one.node_id) for one in used)
        raise ClientError(
            f"this cluster has {counted(len(cluster.brokers), 'broker')}, with data on {nodes}",
            hint=f"give --brokers {len(used)} or none; `--remove NODE` takes one out",
        )
    # Those of a start that failed are no part of it; where there are to be fewer, they go.
    unused = [one for one in cluster.brokers if one not in used]
    while count is not None and count < len(cluster.brokers):
        cluster.brokers.remove(unused.pop())
    there = len(cluster.brokers)
    for _ in range((count or there or DEFAULT_BROKERS) - there):
        cluster.brokers.append(new_broker(cluster))


def _check_servers(data: Path, cluster: ClusterFile) -> None:
    """Before anything is started. (A server takes the lock of its directory itself: `millstream zookeeper` can run in it, too.)"""
    for one in cluster.zookeepers:
        directory = data / f"zookeeper-{one.node_id}"
        if len(cluster.zookeepers) == 1:
            refuse_member_alone(directory)
        refuse_owned(directory, SERVER)


def _check_ports(cluster: ClusterFile) -> None:
    ports = {f"broker {one.node_id}": one.port for one in cluster.brokers}
    for one in cluster.zookeepers:
        ports[f"zookeeper {one.node_id}"] = one.port
        if len(cluster.zookeepers) > 1:
            ports[f"peers of zookeeper {one.node_id}"] = one.peer_port
            ports[f"elections of zookeeper {one.node_id}"] = one.election_port
    if any(not 0 < port < 65536 for port in ports.values()):
        raise ClientError("there are not enough ports above that one", hint="choose a lower --port")
    hint = "choose others with --port and --zookeeper-port (0 picks free ones), or stop what uses them"
    refuse_used_ports(HOST, ports, hint)


# ---- running ----------------------------------------------------------------------------------------------------


def _run(data: Path, wanted: ClusterFile, settings: dict[str, str], as_json: bool) -> None:
    started_s = time.monotonic()
    shown: list[Status] = []
    cluster = LocalCluster(
        data, wanted, settings, lambda part: shown[0].told(part), lambda text: shown[0].remark(text)
    )
    shown.append(status_for(as_json, lambda: cluster.parts))
    with shown[0] as status:
        try:
            cluster.start()
            status.ready(
                {
                    "bootstrap": wanted.bootstrap,
                    "zookeeper_connect": wanted.zookeeper_connect,
                    "seconds": round(time.monotonic() - started_s, 2),
                    "file": str(data / cluster_file.FILE),
                }
            )
            while True:
                cluster.look()
                time.sleep(_LOOK_EVERY_S)
        except KeyboardInterrupt:
            pass
        finally:
            _stop(cluster, status)


def _stop(cluster: LocalCluster, status: Status) -> None:
    try:
        cluster.stop()
    except KeyboardInterrupt:
        status.remark("killing what is left; the next start checks the logs of it")
        raise
    finally:
        cluster.kill()
