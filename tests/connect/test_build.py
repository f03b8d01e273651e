"""``millstream connect FROM TO``: pipelines and errors of two addresses, without
Spark or broker.
"""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from millstream.client.errors import ClientError
from millstream.connect.addresses import parse_address
from millstream.connect.build import ConnectOptions, connection, default_name
from millstream.connect.databases.table import DatabaseTable
from millstream.connect.delta.declare import DeltaTarget
from millstream.connect.files.declare import FilesOrigin
from millstream.connect.packages import need
from millstream.pipelines import ParquetTarget, Pipeline, TopicTarget
from millstream.pipelines.errors import NOWHERE, PipelineError
from millstream.pipelines.graph import build_graph

SCHEMA = "id int, name string"


def built(source: str, target: str, **options: Any) -> Pipeline:
    return connection(
        parse_address(source), parse_address(target), ConnectOptions("localhost:9092", **options)
    )


def target_of(pipeline: Pipeline) -> Any:
    return pipeline.flows["connect"].targets[0]


def test_files_to_topic(tmp_path: Path) -> None:
    pipeline = built(f"files:{tmp_path}?format=csv&sep=;&files_per_batch=3", "topic:orders?partitions=4", schema=SCHEMA, key=("id",))  # fmt: skip
    (stream,) = pipeline.streams.values()
    assert isinstance(stream.origin, FilesOrigin)
    assert (stream.origin.format, stream.origin.files_per_batch, stream.origin.options) == (
        "csv",
        3,
        {"sep": ";"},
    )
    to = target_of(pipeline)
    assert isinstance(to, TopicTarget) and (to.topic, to.key, to.partitions) == (
        "orders",
        ("id",),
        4,
    )


@pytest.mark.parametrize(
    ("address", "kind"), [("parquet:lake", ParquetTarget), ("delta:lake", DeltaTarget)]
)
def test_topic_to_directories_by_date(address: str, kind: type) -> None:
    to = target_of(built("topic:orders?records=10", address, schema=SCHEMA, partition_by=("date",)))
    assert isinstance(to, kind) and to.by == ("date",) and to.path == "lake"


def test_topic_to_table_by_key_deletes_rows_and_uses_its_schema(
    tmp_path: Path,
) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT)")
    pipeline = built("topic:orders", f"sqlite:///{tmp_path}/shop.db#orders", key=("id",))
    (stream,) = pipeline.streams.values()
    assert (stream.schema, stream.tombstones) == ("`id` bigint, `name` string", "keep")
    to = target_of(pipeline)
    assert isinstance(to, DatabaseTable) and (to.key, to.deletes) == (("id",), "_deleted")
    added = built("topic:orders", f"sqlite:///{tmp_path}/shop.db#orders")
    assert (
        target_of(added).deletes is None and next(iter(added.streams.values())).tombstones is None
    )


@pytest.mark.parametrize(
    ("source", "target", "tombstones", "declared", "deletes"),
    [
        ("topic:orders", "parquet:lake", None, None, None),
        ("topic:orders", "delta:lake", "keep", "keep", None),
        ("topic:orders?tombstones=error", "parquet:lake", None, "error", None),
        ("topic:orders", "sqlite:///shop.db#orders?key=id", None, "keep", "_deleted"),
        ("topic:orders", "sqlite:///shop.db#orders?key=id", "drop", "drop", None),
    ],
)
def test_meaning_of_tombstones_is_declared_or_from_the_target(
    source: str, target: str, tombstones: str | None, declared: str | None, deletes: str | None
) -> None:
    pipeline = built(source, target, schema=SCHEMA, tombstones=tombstones)
    (stream,) = pipeline.streams.values()
    assert stream.tombstones == declared
    assert getattr(target_of(pipeline), "deletes", None) == deletes


@pytest.mark.parametrize(
    ("source", "stream"),
    [("files:in?format=csv", "in"), ("files:2026?format=csv", "2026"), ("topic:from", "from")],
)
def test_source_may_have_a_name_that_is_not_an_identifier(source: str, stream: str) -> None:
    pipeline = built(source, "sqlite:///shop.db#orders", schema=SCHEMA)
    assert list(pipeline.streams) == [stream]
    flow = pipeline.flows["connect"]
    assert flow.inputs == (stream,) and not build_graph(pipeline).upstream[flow.name]


