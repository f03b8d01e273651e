"""The catalog: streams, tables and flows, kept in a compacted topic that every session reads.

A record per entry, its key the kind of entry and its name. Names are those of SQL: upper and lower case are the same. A flow that
is dropped leaves its number behind, so that the next of that name is another one, with progress of its own.
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
# The words of a type: names of fields, between backticks or before a colon, and types.
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
        """What declares it."""
        columns = ",\n".join(f"  {_readable(one)}" for one in self.columns)
        given = ", ".join(f"{name} = {_literal(value)}" for name, value in self.options.items())
        shown = f" (\n{columns}\n)" if columns else ""
        return f"CREATE {self.kind.upper()} {quoted_name(self.name)}{shown} WITH ({given});"


@dataclass(frozen=True)
class StoredFlow:
    """A query whose rows go to a stream or table."""

    name: str
    target: str
    query: str
    mode: str = "append"
    generation: int = 1
    dropped: bool = False
    at_ms: int = 0

    @property
    def id(self) -> str:
        """Its name in checkpoints, sinks and consumer groups; no name of SQL has a dot."""
        return f"{self.name}.{self.generation}"

    def same_as(self, other: StoredFlow) -> bool:
        return (self.target, self.query.split()) == (other.target, other.query.split())


Entry = Source | StoredFlow


@dataclass
class Catalog:
    """What is declared, by lower-case names."""

    sources: dict[str, Source] = field(default_factory=dict)
    all_flows: dict[str, StoredFlow] = field(default_factory=dict)
    """Also those that were dropped."""

    @property
    def flows(self) -> dict[str, StoredFlow]:
        return {name: one for name, one in self.all_flows.items() if not one.dropped}

    def source(self, name: str) -> Source:
        found = self.sources.get(name.lower())
        if found is None:
            raise SqlError(f"there is no stream or table {name!r}", hint=nearest(name.lower(), self.sources))
        return found

    def flow(self, name: str) -> StoredFlow:
        found = self.flows.get(name.lower())
        if found is None:
            raise SqlError(f"there is no flow {name!r}", hint=nearest(name.lower(), self.flows))
        return found

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Take in a record of the topic. Records that are not ours are left alone."""
        part, _, name = (key or b"").decode(errors="replace").partition("/")
        if part not in (SOURCE, FLOW):
            return
        entries: dict[str, Any] = self.sources if part == SOURCE else self.all_flows
        if value is None:
            entries.pop(name, None)
        else:
            entries[name] = decode(part, value)


def key_of(entry: Entry) -> bytes:
    return f"{SOURCE if isinstance(entry, Source) else FLOW}/{entry.name.lower()}".encode()


def encode(entry: Entry) -> bytes:
    return json.dumps({"format": FORMAT, **asdict(entry)}, separators=(",", ":")).encode()


def decode(part: str, value: bytes) -> Entry:
    fields = json.loads(value)
    if fields.pop("format", None) != FORMAT:
        raise ClientError("the SQL catalog was written by a newer version", hint="use that version")
    if part == FLOW:
        return StoredFlow(**fields)
    return Source(**(fields | {"columns": tuple(Column(*one) for one in fields["columns"])}))


class CatalogTopic:
    """The topic that holds the catalog."""

    def __init__(self, bootstrap: str, topic: str = DEFAULT_TOPIC) -> None:
        self.bootstrap = bootstrap
        self.topic = topic

    def read(self) -> Catalog:
        """All that is there now; nothing, while nobody has declared anything."""
        found = Catalog()
        with Admin(self.bootstrap) as admin:
            if self.topic not in admin.topics.names():
                return found
        with Consumer(self.bootstrap, self.topic, until_end=True) as consumer:
            for record in consumer:
                found.apply(record.key, record.value)
        return found

    def put(self, *entries: Entry) -> None:
        """Declare, in this order; what has the same name is replaced."""
        if not entries:
            return
        stamped = {key_of(one): encode(_at(one)) for one in entries}
        self._send(stamped.items())

    def remove(self, source: Source) -> None:
        self._send([(key_of(source), None)])

    def _send(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        self.create()
        with Producer(self.bootstrap) as producer:
            for key, value in records:
                producer.send(self.topic, value, key=key)

    def create(self) -> None:
        """Make the topic, unless it is there."""
        with Admin(self.bootstrap) as admin:
            if self.topic in admin.topics.names():
                return
            try:
                admin.topics.create(self.topic, partitions=1, configs={"cleanup.policy": "compact"})
            except TopicExists:
                return  # somebody was faster


class CatalogFollower:
    """The catalog as it changes, for a runner."""

    def __init__(self, topic: CatalogTopic) -> None:
        topic.create()
        self.catalog = Catalog()
        self._consumer = Consumer(topic.bootstrap, topic.topic)

    def changed(self) -> bool:
        """Take in what is new; whether there was something."""
        records = self._consumer.poll(timeout_s=0)
        for one in records:
            self.catalog.apply(one.key, one.value)
        return bool(records)

    def close(self) -> None:
        self._consumer.close()


def quoted_name(name: str) -> str:
    """As it is where Spark reads it so, else between backticks."""
    return name if _PLAIN.fullmatch(name) else quoted(name)


def _at(entry: Entry) -> Entry:
    return replace(entry, at_ms=int(time.time() * 1000))


def _readable(column: Column) -> str:
    """Types in capitals, the names within them as they are."""
    kind = _WORD.sub(lambda word: word[0].upper() if word["type"] else word[0], column.type)
    return f"{quoted_name(column.name)} {kind}" + (" NOT NULL" if column.not_null else "")


def _literal(value: str) -> str:
    if value.isidentifier() or value.isdigit():
        return value
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
