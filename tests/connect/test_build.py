"""``millstream connect FROM TO``: which pipeline two addresses make, and what is said where they make none. No Spark, no broker."""

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


def made(source: str, target: str, **options: Any) -> Pipeline:
    return connection(
        parse_address(source), parse_address(target), ConnectOptions("localhost:9092", **options)
    )


def target_of(pipeline: Pipeline) -> Any:
    return pipeline.flows["connect"].targets[0]


def test_files_become_a_topic(tmp_path: Path) -> None:
    pipeline = made(f"files:{tmp_path}?format=csv&sep=;&files_per_batch=3", "topic:orders?partitions=4", schema=SCHEMA, key=("id",))  # fmt: skip
    (stream,) = pipeline.streams.values()
    assert isinstance(stream.origin, FilesOrigin)
    assert (stream.origin.format, stream.origin.files_per_batch, stream.origin.options) == (
        "csv",
        3,
        {"sep": ";"},
    )
    to = target_of(pipeline)
    assert isinstance(to, TopicTarget) and (to.topic, to.key, to.partitions) == ("orders", ("id",), 4)


@pytest.mark.parametrize(("address", "kind"), [("parquet:lake", ParquetTarget), ("delta:lake", DeltaTarget)])
def test_a_topic_becomes_directories_by_date(address: str, kind: type) -> None:
    to = target_of(made("topic:orders?records=10", address, schema=SCHEMA, partition_by=("date",)))
    assert isinstance(to, kind) and to.by == ("date",) and to.path == "lake"


def test_a_topic_becomes_a_table_by_key_with_removals_and_takes_the_schema_of_the_table(
    tmp_path: Path,
) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT)")
    pipeline = made("topic:orders", f"sqlite:///{tmp_path}/shop.db#orders", key=("id",))
    (stream,) = pipeline.streams.values()
    assert (stream.schema, stream.tombstones) == ("`id` bigint, `name` string", "keep")
    to = target_of(pipeline)
    assert isinstance(to, DatabaseTable) and (to.key, to.deletes) == (("id",), "_deleted")
    added = made("topic:orders", f"sqlite:///{tmp_path}/shop.db#orders")
    assert target_of(added).deletes is None and next(iter(added.streams.values())).tombstones is None


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
def test_meaning_of_tombstones_is_declared_or_that_of_the_target(
    source: str, target: str, tombstones: str | None, declared: str | None, deletes: str | None
) -> None:
    pipeline = made(source, target, schema=SCHEMA, tombstones=tombstones)
    (stream,) = pipeline.streams.values()
    assert stream.tombstones == declared
    assert getattr(target_of(pipeline), "deletes", None) == deletes


@pytest.mark.parametrize(
    ("source", "stream"),
    [("files:in?format=csv", "in"), ("files:2026?format=csv", "2026"), ("topic:from", "from")],
)
def test_what_is_read_may_be_called_what_no_parameter_can_be(source: str, stream: str) -> None:
    pipeline = made(source, "sqlite:///shop.db#orders", schema=SCHEMA)
    assert list(pipeline.streams) == [stream]
    flow = pipeline.flows["connect"]
    assert flow.inputs == (stream,) and not build_graph(pipeline).upstream[flow.name]


def test_a_table_becomes_a_topic(tmp_path: Path) -> None:
    pipeline = made(f"sqlite:///{tmp_path}/shop.db#orders?by=at&key=id&rows=7&lag=2 seconds", "topic:orders")
    (stream,) = pipeline.streams.values()
    assert isinstance(stream.origin, DatabaseTable)
    origin = stream.origin
    assert (origin.by, origin.key, origin.rows_per_batch, origin.lag_ms) == ("at", ("id",), 7, 2000)


def test_what_is_wrong_with_a_flow_names_no_line_of_ours() -> None:
    assert made("topic:orders", "parquet:lake", schema=SCHEMA).flows["connect"].place == NOWHERE


def test_the_name_is_made_of_both_addresses_and_hides_passwords() -> None:
    one, other = (parse_address(f"postgresql://me:{word}@db/shop#orders?by=id") for word in ("a", "b"))
    to = parse_address("topic:orders")
    assert default_name(one, to) == default_name(other, to)
    assert default_name(one, to).startswith("orders-to-orders-")
    assert default_name(one, to) != default_name(to, one)


@pytest.mark.parametrize("place", ["sqlite:///{}shop.db#orders", "parquet:{}lake", "files:{}in"])
def test_the_name_is_that_of_the_place_wherever_it_is_named_from(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = parse_address("topic:orders")
    monkeypatch.chdir(tmp_path)
    here = default_name(parse_address(place.format("")), to)
    assert here == default_name(parse_address(place.format(f"{tmp_path}/")), to)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert here != default_name(parse_address(place.format("")), to)


@pytest.mark.parametrize(
    ("source", "target", "options", "said"),
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
        ("topic:orders?vlaue=json", "parquet:lake", {}, "has no option 'vlaue'; did you mean 'value'"),
        (
            "topic:orders",
            "sqlite:///x.db#y",
            {"schema": SCHEMA, "tombstones": "keep"},
            "has no key, so a record without a value cannot delete a row; give --key",
        ),
        ("topic:orders?tombstones=all", "parquet:lake", {"schema": SCHEMA}, "one of error, keep, drop"),
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
def test_what_cannot_be_connected_is_told_with_what_to_do(
    source: str,
    target: str,
    options: dict[str, Any],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ClientError) as told:
        made(source, target, **options)
    assert said in str(told.value)


def test_a_missing_package_is_told_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(PipelineError, match=r'pip install "millstream\[connect\]"'):
        need("psycopg", "PostgreSQL tables")
