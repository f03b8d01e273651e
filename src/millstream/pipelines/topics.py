"""The topics of a pipeline: inputs that must exist, and outputs that are created if missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from millstream.client.errors import ClientError, TopicExists
from millstream.pipelines.declare import Flow, Pipeline, Stream, Table
from millstream.pipelines.errors import nearest
from millstream.pipelines.graph import Problem, leaves

if TYPE_CHECKING:
    from millstream.client.admin.client import Admin


POLICY = "cleanup.policy"


def missing_inputs(
    pipeline: Pipeline, flows: Iterable[Flow], existing: Iterable[str]
) -> list[Problem]:
    """Return the input topics that do not exist and that no flow of this pipeline writes."""
    known = set(existing)
    problems: dict[str, Problem] = {}
    for flow in flows:
        for source in leaves(pipeline, flow):
            if (
                isinstance(source, Flow)
                or not source.topic
                or source.topic in known
                or pipeline.writer_of(source.topic)
            ):
                continue
            kind = "stream" if isinstance(source, Stream) else "table"
            hint = nearest(source.topic, (name for name in known if not name.startswith("__")))
            if not hint.startswith("did you mean"):
                hint = f"create it with `millstream topics create {source.topic}`"
            problems[source.topic] = Problem(
                source.place,
                f"the topic {source.topic!r} of {kind} {source.name} does not exist",
                hint,
            )
    return list(problems.values())


def create_missing(admin: Admin, flows: Sequence[Flow]) -> list[str]:
    """Create the missing output topics of flows, and return their names."""
    existing, created = set(admin.topics.names()), []
    for flow in flows:
        for target in flow.topics:
            if target.topic in existing:
                continue
            try:
                admin.topics.create(
                    target.topic,
                    partitions=target.partitions,
                    replication_factor=target.replication_factor,
                    configs=target.config,
                )
            except TopicExists:
                # Another process was faster.
                continue
            existing.add(target.topic)
            created.append(target.topic)
    return created


def differing_topics(admin: Admin, flows: Sequence[Flow]) -> list[Problem]:
    """Return warnings about topics whose partitions or settings differ from the declaration."""
    existing = set(admin.topics.names())
    problems = []
    for flow in flows:
        for target in flow.topics:
            if target.topic not in existing:
                continue
            count = len(admin.topics.get(target.topic).partitions)
            if target.partitions not in (None, count):
                text = f"topic {target.topic} has {count} partitions, not {target.partitions} as declared"
                problems.append(Problem(flow.place, text, "the topic is not changed", warning=True))
            problems += _differing_settings(admin, flow, target.topic, target.config)
    return problems


def compacted_topics(admin: Admin, names: Iterable[str]) -> set[str]:
    """Return the compacted topics among ``names``, which must exist."""
    configs = admin.configs.describe_topics(sorted(set(names)))
    policies = {
        name: setting.value
        for name, settings in configs.items()
        for setting in settings
        if setting.name == POLICY
    }
    return {name for name, policy in policies.items() if "compact" in (policy or "")}


def uncompacted_tables(admin: Admin, tables: Iterable[Table]) -> list[Problem]:
    """Return warnings about tables whose topics are not compacted."""
    problems = []
    for table in tables:
        try:
            policy = _settings(admin, table.topic).get(POLICY) or ""
        except ClientError:
            # ``missing_inputs`` reports missing topics.
            continue
        if "compact" not in policy:
            problems.append(
                Problem(
                    table.place,
                    f"the topic {table.topic!r} of table {table.name} is not compacted, "
                    "so retention deletes rows",
                    f"`millstream configs alter topic {table.topic} --set cleanup.policy=compact`",
                    warning=True,
                )
            )
    return problems


def _differing_settings(admin: Admin, flow: Flow, topic: str, declared: object) -> list[Problem]:
    settings = dict(declared) if isinstance(declared, dict) else {}
    if not settings:
        return []
    now = _settings(admin, topic)
    return [
        Problem(
            flow.place,
            f"topic {topic} has {name}={now.get(name)}, not {value} as declared",
            "the topic is not changed",
            True,
        )
        for name, value in settings.items()
        if now.get(name) != value
    ]


def _settings(admin: Admin, topic: str) -> dict[str, str | None]:
    return {
        setting.name: setting.value for setting in admin.configs.describe_topics([topic])[topic]
    }