def test_table_to_topic(tmp_path: Path) -> None:
    pipeline = built(
        f"sqlite:///{tmp_path}/shop.db#orders?by=at&key=id&rows=7&lag=2 seconds", "topic:orders"
    )
    (stream,) = pipeline.streams.values()
    assert isinstance(stream.origin, DatabaseTable)
    origin = stream.origin
    assert (origin.by, origin.key, origin.rows_per_batch, origin.lag_ms) == ("at", ("id",), 7, 2000)


def test_flow_has_no_place_in_a_file() -> None:
    assert built("topic:orders", "parquet:lake", schema=SCHEMA).flows["connect"].place == NOWHERE


def test_default_name_has_both_addresses_and_no_password() -> None:
    first, second = (
        parse_address(f"postgresql://me:{word}@db/shop#orders?by=id") for word in ("a", "b")
    )
    to = parse_address("topic:orders")
    assert default_name(first, to) == default_name(second, to)
    assert default_name(first, to).startswith("orders-to-orders-")
    assert default_name(first, to) != default_name(to, first)


@pytest.mark.parametrize("place", ["sqlite:///{}shop.db#orders", "parquet:{}lake", "files:{}in"])
def test_default_name_is_that_of_the_absolute_path(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = parse_address("topic:orders")
    monkeypatch.chdir(tmp_path)
    name = default_name(parse_address(place.format("")), to)
    assert name == default_name(parse_address(place.format(f"{tmp_path}/")), to)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert name != default_name(parse_address(place.format("")), to)


@pytest.mark.parametrize(
    ("source", "target", "options", "message"),
    [
        ("delta:lake", "topic:orders", {}, "cannot be read as a stream"),
        ("topic:orders", "files:out", {"schema": SCHEMA}, "can only be read; write parquet:out"),
        ("topic:orders", "topic:copy@west:9092", {}, "millstream mirror --from HOST:PORT"),
        (
            "topic:orders",
            "topic:copy",
            {},
            "derived from another one by a flow, which defines its rows; use `millstream sql`",
        ),
        ("topic:orders@west:9092", "parquet:lake", {}, "give it as --bootstrap west:9092"),
        ("topic:orders", "parquet:lake", {}, "need a schema; give --schema"),
        ("topic:orders", "parquet:lake", {"schema": SCHEMA, "key": ("id",)}, "has no keys"),
        (
            "topic:orders",
            "sqlite:///x.db#y",
            {"schema": SCHEMA, "partition_by": ("id",)},
            "omit --partition-by",
        ),
        (
            "topic:orders?vlaue=json",
            "parquet:lake",
            {},
            "has no option 'vlaue'; did you mean 'value'",
        ),
        (
            "topic:orders",
            "sqlite:///x.db#y",
            {"schema": SCHEMA, "tombstones": "keep"},
            "has no key, so a record without a value cannot delete a row; give --key",
        ),
        (
            "topic:orders?tombstones=all",
            "parquet:lake",
            {"schema": SCHEMA},
            "one of error, keep, drop",
        ),
        ("topic:orders?value=raw", "parquet:lake", {"tombstones": "drop"}, "are not parsed"),
        (
            "files:in?format=csv",
            "topic:orders",
            {"schema": SCHEMA, "tombstones": "drop"},
            "it applies to topics",
        ),
        ("files:in?format=xml", "topic:orders", {"schema": SCHEMA}, "file format 'xml' is unknown"),
        ("files:in?format=csv", "topic:orders", {}, "need a schema"),
        ("sqlite:///x.db#y?by=id&rows=many", "topic:orders", {}, "is not a number"),
    ],
)
def test_unsupported_connection_is_rejected_with_a_hint(
    source: str,
    target: str,
    options: dict[str, Any],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ClientError) as raised:
        built(source, target, **options)
    assert message in str(raised.value)


def test_missing_package_is_reported_with_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(PipelineError, match=r'pip install "millstream\[connect\]"'):
        need("psycopg", "PostgreSQL tables")
