"""SHOW and DESCRIBE: what is declared, how much is in its topics, how its flows are doing."""

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


class Where(NamedTuple):
    """Where the flows of a catalog run, and where that is written down."""

    pipeline: str
    checkpoint: str | None

    def layout(self) -> Layout:
        return Layout(self.pipeline, self.checkpoint)


def show(what: str, catalog: Catalog, bootstrap: str, where: Where) -> Listing:
    if what == "topics":
        return _topics(catalog, bootstrap)
    if what == "flows":
        return _flows(catalog, bootstrap, where)
    kinds = ("stream",) if what == "streams" else ("stream", "table")
    rows = [
        (one.name, one.kind, one.topic, one.value, one.key, len(one.columns))
        for _, one in sorted(catalog.sources.items())
        if one.kind in kinds
    ]
    return Listing(("NAME", "KIND", "TOPIC", "VALUE", "KEY", "COLUMNS"), rows)


def _topics(catalog: Catalog, bootstrap: str) -> Listing:
    names: dict[str, list[str]] = {}
    for _, one in sorted(catalog.sources.items()):
        names.setdefault(one.topic, []).append(f"{one.kind} {one.name}")
    with Admin(bootstrap) as admin:
        rows = [
            (one.name, len(one.partitions), offsets_in(admin, one.name), names.get(one.name, []))
            for one in admin.topics.list()
            if not one.internal and not one.name.startswith("__")
        ]
    return Listing(("TOPIC", "PARTITIONS", "OFFSETS", "DECLARED AS"), rows)


def offsets_in(admin: Admin, topic: str) -> int:
    """How many there are between the beginning and the end of its partitions: records, markers of transactions, and what was compacted away."""
    begins = admin.offsets.earliest(topic)
    return sum(end - begins.get(one, 0) for one, end in admin.offsets.latest(topic).items())


def _flows(catalog: Catalog, bootstrap: str, where: Where) -> Listing:
    running = _running(where)
    with Admin(bootstrap) as admin:
        rows = []
        for _, one in sorted(catalog.flows.items()):
            found = running.get(one.id, {})
            lag = status.group_lag(admin, f"{where.pipeline}.{one.id}", found.get("lag"))
            rows.append((one.name, one.target, one.mode, found.get("state", NEVER_RAN), lag))
    return Listing(("FLOW", "INTO", "MODE", "STATE", "LAG"), rows)


def _running(where: Where) -> dict[str, dict[str, Any]]:
    """The flows of the runner that works in this directory, by their ids."""
    found = status.read(where.layout())
    if found is None:
        return {}
    stopped = {} if found["running"] else {"state": found["state"]}
    return {one["flow"]: one | stopped for one in found["flows"]}


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
        "read by": [one.name for one in flows if source.name.lower() in inputs_of(one.query)] or None,
        "written by": [one.name for one in flows if one.target.lower() == source.name.lower()] or None,
    }
    return Details({name: fact for name, fact in facts.items() if fact is not None}, source.columns)


def _count(topic: str, bootstrap: str) -> int | None:
    try:
        with Admin(bootstrap) as admin:
            return offsets_in(admin, topic)
    except ClientError:  # a topic that was deleted is still declared
        return None


def describe_flow(flow: StoredFlow, bootstrap: str, where: Where) -> Details:
    found = _running(where).get(flow.id, {})
    with Admin(bootstrap) as admin:
        lag = status.group_lag(admin, f"{where.pipeline}.{flow.id}", found.get("lag"))
    facts: dict[str, object] = {
        "name": flow.name,
        "into": flow.target,
        "query": " ".join(flow.query.split()),
        "mode": flow.mode,
        "state": found.get("state", NEVER_RAN),
        "lag": lag,
        "group": f"{where.pipeline}.{flow.id}",
        "reason": found.get("reason") or None,
    }
    return Details({name: fact for name, fact in facts.items() if fact is not None})
