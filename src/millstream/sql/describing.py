"""SHOW and DESCRIBE: declared entries, the size of their topics, the state of their flows."""

from __future__ import annotations

from typing import Any, NamedTuple

from millstream.client.admin.client import Admin
from millstream.client.errors import ClientError
from millstream.pipelines.run import status
from millstream.pipelines.run.layout import Layout
from millstream.sql.catalog import Catalog, Source, StoredFlow
from millstream.sql.declared import inputs_of
from millstream.sql.results import Details, Listing

NEVER_RAN = "stored"


class FlowLocation(NamedTuple):
    """The pipeline of a catalog's flows, and the directory of its checkpoints."""

    pipeline: str
    checkpoint: str | None

    def layout(self) -> Layout:
        return Layout(self.pipeline, self.checkpoint)


def show(subject: str, catalog: Catalog, bootstrap: str, location: FlowLocation) -> Listing:
    if subject == "topics":
        return _topics(catalog, bootstrap)
    if subject == "flows":
        return _flows(catalog, bootstrap, location)
    kinds = ("stream",) if subject == "streams" else ("stream", "table")
    rows = [
        (source.name, source.kind, source.topic, source.value, source.key, len(source.columns))
        for _, source in sorted(catalog.sources.items())
        if source.kind in kinds
    ]
    return Listing(("NAME", "KIND", "TOPIC", "VALUE", "KEY", "COLUMNS"), rows)


def _topics(catalog: Catalog, bootstrap: str) -> Listing:
    names: dict[str, list[str]] = {}
    for _, source in sorted(catalog.sources.items()):
        names.setdefault(source.topic, []).append(f"{source.kind} {source.name}")
    with Admin(bootstrap) as admin:
        rows = [
            (
                topic.name,
                len(topic.partitions),
                offsets_in(admin, topic.name),
                names.get(topic.name, []),
            )
            for topic in admin.topics.list()
            if not topic.internal and not topic.name.startswith("__")
        ]
    return Listing(("TOPIC", "PARTITIONS", "OFFSETS", "DECLARED AS"), rows)


def offsets_in(admin: Admin, topic: str) -> int:
    """Return the number of offsets between the beginning and the end of all partitions.

    It counts records, transaction markers, and compacted records.
    """
    begins = admin.offsets.earliest(topic)
    return sum(
        end - begins.get(partition, 0) for partition, end in admin.offsets.latest(topic).items()
    )


def _flows(catalog: Catalog, bootstrap: str, location: FlowLocation) -> Listing:
    running = _running(location)
    with Admin(bootstrap) as admin:
        rows = []
        for _, flow in sorted(catalog.flows.items()):
            state = running.get(flow.id, {})
            lag = status.group_lag(admin, f"{location.pipeline}.{flow.id}", state.get("lag"))
            rows.append((flow.name, flow.target, flow.mode, state.get("state", NEVER_RAN), lag))
    return Listing(("FLOW", "INTO", "MODE", "STATE", "LAG"), rows)


def _running(location: FlowLocation) -> dict[str, dict[str, Any]]:
    """Return the flows of the runner that works in this directory, by their ids."""
    run = status.read(location.layout())
    if run is None:
        return {}
    stopped = {} if run["running"] else {"state": run["state"]}
    return {flow["flow"]: flow | stopped for flow in run["flows"]}


def describe_source(source: Source, catalog: Catalog, bootstrap: str) -> Details:
    flows = catalog.flows.values()
    facts: dict[str, object] = {
        "name": source.name,
        "kind": source.kind,
        "topic": source.topic,
        "offsets": _count(source.topic, bootstrap),
        "value": source.value,
        "key": source.key or None,
        "watermark": source.options.get("watermark"),
        "read by": [flow.name for flow in flows if source.name.lower() in inputs_of(flow.query)]
        or None,
        "written by": [flow.name for flow in flows if flow.target.lower() == source.name.lower()]
        or None,
    }
    return Details({name: fact for name, fact in facts.items() if fact is not None}, source.columns)


def _count(topic: str, bootstrap: str) -> int | None:
    try:
        with Admin(bootstrap) as admin:
            return offsets_in(admin, topic)
    # A deleted topic is still declared.
    except ClientError:
        return None


def describe_flow(flow: StoredFlow, bootstrap: str, location: FlowLocation) -> Details:
    state = _running(location).get(flow.id, {})
    with Admin(bootstrap) as admin:
        lag = status.group_lag(admin, f"{location.pipeline}.{flow.id}", state.get("lag"))
    facts: dict[str, object] = {
        "name": flow.name,
        "into": flow.target,
        "query": " ".join(flow.query.split()),
        "mode": flow.mode,
        "state": state.get("state", NEVER_RAN),
        "lag": lag,
        "group": f"{location.pipeline}.{flow.id}",
        "reason": state.get("reason") or None,
    }
    return Details({name: fact for name, fact in facts.items() if fact is not None})
