"""The catalog in its topic: written, read by other sessions, followed, and dropped flows."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from millstream.client.admin.client import Admin
from millstream.client.errors import ClientError
from millstream.sql.catalog import (
    Catalog,
    CatalogFollower,
    CatalogTopic,
    Column,
    Source,
    StoredFlow,
)
from millstream.sql.errors import SqlError
from millstream.sql.statements import Create, parse

ORDERS = Source(
    "stream",
    "Orders",
    (Column("id", "string", True), Column("a b", "array<int>")),
    {"topic": "the-orders", "value": "json", "watermark": "at 1 minute", "key": "id, `a b`"},
)
FLOW = StoredFlow("big", "Orders", "SELECT 1", "update")


def without_time(catalog: Catalog) -> Catalog:
    return Catalog(
        {name: replace(entry, at_ms=0) for name, entry in catalog.sources.items()},
        {name: replace(entry, at_ms=0) for name, entry in catalog.all_flows.items()},
    )


def test_other_sessions_read_what_a_session_declares(shared_broker, topic_name: str) -> None:
    mine, other = (CatalogTopic(shared_broker.bootstrap, topic_name) for _ in range(2))
    assert other.read() == Catalog()
    mine.put(ORDERS, FLOW)
    assert without_time(other.read()) == Catalog({"orders": ORDERS}, {"big": FLOW})
    other.put(replace(ORDERS, kind="table"))
    assert mine.read().source("ORDERS").kind == "table"
    other.remove(ORDERS)
    assert without_time(mine.read()) == Catalog({}, {"big": FLOW})
    with Admin(shared_broker.bootstrap) as admin:
        settings = {
            setting.name: setting.value for setting in admin.configs.describe("topic", topic_name)
        }
        assert settings["cleanup.policy"] == "compact"
        assert len(admin.topics.get(topic_name).partitions) == 1


def test_follower_sees_changes_as_they_come(shared_broker, topic_name: str) -> None:
    topic = CatalogTopic(shared_broker.bootstrap, topic_name)
    follower = CatalogFollower(topic)
    try:
        assert not follower.changed()
        topic.put(FLOW)
        deadline_s = time.monotonic() + 60
        while not follower.changed():
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        assert without_time(follower.catalog) == Catalog({}, {"big": FLOW})
    finally:
        follower.close()


def test_dropped_flow_leaves_its_generation_behind() -> None:
    catalog = Catalog({}, {"big": replace(FLOW, dropped=True, generation=3)})
    assert catalog.flows == {}
    with pytest.raises(SqlError, match="there is no flow 'big'"):
        catalog.flow("big")
    assert replace(FLOW, generation=4).id == "big.4"


def test_unknown_names_are_reported_with_the_nearest() -> None:
    with pytest.raises(
        SqlError, match="there is no stream or table 'ordrs'; did you mean 'orders'"
    ):
        Catalog({"orders": ORDERS}).source("ordrs")


def test_foreign_catalog_records_are_ignored_and_newer_ones_rejected() -> None:
    catalog = Catalog()
    for key in (None, b"\xff", b"other/x", b"x"):
        catalog.apply(key, b"{}")
    assert catalog == Catalog()
    with pytest.raises(ClientError, match="newer version"):
        catalog.apply(b"flow/x", b'{"format":99}')


def test_statement_of_a_source_declares_it_again() -> None:
    statement = parse(ORDERS.statement().rstrip(";"))
    assert isinstance(statement, Create)
    assert (statement.kind, statement.name, statement.options) == (
        "stream",
        "Orders",
        ORDERS.options,
    )
    assert statement.columns == "id STRING NOT NULL,\n  `a b` ARRAY<INT>"
    assert ORDERS.key == ("id", "a b")
