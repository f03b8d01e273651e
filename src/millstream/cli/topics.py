"""``millstream topics``: create, list, describe, alter, delete."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from millstream.cli.configs import note_unknown_deletions
from millstream.cli.support import declare
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
from millstream.client.errors import TopicExists, UnknownTopic
from millstream.core.words import counted

if TYPE_CHECKING:
    from millstream.client.admin.client import Admin
    from millstream.client.admin.configs import Config
    from millstream.client.admin.topics import Partition, Topic

app = noun("Topics and their partitions.")

ConfigPairs = Annotated[
    list[str] | None,
    declare.Option("--config", "-c", metavar="NAME=VALUE", help="A setting of the topic."),
]


def _admin(bootstrap: str, timeout_s: float) -> Admin:
    from millstream.client.admin.client import Admin

    return Admin(bootstrap, timeout_s=timeout_s)


@app.command()
def create(
    topic: Annotated[str, declare.Argument(help="Name of the new topic.")],
    partitions: Annotated[
        int | None,
        declare.Option(
            "--partitions", "-p", min=1, help="Number of partitions. [default: the broker's]"
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        declare.Option(
            "--replication-factor",
            "-r",
            min=1,
            help="Replicas of each partition. [default: the broker's]",
        ),
    ] = None,
    config: ConfigPairs = None,
    replica_assignment: Annotated[
        str | None,
        declare.Option(
            metavar="0:1,1:0", help="The replicas of each partition, instead of counts."
        ),
    ] = None,
    if_not_exists: Annotated[
        bool, declare.Option("--if-not-exists", help="Succeed if the topic exists already.")
    ] = False,
    dry_run: Annotated[
        bool, declare.Option("--dry-run", help="Check the request without creating the topic.")
    ] = False,
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
            print(f"topic {topic} already exists")
            return
        print(f"topic {topic} can be created" if dry_run else f"created topic {topic}")


@app.command("list")
def list_topics(
    names: Annotated[
        bool, declare.Option("--names", help="Print only names, one per line.")
    ] = False,
    exclude_internal: Annotated[
        bool, declare.Option("--exclude-internal", help="Leave out internal topics.")
    ] = False,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the topics."""
    with _admin(bootstrap, timeout) as admin:
        topics = [
            topic for topic in admin.topics.list() if not (exclude_internal and topic.internal)
        ]
    if format is Format.json:
        print_json([_summary(topic) for topic in topics])
    elif names:
        for topic in topics:
            print(topic.name)
    elif topics:
        rows = [
            (topic.name, len(topic.partitions), topic.replication_factor, topic.id)
            for topic in topics
        ]
        print_table(("TOPIC", "PARTITIONS", "REPLICAS", "TOPIC-ID"), rows)
    else:
        note("no topics yet; create one with `millstream topics create NAME`")


