"""The catalog: streams, tables and flows, stored in a compacted topic that every session reads.

Each entry is a record whose key is the kind and the name of the entry. Names are case-insensitive,
as in SQL. A dropped flow leaves its generation behind, so that the next flow of that name is a
different one, with separate progress.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from millstream.client.admin.client import Admin
from millstream.client.consumer import Consumer
from millstream.client.errors import ClientError, TopicExists
from millstream.client.producer import Producer
from millstream.pipelines.errors import nearest
from millstream.pipelines.formats.registry import quoted
from millstream.sql.errors import SqlError
from millstream.sql.statements import Kind
from millstream.sql.tokens import names_in

DEFAULT_TOPIC = "__millstream_sql_catalog"
FORMAT = 1
SOURCE, FLOW = "source", "flow"
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The words of a type: names of fields, in backticks or before a colon, and types.
_WORD = re.compile(r"`(?:[^`]|``)*`|\w+(?=\s*:)|(?P<type>\w+)")


class Column(NamedTuple):
    """A column as DESCRIBE shows it and as a schema names it."""

    name: str
    type: str
    not_null: bool = False

    @property
    def ddl(self) -> str:
        return f"{quoted(self.name)} {self.type}" + (" NOT NULL" if self.not_null else "")


@dataclass(frozen=True)
class Source:
    """A stream or table: a topic with columns."""

    kind: Kind
    name: str
    columns: tuple[Column, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    at_ms: int = 0

    @property
    def topic(self) -> str:
        return self.options.get("topic") or self.name

    @property
    def value(self) -> str:
        return self.options.get("value") or "json"

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(names_in(self.options.get("key", "")))

    def statement(self) -> str:
        """Return the statement that declares it."""
        columns = ",\n".join(f"  {_readable(column)}" for column in self.columns)
        options = ", ".join(f"{name} = {_literal(value)}" for name, value in self.options.items())
        declared = f" (\n{columns}\n)" if columns else ""
        return f"CREATE {self.kind.upper()} {quoted_name(self.name)}{declared} WITH ({options});"


@dataclass(frozen=True)
class StoredFlow:
    """A query whose rows are written to a stream or table."""

    name: str
    target: str
    query: str
    mode: str = "append"
    generation: int = 1
    dropped: bool = False
    at_ms: int = 0

    @property
    def id(self) -> str:
        """The name in checkpoints, sinks and consumer groups; no SQL name has a dot."""
        return f"{self.name}.{self.generation}"

    def same_as(self, other: StoredFlow) -> bool:
        return (self.target, self.query.split()) == (other.target, other.query.split())


Entry = Source | StoredFlow


@dataclass
class Catalog:
    """The declared entries, by lower-case names."""

    sources: dict[str, Source] = field(default_factory=dict)
    all_flows: dict[str, StoredFlow] = field(default_factory=dict)
    """Includes dropped flows."""

    @property
    def flows(self) -> dict[str, StoredFlow]:
        return {name: flow for name, flow in self.all_flows.items() if not flow.dropped}

    def source(self, name: str) -> Source:
        source = self.sources.get(name.lower())
        if source is None:
            raise SqlError(
                f"there is no stream or table {name!r}", hint=nearest(name.lower(), self.sources)
            )
        return source

    def flow(self, name: str) -> StoredFlow:
        flow = self.flows.get(name.lower())
        if flow is None:
            raise SqlError(f"there is no flow {name!r}", hint=nearest(name.lower(), self.flows))
        return flow

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Apply a record of the topic. Other records are ignored."""
        kind, _, name = (key or b"").decode(errors="replace").partition("/")
        if kind not in (SOURCE, FLOW):
            return
        entries: dict[str, Any] = self.sources if kind == SOURCE else self.all_flows
        if value is None:
            entries.pop(name, None)
        else:
            entries[name] = decode(kind, value)


def key_of(entry: Entry) -> bytes:
    return f"{SOURCE if isinstance(entry, Source) else FLOW}/{entry.name.lower()}".encode()


def encode(entry: Entry) -> bytes:
    return json.dumps({"format": FORMAT, **asdict(entry)}, separators=(",", ":")).encode()


def decode(kind: str, value: bytes) -> Entry:
    fields = json.loads(value)
    if fields.pop("format", None) != FORMAT:
        raise ClientError("the SQL catalog was written by a newer version", hint="use that version")
    if kind == FLOW:
        return StoredFlow(**fields)
    return Source(**(fields | {"columns": tuple(Column(*column) for column in fields["columns"])}))


class CatalogTopic:
    """The topic that holds the catalog."""

    def __init__(self, bootstrap: str, topic: str = DEFAULT_TOPIC) -> None:
        self.bootstrap = bootstrap
        self.topic = topic

    def read(self) -> Catalog:
        """Return the current catalog; it is empty before the first declaration."""
        catalog = Catalog()
        with Admin(self.bootstrap) as admin:
            if self.topic not in admin.topics.names():
                return catalog
        with Consumer(self.bootstrap, self.topic, until_end=True) as consumer:
            for record in consumer:
                catalog.apply(record.key, record.value)
        return catalog

    def put(self, *entries: Entry) -> None:
        """Store entries in this order; an entry of the same name is replaced."""
        if not entries:
            return
        stamped = {key_of(entry): encode(_stamped(entry)) for entry in entries}
        self._send(stamped.items())

    def remove(self, source: Source) -> None:
        self._send([(key_of(source), None)])

    def _send(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        self.create()
        with Producer(self.bootstrap) as producer:
            for key, value in records:
                producer.send(self.topic, value, key=key)

    def create(self) -> None:
        """Create the topic, if it is missing."""
        with Admin(self.bootstrap) as admin:
            if self.topic in admin.topics.names():
                return
            try:
                admin.topics.create(self.topic, partitions=1, configs={"cleanup.policy": "compact"})
            except TopicExists:
                # Another process was faster.
                return


class CatalogFollower:
    """Follows changes of the catalog, for a runner."""

    def __init__(self, topic: CatalogTopic) -> None:
        topic.create()
        self.catalog = Catalog()
        self._consumer = Consumer(topic.bootstrap, topic.topic)

    def changed(self) -> bool:
        """Apply new records; return whether there were any."""
        records = self._consumer.poll(timeout_s=0)
        for record in records:
            self.catalog.apply(record.key, record.value)
        return bool(records)

    def close(self) -> None:
        self._consumer.close()


def quoted_name(name: str) -> str:
    """Return a name as it is if Spark reads it so, else in backticks."""
    return name if _PLAIN.fullmatch(name) else quoted(name)


def _stamped(entry: Entry) -> Entry:
    return replace(entry, at_ms=int(time.time() * 1000))


def _readable(column: Column) -> str:
    """Return a declaration with types in capitals; names inside them are kept."""
    kind = _WORD.sub(lambda word: word[0].upper() if word["type"] else word[0], column.type)
    return f"{quoted_name(column.name)} {kind}" + (" NOT NULL" if column.not_null else "")


def _literal(value: str) -> str:
    if value.isidentifier() or value.isdigit():
        return value
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
