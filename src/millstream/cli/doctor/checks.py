"""The checks of `millstream doctor` on a cluster. Each returns findings with advice.

The rules for topics prevent data loss: three replicas, min.insync.replicas above one and below the
number of replicas, and no unclean leader elections.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from millstream.client.admin.client import Admin
from millstream.client.admin.cluster import Cluster, LogDirectory
from millstream.client.admin.topics import Topic
from millstream.client.connection import Connection, format_address, why_unreachable
from millstream.client.errors import BrokerUnreachable, ClientError
from millstream.core.types import TopicPartition
from millstream.core.words import counted, listed

ENOUGH_REPLICAS = 3
LOW_DISK, FULL_DISK = 0.20, 0.05
# As in kafka-transactions.sh: longer than a transaction may last.
HANGING_MS = 900_000
MAX_SHOWN = 5
# An election takes about as long as a session.
CONTROLLER_S = 10.0


class Level(StrEnum):
    ok = "OK"
    warn = "WARN"
    fail = "FAIL"


@dataclass(frozen=True)
class Finding:
    level: Level
    check: str
    message: str
    advice: str = ""


@dataclass
class ClusterView:
    """The state of the cluster that the checks share, requested once."""

    admin: Admin
    cluster: Cluster
    topics: Sequence[Topic]

    @cached_property
    def configs(self) -> dict[str, dict[str, str]]:
        """The settings of every topic, by name."""
        configs = self.admin.configs.describe_topics([topic.name for topic in self.topics])
        return {
            topic: {config.name: config.value or "" for config in entries}
            for topic, entries in configs.items()
        }

    def min_in_sync(self, topic: Topic) -> int:
        return int(self.configs[topic.name].get("min.insync.replicas") or 1)


def view_cluster(admin: Admin) -> ClusterView:
    return ClusterView(admin, admin.cluster.describe(), admin.topics.list())


def check_listeners(admin: Admin) -> Iterable[Finding]:
    """Check the addresses that brokers advertise: clients use those, not the bootstrap address.

    This check comes first, over the existing connection, because no other request works without it.
    """
    bad = False
    brokers = admin.protocol.patiently(admin.protocol.brokers, doing="ask for the brokers")
    for broker in brokers:
        if failure := why_unreachable(broker.host, broker.port):
            bad = True
            yield Finding(
                Level.fail,
                "listeners",
                f"broker {broker.node} advertises {format_address(broker.host, broker.port)}, which is unreachable from here ({failure})",
                "set advertised.listeners of that broker to an address that its clients can reach",
            )
    if not bad:
        yield Finding(
            Level.ok,
            "listeners",
            f"advertised listeners of {counted(len(brokers), 'broker')} reachable",
        )


def controller_named(admin: Admin) -> int | None:
    """Return the controller that a broker names, or None.

    Without a controller no other check can run, because client libraries wait for one first.
    """
    protocol = admin.protocol
    node = protocol.patiently(
        lambda: protocol.metadata([]), doing="ask for the controller"
    ).controller_id
    return int(node) if node >= 0 else None


def check_controller(connection: Connection, named: int | None) -> Iterable[Finding]:
    """Check that the controller responds; brokers may name one that is dead."""
    if named is None:
        failure = "the cluster has no controller: it cannot make changes or elect leaders"
    elif not _controller_answers(connection, named):
        failure = f"the controller, broker {named}, does not respond: the cluster cannot make changes or elect leaders"
    else:
        yield Finding(Level.ok, "controller", f"broker {named} is the controller")
        return
    yield Finding(
        Level.fail,
        "controller",
        failure,
        "check that ZooKeeper responds, and see the brokers' logs",
    )


def _controller_answers(connection: Connection, named: int) -> bool:
    """Return whether the controller responds to a request that another broker forwards to it.

    The other broker has to find it in ZooKeeper first. The controller itself would answer from
    memory.
    """
    timeout_s = min(connection.timeout_s, CONTROLLER_S)
    with Admin(connection.bootstrap, timeout_s=timeout_s, options=connection.options) as admin:
        others = [broker.node for broker in admin.protocol.brokers() if broker.node != named]
        try:
            admin.reassignments.moving(through=others[0] if others else named)
        except BrokerUnreachable:
            return False
        except ClientError:
            pass  # an error response is a response
        return True


def check_partitions(view: ClusterView) -> Iterable[Finding]:
    partitions = [
        (topic.name, partition) for topic in view.topics for partition in topic.partitions
    ]
    live = {broker.id for broker in view.cluster.brokers}
    offline = [f"{name}-{partition.id}" for name, partition in partitions if partition.unavailable]
    behind = [
        partition
        for _, partition in partitions
        if partition.under_replicated and not partition.unavailable
    ]
    if offline:
        yield Finding(
            Level.fail,
            "partitions",
            f"{counted(len(offline), 'partition has', 'partitions have')} no leader: {_some(offline)}",
            "start their brokers; if they are lost for good, `millstream elect-leaders --unclean` gives up the records that only they have",
        )
    if behind:
        down = sorted({node for partition in behind for node in partition.replicas} - live)
        cause = (
            f"{listed(down, 'broker')} {'is' if len(down) == 1 else 'are'} down"
            if down
            else "a replica is out of sync"
        )
        advice = (
            "start it, and its replicas catch up; no data is lost"
            if down
            else "find the brokers with `millstream topics describe --under-replicated` and see their logs"
        )
        yield Finding(
            Level.warn,
            "partitions",
            f"{counted(len(behind), 'partition')} under-replicated: {cause}",
            advice,
        )
    if not offline and not behind:
        yield Finding(
            Level.ok,
            "partitions",
            f"{counted(len(partitions), 'partition has all its', 'partitions have all their')} replicas in sync",
        )


def check_writes(view: ClusterView) -> Iterable[Finding]:
    """Find partitions whose leader refuses acks=all, because too few replicas are in sync."""
    live = {broker.id for broker in view.cluster.brokers}
    refusing = [
        (topic, partition)
        for topic in view.topics
        for partition in topic.partitions
        if not partition.unavailable
        and len(partition.isr) < min(view.min_in_sync(topic), len(partition.replicas))
    ]
    if not refusing:
        yield Finding(Level.ok, "writes", "every partition with a leader accepts acks=all")
        return
    down = sorted({node for _, partition in refusing for node in partition.replicas} - live)
    advice = "see the logs of the brokers that are out of sync (`millstream topics describe --under-replicated`)"
    if down:
        advice = f"start {listed(down, 'broker')}"
    yield Finding(
        Level.fail,
        "writes",
        f"{counted(len(refusing), 'partition refuses', 'partitions refuse')} acks=all, with fewer replicas in sync than min.insync.replicas: "
        + _some(f"{topic.name}-{partition.id}" for topic, partition in refusing),
        f"{advice}; or accept less safety: `millstream configs alter topic NAME --set min.insync.replicas=1`",
    )


def check_rules(view: ClusterView) -> Iterable[Finding]:
    """Check the rules for topics: replication factor, min.insync.replicas, unclean elections."""
    if len(view.cluster.brokers) == 1:
        yield Finding(
            Level.warn,
            "topics",
            "a single broker: a disk failure loses data",
            f"for durable data run {ENOUGH_REPLICAS} brokers (`millstream up`), and topics with {ENOUGH_REPLICAS} replicas",
        )
        return
    broken: dict[tuple[str, str], list[str]] = {}
    for topic in view.topics:
        for rule in _broken_rules(topic, view.min_in_sync(topic), view.configs[topic.name]):
            broken.setdefault(rule, []).append(topic.name)
    for (message, advice), names in broken.items():
        yield Finding(Level.warn, "topics", f"{message}: {_some(names)}", advice)
    if not broken:
        yield Finding(
            Level.ok,
            "topics",
            f"{counted(len(view.topics), 'topic follows', 'topics follow')} the rules against data loss",
        )


def _broken_rules(topic: Topic, in_sync: int, config: dict[str, str]) -> Iterable[tuple[str, str]]:
    replicas = topic.replication_factor
    if replicas < ENOUGH_REPLICAS:
        yield (
            f"fewer than {ENOUGH_REPLICAS} replicas",
            f"`millstream reassign execute --topic NAME --replication-factor {ENOUGH_REPLICAS}`",
        )
    if in_sync <= 1 and not topic.internal:
        yield (
            "min.insync.replicas is 1: with acks=all a record may be on only one disk",
            "`millstream configs alter topic NAME --set min.insync.replicas=2`",
        )
    elif 1 < replicas <= in_sync:
        yield (
            "min.insync.replicas equals the replication factor: with one broker down, writes fail",
            "use one more replica than min.insync.replicas",
        )
    if config.get("unclean.leader.election.enable") == "true":
        yield (
            "unclean.leader.election.enable is true: an out-of-sync replica may become leader, which loses records",
            "`millstream configs alter topic NAME --set unclean.leader.election.enable=false`",
        )


def check_transactions(view: ClusterView) -> Iterable[Finding]:
    partitions = [
        TopicPartition(topic.name, partition.id)
        for topic in view.topics
        for partition in topic.partitions
        if not partition.unavailable
    ]
    hanging = view.admin.transactions.hanging(
        partitions, idle_ms=HANGING_MS, now_ms=int(time.time() * 1000)
    )
    if hanging:
        where = _some(str(producer.partition) for producer in hanging)
        yield Finding(
            Level.fail,
            "transactions",
            f"{counted(len(hanging), 'hanging transaction blocks', 'hanging transactions block')} consumers: {where}",
            "show them with `millstream transactions hanging`, end them with `millstream transactions abort`",
        )
    else:
        yield Finding(Level.ok, "transactions", "no hanging transactions")


def check_disks(view: ClusterView) -> Iterable[Finding]:
    for broker in view.cluster.brokers:
        yield from map(_disk, view.admin.cluster.log_directories(broker.id))


def _disk(directory: LogDirectory) -> Finding:
    where = f"broker {directory.broker}: {directory.path}"
    if not directory.online:
        return Finding(
            Level.fail,
            "disk",
            f"{where} is offline",
            "see the broker's log; its partitions have another leader, or are unavailable",
        )
    if not directory.total_bytes or directory.usable_bytes is None:
        return Finding(Level.ok, "disk", f"{where} does not report its free space")
    free = directory.usable_bytes / directory.total_bytes
    advice = (
        "shorten retention, add a disk (log.dirs) or move partitions (`millstream reassign plan`)"
    )
    if free < LOW_DISK:
        level = Level.fail if free < FULL_DISK else Level.warn
        return Finding(level, "disk", f"{where} is {free:.0%} free", advice)
    return Finding(Level.ok, "disk", f"{where} is {free:.0%} free")


CHECKS: tuple[Callable[[ClusterView], Iterable[Finding]], ...] = (
    check_partitions,
    check_writes,
    check_rules,
    check_transactions,
    check_disks,
)


def _some(names: Iterable[str]) -> str:
    listed_names = list(names)
    more = f" and {len(listed_names) - MAX_SHOWN} more" if len(listed_names) > MAX_SHOWN else ""
    return ", ".join(listed_names[:MAX_SHOWN]) + more
