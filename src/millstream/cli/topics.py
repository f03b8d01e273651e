"""``millstream topics``: create, list, describe, alter, delete."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from millstream.cli.configs import note_unknown_deletions
from millstream.cli.support.options import (
    Bootstrap,
    Format,
    OutputFormat,
    Timeout,
    TopicName,
    TopicNames,
    complete_topics,
    noun,
    pairs,
)
from millstream.cli.support.output import note, print_json, print_table
from millstream.client.connection import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S
from millstream.client.errors import TopicExists
from millstream.core.words import counted

if TYPE_CHECKING:
    from millstream.client.admin.client import Admin
    from millstream.client.admin.configs import Config
    from millstream.client.admin.topics import Partition, Topic

app = noun("Topics and their partitions.")

ConfigPairs = Annotated[
    list[str] | None, typer.Option("--config", "-c", metavar="NAME=VALUE", help="A setting of the topic.")
]


def _admin(bootstrap: str, timeout_s: float) -> Admin:
    from millstream.client.admin.client import Admin

    return Admin(bootstrap, timeout_s=timeout_s)


@app.command()
def create(
    topic: Annotated[str, typer.Argument(help="Name of the new topic.")],
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="[default: the broker's]")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", "-r", min=1, help="[default: the broker's]")
    ] = None,
    config: ConfigPairs = None,
    replica_assignment: Annotated[
        str | None,
        typer.Option(metavar="0:1,1:0", help="The replicas of each partition, instead of their numbers."),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="An existing topic is no error.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check that it would work.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Create a topic."""
    assignment = _assignment(replica_assignment)
    with _admin(bootstrap, timeout) as admin:
        try:
            admin.topics.create(
                topic,
                partitions=partitions,
                replication_factor=replication_factor,
                configs=pairs(config, "--config"),
                assignment=assignment,
                validate_only=dry_run,
            )
        except TopicExists:
            if not if_not_exists:
                raise
            print(f"topic {topic} exists already")
            return
        print(f"topic {topic} can be created" if dry_run else f"created topic {topic}")


@app.command("list")
def list_topics(
    names: Annotated[bool, typer.Option("--names", help="Only the names, one a line.")] = False,
    exclude_internal: Annotated[
        bool, typer.Option("--exclude-internal", help="Without Kafka's own topics.")
    ] = False,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the topics."""
    with _admin(bootstrap, timeout) as admin:
        found = [topic for topic in admin.topics.list() if not (exclude_internal and topic.internal)]
    if format is Format.json:
        print_json([_summary(topic) for topic in found])
    elif names:
        for topic in found:
            print(topic.name)
    elif found:
        rows = [(one.name, len(one.partitions), one.replication_factor, one.id) for one in found]
        print_table(("TOPIC", "PARTITIONS", "REPLICAS", "TOPIC-ID"), rows)
    else:
        note("there are no topics yet; create one with `millstream topics create NAME`")


@app.command()
def describe(
    topics: Annotated[
        list[str] | None,
        typer.Argument(help="Names of topics; all when none.", autocompletion=complete_topics),
    ] = None,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated", help="Only partitions with a replica out of sync.")
    ] = False,
    unavailable: Annotated[
        bool, typer.Option("--unavailable", help="Only partitions without a leader.")
    ] = False,
    under_min_isr: Annotated[
        bool,
        typer.Option("--under-min-isr", help="Only partitions with fewer in sync than min.insync.replicas."),
    ] = False,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Describe topics: id, settings, and for each partition its leader, replicas and in-sync replicas."""
    wanted = _Filter(under_replicated, unavailable, under_min_isr)
    with _admin(bootstrap, timeout) as admin:
        found = admin.topics.describe(topics) if topics else admin.topics.list()
        configs = admin.configs.describe_topics([topic.name for topic in found])
    described = [_describe(topic, configs[topic.name], wanted) for topic in found]
    described = [one for one in described if one.shown or not any(wanted)]
    if format is Format.json:
        print_json([one.as_json() for one in described])
        return
    for one in described:
        one.print()
    if not described and any(wanted):
        note("no partition is in that state")


@app.command()
def alter(
    topic: TopicName,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="The new number of partitions.")
    ] = None,
    config: ConfigPairs = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", metavar="NAME", help="Back to the default of the broker."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Add partitions to a topic, or change its settings."""
    settings = pairs(config, "--config")
    if partitions is None and not settings and not delete_config:
        raise typer.BadParameter("give --partitions, --config or --delete-config")
    with _admin(bootstrap, timeout) as admin:
        if partitions is not None:
            admin.topics.add_partitions(topic, partitions)
            print(f"topic {topic} has {counted(partitions, 'partition')}")
        if settings or delete_config:
            admin.configs.alter("topic", topic, settings, delete=delete_config or ())
            note_unknown_deletions(delete_config or ())
            print(f"altered settings of topic {topic}: {', '.join([*settings, *(delete_config or ())])}")


