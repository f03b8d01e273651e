"""``millstream up``: a cluster in the foreground, with a process for each ZooKeeper and broker."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from millstream.cli.support import declare
from millstream.cli.support.options import Format, OutputFormat, pairs
from millstream.cli.support.output import note
from millstream.cli.up.needs import check_installed
from millstream.cli.up.removal import remove_broker
from millstream.cli.up.requests import broker_port, check_request, new_broker, send_request
from millstream.cli.up.stale_processes import wait_for_stale_processes
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
)
from millstream.local.signals import stopped_by_signals
from millstream.local.zookeeper import (
    DEFAULT_PORT,
    HOST,
    SERVER,
    free_ports,
    has_tree,
    refuse_member_alone,
)

app = declare.Application()

DEFAULT_BROKERS = 3
DEFAULT_BROKER_PORT = 9092
# Distance from a ZooKeeper server's client port to its peer and election ports: 2181, 2888, 3888.
_PEER_STEP, _ELECTION_STEP = 707, 1707
_POLL_S = 0.1
# Settings that differ between brokers or that this command sets itself, and what to use instead.
_PER_BROKER_SETTINGS = {
    "node.id": "brokers are numbered from 0",
    "broker.id": "brokers are numbered from 0",
    "listeners": "choose the ports with --port",
    "log.dirs": "choose the directory with --data",
    "log.dir": "choose the directory with --data",
    "zookeeper.connect": "choose a ZooKeeper with --zookeeper",
}


@app.command()
def up(
    brokers: Annotated[
        int | None, declare.Option(min=1, help="Number of brokers. [default: 3, or as before]")
    ] = None,
    zookeepers: Annotated[
        int | None,
        declare.Option(min=1, help="Number of ZooKeeper servers. [default: 1, or as before]"),
    ] = None,
    zookeeper: Annotated[
        str | None,
        declare.Option(
            metavar="ADDRESS", help="Use an existing ZooKeeper: HOST:PORT[,HOST:PORT...][/CHROOT]."
        ),
    ] = None,
    port: Annotated[
        int | None,
        declare.Option(
            min=0,
            max=65535,
            help="Port of broker 0; other brokers use the next ports. 0 picks free ports. [default: 9092]",
        ),
    ] = None,
    zookeeper_port: Annotated[
        int | None,
        declare.Option(
            min=0,
            max=65535,
            help="Port of the first ZooKeeper server; 0 picks free ports. [default: 2181]",
        ),
    ] = None,
    data: Annotated[Path, declare.Option(metavar="DIR", help="Directory of the cluster.")] = Path(
        "cluster"
    ),
    set: Annotated[
        list[str] | None, declare.Option(metavar="NAME=VALUE", help="A setting for every broker.")
    ] = None,
    add: Annotated[
        bool, declare.Option("--add", help="Add a broker to the cluster that runs in DIR.")
    ] = False,
    start: Annotated[
        str | None,
        declare.Option(
            metavar="NODE",
            help="Start a stopped node of the running cluster: a broker (2) or zookeeper-2.",
        ),
    ] = None,
    stop: Annotated[
        str | None,
        declare.Option(
            metavar="NODE", help="Stop a node of the running cluster: a broker (2) or zookeeper-2."
        ),
    ] = None,
    remove: Annotated[
        str | None,
        declare.Option(
            metavar="NODE",
            help="Remove a broker without replicas from the running cluster for good.",
        ),
    ] = None,
    format: OutputFormat = Format.table,
) -> None:
    """Start a cluster on this machine and run it in the foreground.

    Ctrl-C or SIGTERM shuts it down cleanly; a second Ctrl-C kills the remaining processes.
    DIR/cluster.json lists the processes. The next start uses the same data and ports.
    """
    as_json = format is Format.json
    data = data.resolve()
    nodes = {"--start": start, "--stop": stop, "--remove": remove}
    requests = {"--add": add} | {option: node is not None for option, node in nodes.items()}
    if any(requests.values()):
        options = {
            "--brokers": brokers,
            "--zookeepers": zookeepers,
            "--zookeeper": zookeeper,
            "--port": port,
        }
        check_request(
            requests, {**options, "--zookeeper-port": zookeeper_port, "--set": set or None}
        )
        if remove is not None:
            remove_broker(data, remove, as_json)
        else:
            send_request(data, start, stop, as_json)
        return
    settings = pairs(set, "--set")
    _refuse_per_broker_settings(settings)
    with own_directory(data, "a cluster"), stopped_by_signals():
        wait_for_stale_processes(data)
        planned = _plan(data, brokers, zookeepers, zookeeper, port, zookeeper_port)
        check_installed(own_zookeeper=bool(planned.zookeepers))
        _check_servers(data, planned)
        _check_ports(planned)
        _run(data, planned, settings, as_json)


def _refuse_per_broker_settings(settings: Mapping[str, str]) -> None:
    """Refuse settings that would be ignored, or that would move brokers to unknown addresses."""
    for name in settings:
        if name in _PER_BROKER_SETTINGS:
            raise declare.BadParameter(
                f"{name} cannot be the same for every broker: {_PER_BROKER_SETTINGS[name]}",
                param_hint="--set",
            )


# ---- planning ----


def _plan(
    data: Path,
    brokers: int | None,
    zookeepers: int | None,
    zookeeper: str | None,
    port: int | None,
    zookeeper_port: int | None,
) -> ClusterFile:
    """Return the cluster to run: the previous cluster in this directory, changed by the options."""
    cluster = cluster_file.read(data) or ClusterFile(
        port=DEFAULT_BROKER_PORT if port is None else port
    )
    _finish_removals(data, cluster)
    if port is not None and port != cluster.port:
        cluster.port = port
        for broker in cluster.brokers:
            broker.port = broker_port(cluster, broker.node_id)
    _add_unlisted_brokers(data, cluster)
    _forget_unused_zookeepers(data, cluster, zookeepers, zookeeper)
    _refuse_other_zookeepers(data, cluster, zookeepers, zookeeper)
    _plan_zookeeper(cluster, zookeepers, zookeeper, zookeeper_port)
    _plan_brokers(data, cluster, brokers)
    for entry in (*cluster.brokers, *cluster.zookeepers):
        entry.pid, entry.state = None, State.STOPPED
    cluster.bootstrap = ",".join(broker.address for broker in cluster.brokers)
    return cluster


def _finish_removals(data: Path, cluster: ClusterFile) -> None:
    """Finish removals of brokers that left while the supervising command was killed.

    Their directories are renamed, because a later start would find the brokers again.
    """
    for broker in [broker for broker in cluster.brokers if broker.state is State.LEAVING]:
        cluster.brokers.remove(broker)
        directory = data / f"{BROKER}-{broker.node_id}"
        renamed = cluster_file.removed_name(directory)
        try:
            directory.rename(renamed)
            note(
                f"broker {broker.node_id} was removed; its directory is now {renamed} and may be deleted"
            )
        except FileNotFoundError:
            pass  # it was renamed before
        except OSError as error:
            raise ClientError(
                f"broker {broker.node_id} was removed, but {directory} cannot be renamed to {renamed}: {error.strerror}",
                hint="rename it manually",
            ) from None


def _add_unlisted_brokers(data: Path, cluster: ClusterFile) -> None:
    """Add brokers with data that the file does not list, because it was lost or is an old copy.

    Without them partitions would have no leader, which invites an unclean election.
    """
    for node_id in _numbers(data, BROKER):
        if cluster.broker(node_id) is None and has_records(data / f"{BROKER}-{node_id}"):
            cluster.brokers.append(Entry(node_id, HOST, broker_port(cluster, node_id)))
    cluster.brokers.sort(key=lambda broker: broker.node_id)


def _numbers(data: Path, kind: str) -> list[int]:
    """Return the node ids with a directory of this kind, without those of removed brokers."""
    names = (path.name.removeprefix(f"{kind}-") for path in data.glob(f"{kind}-*"))
    return sorted(
        int(name)
        for name in names
        if name.isascii() and name.isdecimal() and name == str(int(name))
    )


def _refuse_other_zookeepers(
    data: Path, cluster: ClusterFile, count: int | None, address: str | None
) -> None:
    """Refuse a different ZooKeeper if the file is lost but servers with the metadata exist.

    New servers would start empty.
    """
    numbers = _numbers(data, ZOOKEEPER)
    if cluster.zookeeper_connect or not any(
        has_tree(data / f"{ZOOKEEPER}-{node}") for node in numbers
    ):
        return
    if address is not None or count not in (None, len(numbers)):
        raise ClientError(
            f"{data} already has {counted(len(numbers), 'ZooKeeper server')} with the topics of this cluster",
            hint=f"use --zookeepers {len(numbers)}, or choose another --data",
        )


def _forget_unused_zookeepers(
    data: Path, cluster: ClusterFile, count: int | None, address: str | None
) -> None:
    """Forget servers without data from a failed start, if others are requested."""
    others = address is not None or count not in (None, len(cluster.zookeepers))
    used = any(has_tree(data / f"zookeeper-{server.node_id}") for server in cluster.zookeepers)
    # Brokers with data belong to the metadata of their cluster, even if it is lost.
    used = used or any(has_records(data / f"broker-{broker.node_id}") for broker in cluster.brokers)
    if others and cluster.zookeepers and not used:
        cluster.zookeepers, cluster.zookeeper_connect = [], ""


def _plan_zookeeper(
    cluster: ClusterFile, count: int | None, address: str | None, port: int | None
) -> None:
    known = bool(cluster.zookeeper_connect)
    if address is not None:
        if count is not None:
            raise declare.BadParameter("--zookeepers and --zookeeper cannot be used together")
        if known and cluster.zookeepers:
            raise ClientError(
                "this cluster has its own ZooKeeper, which holds its topics",
                hint="choose another --data",
            )
        cluster.zookeeper_connect = address
        return
    if known and not cluster.zookeepers and count is None:
        return  # an external ZooKeeper, as before
    if known and count not in (None, len(cluster.zookeepers)):
        raise ClientError(
            f"this cluster has {counted(len(cluster.zookeepers), 'ZooKeeper server')}, not {count}",
            hint="omit --zookeepers, or choose another --data",
        )
    if not known:
        cluster.zookeepers = _new_zookeepers(count or 1, DEFAULT_PORT if port is None else port)
    elif port is not None:
        _copy_ports(cluster.zookeepers, _new_zookeepers(len(cluster.zookeepers), port))
    cluster.zookeeper_connect = ",".join(server.address for server in cluster.zookeepers)


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


def _copy_ports(entries: list[ZooKeeperEntry], others: list[ZooKeeperEntry]) -> None:
    for entry, other in zip(entries, others, strict=True):
        entry.port, entry.peer_port, entry.election_port = (
            other.port,
            other.peer_port,
            other.election_port,
        )


def _plan_brokers(data: Path, cluster: ClusterFile, count: int | None) -> None:
    used = [broker for broker in cluster.brokers if has_records(data / f"broker-{broker.node_id}")]
    if count is not None and count < len(used):
        nodes = ", ".join(str(broker.node_id) for broker in used)
        raise ClientError(
            f"this cluster has {counted(len(cluster.brokers), 'broker')}, with data on {nodes}",
            hint=f"use --brokers {len(used)} or omit it; remove a broker with `millstream up --remove NODE`",
        )
    # Brokers without data come from a failed start. They are dropped first if fewer are requested.
    unused = [broker for broker in cluster.brokers if broker not in used]
    while count is not None and count < len(cluster.brokers):
        cluster.brokers.remove(unused.pop())
    existing = len(cluster.brokers)
    for _ in range((count or existing or DEFAULT_BROKERS) - existing):
        cluster.brokers.append(new_broker(cluster))


def _check_servers(data: Path, cluster: ClusterFile) -> None:
    """Check the directories of ZooKeeper servers before anything is started.

    Each server locks its directory, because `millstream zookeeper` could run there too.
    """
    for server in cluster.zookeepers:
        directory = data / f"zookeeper-{server.node_id}"
        if len(cluster.zookeepers) == 1:
            refuse_member_alone(directory)
        refuse_owned(directory, SERVER)


def _check_ports(cluster: ClusterFile) -> None:
    ports = {f"broker {broker.node_id}": broker.port for broker in cluster.brokers}
    for server in cluster.zookeepers:
        ports[f"zookeeper {server.node_id}"] = server.port
        if len(cluster.zookeepers) > 1:
            ports[f"peers of zookeeper {server.node_id}"] = server.peer_port
            ports[f"elections of zookeeper {server.node_id}"] = server.election_port
    invalid = [f"{port} ({user})" for user, port in ports.items() if not 0 < port < 65536]
    if invalid:
        raise ClientError(f"invalid port: {invalid[0]}", hint="choose a lower --port")
    hint = "choose other ports with --port and --zookeeper-port (0 picks free ones), or stop the processes that use them"
    refuse_used_ports(HOST, ports, hint)


# ---- running ----


def _run(data: Path, planned: ClusterFile, settings: dict[str, str], as_json: bool) -> None:
    started_s = time.monotonic()
    views: list[Status] = []
    cluster = LocalCluster(
        data,
        planned,
        settings,
        lambda node: views[0].changed(node),
        lambda text: views[0].remark(text),
    )
    views.append(status_for(as_json, lambda: cluster.nodes))
    with views[0] as status:
        try:
            cluster.start()
            status.ready(
                {
                    "bootstrap": planned.bootstrap,
                    "zookeeper_connect": planned.zookeeper_connect,
                    "seconds": round(time.monotonic() - started_s, 2),
                    "file": str(data / cluster_file.FILE),
                }
            )
            while True:
                cluster.poll()
                time.sleep(_POLL_S)
        except KeyboardInterrupt:
            pass
        finally:
            _stop(cluster, status)


def _stop(cluster: LocalCluster, status: Status) -> None:
    try:
        cluster.stop()
    except KeyboardInterrupt:
        status.remark("killing the remaining processes; the next start recovers their logs")
        raise
    finally:
        cluster.kill()
