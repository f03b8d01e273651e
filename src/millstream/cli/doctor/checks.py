"""What `millstream doctor` looks at in a cluster: each check returns what it found, and what to do about it.

The rules for topics are those for losing nothing: three replicas, writes that more than one of them has, one to spare, and no election
of a replica that is behind.
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
HANGING_MS = 900_000  # as kafka-transactions.sh finds them: longer than transactions may last
SHOWN = 5
CONTROLLER_S = 10.0  # an election takes about as long as a session


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
class Seen:
    """What the checks look at, asked for once."""

    admin: Admin
    cluster: Cluster
    topics: Sequence[Topic]

    @cached_property
    def configs(self) -> dict[str, dict[str, str]]:
        """Of every topic its settings, by name."""
        found = self.admin.configs.describe_topics([topic.name for topic in self.topics])
        return {topic: {one.name: one.value or "" for one in entries} for topic, entries in found.items()}

    def min_in_sync(self, topic: Topic) -> int:
        return int(self.configs[topic.name].get("min.insync.replicas") or 1)


def look(admin: Admin) -> Seen:
    return Seen(admin, admin.cluster.describe(), admin.topics.list())


def check_listeners(admin: Admin) -> Iterable[Finding]:
    """Clients go to the addresses that brokers advertise, whatever address they were given first. Asked before all else, over the
    connection that is there: where this is wrong nothing else can be asked."""
    bad = False
    brokers = admin.protocol.patiently(admin.protocol.brokers, doing="ask for the brokers")
    for broker in brokers:
        if failure := why_unreachable(broker.host, broker.port):
            bad = True
            yield Finding(
                Level.fail,
                "listeners",
                f"broker {broker.node} advertises {format_address(broker.host, broker.port)}, which cannot be reached from here ({failure})",
                "set advertised.listeners of that broker to an address that its clients can reach",
            )
    if not bad:
        yield Finding(
            Level.ok, "listeners", f"advertised listeners of {counted(len(brokers), 'broker')} reachable"
        )


def controller_named(admin: Admin) -> int | None:
    """By a broker. Where there is none, nothing else can be asked: libraries wait for a controller before they ask anything at all."""
    protocol = admin.protocol
    node = protocol.patiently(lambda: protocol.metadata([]), doing="ask for the controller").controller_id
    return int(node) if node >= 0 else None


def check_controller(connection: Connection, named: int | None) -> Iterable[Finding]:
    """Brokers name the controller that they know of; only an answer tells whether it can do anything."""
    if named is None:
        failure = "no broker is the controller: nothing can be changed, and no leader elected"
    elif not _controller_answers(connection, named):
        failure = (
            f"the controller, broker {named}, does not answer: nothing can be changed, and no leader elected"
        )
    else:
        yield Finding(Level.ok, "controller", f"broker {named} is the controller")
        return
    yield Finding(
        Level.fail,
        "controller",
        failure,
        "see whether ZooKeeper answers, and what the brokers' logs say about it",
    )


def _controller_answers(connection: Connection, named: int) -> bool:
    """To a question that the others pass on to it, once they have found it in ZooKeeper; itself it answers from what it has read before."""
    timeout_s = min(connection.timeout_s, CONTROLLER_S)
    with Admin(connection.bootstrap, timeout_s=timeout_s, options=connection.options) as admin:
        others = [broker.node for broker in admin.protocol.brokers() if broker.node != named]
        try:
            admin.reassignments.moving(through=others[0] if others else named)
        except BrokerUnreachable:
            return False
        except ClientError:
            pass  # a refusal is an answer, too
        return True


def check_partitions(seen: Seen) -> Iterable[Finding]:
    partitions = [(topic.name, one) for topic in seen.topics for one in topic.partitions]
    live = {broker.id for broker in seen.cluster.brokers}
    offline = [f"{name}-{one.id}" for name, one in partitions if one.unavailable]
    behind = [(name, one) for name, one in partitions if one.under_replicated and not one.unavailable]
    if offline:
        yield Finding(
            Level.fail,
            "partitions",
            f"{counted(len(offline), 'partition has', 'partitions have')} no leader: {_some(offline)}",
            "start their brokers; if those are lost for good, `millstream elect-leaders --unclean` gives up what only they have",
        )
    if behind:
        down = sorted({node for _name, one in behind for node in one.replicas} - live)
        cause = (
            f"{listed(down, 'broker')} {'is' if len(down) == 1 else 'are'} down"
            if down
            else "a replica is behind"
        )
        advice = (
            "it rejoins by itself when started; nothing is lost meanwhile"
            if down
            else "see the log of the brokers that are missing in `millstream topics describe --under-replicated`"
        )
        yield Finding(
            Level.warn, "partitions", f"{counted(len(behind), 'partition')} under-replicated: {cause}", advice
        )
    if not offline and not behind:
        yield Finding(
            Level.ok,
            "partitions",
            f"{counted(len(partitions), 'partition has all its', 'partitions have all their')} replicas in sync",
        )


def check_writes(seen: Seen) -> Iterable[Finding]:
    """Partitions with a leader that refuses what is sent with acks=all, because too few replicas are in sync."""
    live = {broker.id for broker in seen.cluster.brokers}
    refusing = [
        (topic, one)
        for topic in seen.topics
        for one in topic.partitions
        if not one.unavailable and len(one.isr) < min(seen.min_in_sync(topic), len(one.replicas))
    ]
    if not refusing:
        yield Finding(Level.ok, "writes", "acks=all is accepted wherever there is a leader")
        return
    down = sorted({node for _topic, one in refusing for node in one.replicas} - live)
    advice = "see the logs of the brokers that are behind (`millstream topics describe --under-replicated`)"
    if down:
        advice = f"start {listed(down, 'broker')}"
    yield Finding(
        Level.fail,
        "writes",
        f"{counted(len(refusing), 'partition refuses', 'partitions refuse')} acks=all, with fewer replicas in sync than min.insync.replicas: "
        + _some(f"{topic.name}-{one.id}" for topic, one in refusing),
        f"{advice}; or lower it, giving up safety: `millstream configs alter topic NAME --set min.insync.replicas=1`",
    )


def check_rules(seen: Seen) -> Iterable[Finding]:
    """Of topics: replication, min.insync.replicas, unclean elections."""
    if len(seen.cluster.brokers) == 1:
        yield Finding(
            Level.warn,
            "topics",
            "one broker: what its disk loses is lost",
            f"for records that must not be, run {ENOUGH_REPLICAS} brokers (`millstream up`) and topics with {ENOUGH_REPLICAS} replicas",
        )
        return
    broken: dict[tuple[str, str], list[str]] = {}
    for topic in seen.topics:
        for rule in _broken_rules(topic, seen.min_in_sync(topic), seen.configs[topic.name]):
            broken.setdefault(rule, []).append(topic.name)
    for (message, advice), names in broken.items():
        yield Finding(Level.warn, "topics", f"{message}: {_some(names)}", advice)
    if not broken:
        yield Finding(
            Level.ok,
            "topics",
            f"{counted(len(seen.topics), 'topic keeps', 'topics keep')} the rules for losing nothing",
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
            "min.insync.replicas is 1: acks=all may mean one disk",
            "`millstream configs alter topic NAME --set min.insync.replicas=2`",
        )
    elif 1 < replicas <= in_sync:
        yield (
            "min.insync.replicas equals the replicas: with one broker down nothing can be written",
            "one more replica than min.insync.replicas",
        )
    if config.get("unclean.leader.election.enable") == "true":
        yield (
            "unclean.leader.election.enable: a replica that is behind may lead, and what it lacks is lost",
            "`millstream configs alter topic NAME --set unclean.leader.election.enable=false`",
        )


def check_transactions(seen: Seen) -> Iterable[Finding]:
    partitions = [
        TopicPartition(topic.name, one.id)
        for topic in seen.topics
        for one in topic.partitions
        if not one.unavailable
    ]
    hanging = seen.admin.transactions.hanging(partitions, idle_ms=HANGING_MS, now_ms=int(time.time() * 1000))
    if hanging:
        places = _some(str(one.partition) for one in hanging)
        yield Finding(
            Level.fail,
            "transactions",
            f"{len(hanging)} hanging transactions hold up readers: {places}",
            "`millstream transactions hanging` shows them, `millstream transactions abort` ends them",
        )
    else:
        yield Finding(Level.ok, "transactions", "no hanging transactions")


def check_disks(seen: Seen) -> Iterable[Finding]:
    for broker in seen.cluster.brokers:
        yield from map(_disk, seen.admin.cluster.log_directories(broker.id))


def _disk(one: LogDirectory) -> Finding:
    where = f"broker {one.broker}: {one.path}"
    if not one.online:
        return Finding(
            Level.fail,
            "disk",
            f"{where} is offline",
            "see the broker's log; its partitions are elsewhere, or unavailable",
        )
    if not one.total_bytes or one.usable_bytes is None:
        return Finding(Level.ok, "disk", f"{where} does not tell how full it is")
    free = one.usable_bytes / one.total_bytes
    advice = "shorten retention, add a disk (log.dirs) or move partitions (`millstream reassign plan`)"
    if free < LOW_DISK:
        level = Level.fail if free < FULL_DISK else Level.warn
        return Finding(level, "disk", f"{where} is {free:.0%} free", advice)
    return Finding(Level.ok, "disk", f"{where} is {free:.0%} free")


CHECKS: tuple[Callable[[Seen], Iterable[Finding]], ...] = (
    check_partitions,
    check_writes,
    check_rules,
    check_transactions,
    check_disks,
)


def _some(names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return ", ".join(found[:SHOWN]) + more