@app.command()
def delete(
    topics: TopicNames,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="A missing topic is no error.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete topics with all their records. Asks first when a person is at the terminal."""
    with _admin(bootstrap, timeout) as admin:
        names = [name for name in topics if not if_exists or admin.topics.exists(name)]
        if names and not yes and sys.stdin.isatty():
            admin.topics.describe(names)
            typer.confirm(f"Delete {', '.join(names)} with all records?", abort=True)
        if names:
            admin.topics.delete(*names)
        for name in names:
            print(f"deleted topic {name}")


def _assignment(text: str | None) -> list[list[int]] | None:
    if text is None:
        return None
    try:
        return [[int(node) for node in partition.split(":")] for partition in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not like 0:1,1:0", param_hint="--replica-assignment") from None


def _summary(topic: Topic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "id": topic.id,
        "internal": topic.internal,
        "partition_count": len(topic.partitions),
        "replication_factor": topic.replication_factor,
    }


class _Filter(NamedTuple):
    """Which partitions to show: those in any of these states, all of them when none is asked for."""

    under_replicated: bool
    unavailable: bool
    under_min_isr: bool

    def shows(self, partition: Partition, min_isr: int) -> bool:
        return (
            not any(self)
            or (self.under_replicated and partition.under_replicated)
            or (self.unavailable and partition.unavailable)
            or (self.under_min_isr and len(partition.isr) < min_isr)
        )


class _Description(NamedTuple):
    topic: Topic
    configs: dict[str, str | None]
    shown: list[Partition]

    def as_json(self) -> dict[str, Any]:
        return _summary(self.topic) | {
            "configs": self.configs,
            "partitions": [_partition_json(one) for one in self.shown],
        }

    def print(self) -> None:
        topic = self.topic
        configs = ",".join(f"{name}={value}" for name, value in self.configs.items()) or "-"
        print(
            f"Topic: {topic.name}  TopicId: {topic.id}  PartitionCount: {len(topic.partitions)}  "
            f"ReplicationFactor: {topic.replication_factor}  Configs: {configs}"
        )
        width = len(str(max((one.id for one in self.shown), default=0)))
        for partition in self.shown:
            print(_partition_line(partition, width))


def _describe(topic: Topic, configs: list[Config], wanted: _Filter) -> _Description:
    values = {one.name: one.value for one in configs}
    min_isr = int(values.get("min.insync.replicas") or 1)
    own = {one.name: one.value for one in configs if one.source == "DYNAMIC_TOPIC_CONFIG"}
    return _Description(topic, own, [one for one in topic.partitions if wanted.shows(one, min_isr)])


def _partition_json(partition: Partition) -> dict[str, Any]:
    return {
        "partition": partition.id,
        "leader": partition.leader,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
    }


def _partition_line(one: Partition, width: int) -> str:
    leader = "none" if one.leader is None else one.leader
    replicas, isr = (",".join(map(str, nodes)) or "none" for nodes in (one.replicas, one.isr))
    missing = ", ".join(str(node) for node in one.replicas if node not in one.isr)
    remark = f"  out of sync: broker {missing}" if missing else ""
    return f"  Partition: {one.id:<{width}}  Leader: {leader}  Replicas: {replicas}  Isr: {isr}{remark}"