@app.command()
def describe(
    topics: Annotated[
        list[str] | None,
        declare.Argument(help="Names of topics. [default: all]", autocompletion=complete_topics),
    ] = None,
    under_replicated: Annotated[
        bool,
        declare.Option(
            "--under-replicated", help="Show only partitions with a replica out of sync."
        ),
    ] = False,
    unavailable: Annotated[
        bool, declare.Option("--unavailable", help="Show only partitions without a leader.")
    ] = False,
    under_min_isr: Annotated[
        bool,
        declare.Option(
            "--under-min-isr", help="Show only partitions with an ISR below min.insync.replicas."
        ),
    ] = False,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Describe topics: id, settings, and the leader, replicas and ISR of each partition."""
    filter = _Filter(under_replicated, unavailable, under_min_isr)
    with _admin(bootstrap, timeout) as admin, _topic_expected():
        described = admin.topics.describe(topics) if topics else admin.topics.list()
        configs = admin.configs.describe_topics([topic.name for topic in described])
    descriptions = [_describe(topic, configs[topic.name], filter) for topic in described]
    descriptions = [
        description for description in descriptions if description.shown or not any(filter)
    ]
    if format is Format.json:
        print_json([description.as_json() for description in descriptions])
        return
    for description in descriptions:
        description.print()
    if not descriptions and any(filter):
        states = [name.replace("_", "-") for name, chosen in filter._asdict().items() if chosen]
        note(f"no partitions are {' or '.join(states)}")


@app.command()
def alter(
    topic: TopicName,
    partitions: Annotated[
        int | None,
        declare.Option("--partitions", "-p", min=1, help="The new number of partitions."),
    ] = None,
    config: ConfigPairs = None,
    delete_config: Annotated[
        list[str] | None,
        declare.Option(
            "--delete-config",
            metavar="NAME",
            help="Reset a setting to the broker's default (repeatable).",
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Add partitions to a topic, or change its settings."""
    settings = pairs(config, "--config")
    if partitions is None and not settings and not delete_config:
        raise declare.BadParameter("give --partitions, --config or --delete-config")
    with _admin(bootstrap, timeout) as admin, _topic_expected():
        if partitions is not None:
            admin.topics.add_partitions(topic, partitions)
            print(f"topic {topic} now has {counted(partitions, 'partition')}")
        if settings or delete_config:
            admin.configs.alter("topic", topic, settings, delete=delete_config or ())
            note_unknown_deletions(delete_config or ())
            print(
                f"altered settings of topic {topic}: {', '.join([*settings, *(delete_config or ())])}"
            )


@app.command()
def delete(
    topics: TopicNames,
    yes: Annotated[
        bool, declare.Option("--yes", "-y", help="Do not ask for confirmation.")
    ] = False,
    if_exists: Annotated[
        bool, declare.Option("--if-exists", help="Succeed if a topic does not exist.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete topics with all their records. Asks for confirmation on a terminal."""
    with _admin(bootstrap, timeout) as admin, _topic_expected():
        names = [name for name in topics if not if_exists or admin.topics.exists(name)]
        if names and not yes and sys.stdin.isatty():
            admin.topics.describe(names)
            declare.confirm(f"Delete {', '.join(names)} and all records?", abort=True)
        if names:
            admin.topics.delete(*names)
        for name in names:
            print(f"deleted topic {name}")


@contextmanager
def _topic_expected() -> Iterator[None]:
    """Drop the advice to create a missing topic: the user wants to see, alter or delete it."""
    try:
        yield
    except UnknownTopic as error:
        if "topics create" in error.hint:
            error.hint = "see `millstream topics list`"
        raise


def _assignment(text: str | None) -> list[list[int]] | None:
    if text is None:
        return None
    try:
        return [[int(node) for node in partition.split(":")] for partition in text.split(",")]
    except ValueError:
        raise declare.BadParameter(
            f"{text!r} is not of the form 0:1,1:0", param_hint="--replica-assignment"
        ) from None


def _summary(topic: Topic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "id": topic.id,
        "internal": topic.internal,
        "partition_count": len(topic.partitions),
        "replication_factor": topic.replication_factor,
    }


class _Filter(NamedTuple):
    """The states of the partitions to show. All partitions are shown if no state is chosen."""

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
            "partitions": [_partition_json(partition) for partition in self.shown],
        }

    def print(self) -> None:
        topic = self.topic
        configs = ",".join(f"{name}={value}" for name, value in self.configs.items()) or "-"
        print(
            f"Topic: {topic.name}  TopicId: {topic.id}  PartitionCount: {len(topic.partitions)}  "
            f"ReplicationFactor: {topic.replication_factor}  Configs: {configs}"
        )
        width = len(str(max((partition.id for partition in self.shown), default=0)))
        for partition in self.shown:
            print(_partition_line(partition, width))


def _describe(topic: Topic, configs: list[Config], filter: _Filter) -> _Description:
    values = {config.name: config.value for config in configs}
    min_isr = int(values.get("min.insync.replicas") or 1)
    overrides = {
        config.name: config.value for config in configs if config.source == "DYNAMIC_TOPIC_CONFIG"
    }
    shown = [partition for partition in topic.partitions if filter.shows(partition, min_isr)]
    return _Description(topic, overrides, shown)


def _partition_json(partition: Partition) -> dict[str, Any]:
    return {
        "partition": partition.id,
        "leader": partition.leader,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
    }


def _partition_line(partition: Partition, width: int) -> str:
    leader = "none" if partition.leader is None else partition.leader
    replicas, isr = (
        ",".join(map(str, nodes)) or "none" for nodes in (partition.replicas, partition.isr)
    )
    missing = ", ".join(str(node) for node in partition.replicas if node not in partition.isr)
    remark = f"  out of sync: broker {missing}" if missing else ""
    return f"  Partition: {partition.id:<{width}}  Leader: {leader}  Replicas: {replicas}  Isr: {isr}{remark}"
