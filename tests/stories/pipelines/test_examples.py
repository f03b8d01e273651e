"""The examples, run for real: joins, tables that change, windows, duplicates, arbitrary state,
several targets, restarts.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow.dataset
from pyspark.sql import SparkSession

from millstream.client.admin.client import Admin
from millstream.local.broker import LocalBroker
from millstream.pipelines import Pipeline, topic
from millstream.pipelines.load import load_pipeline
from millstream.pipelines.run.status import find_statuses
from support.spark import quick_jvm
from support.spark.pipeline_world import (
    Background,
    create,
    received,
    records,
    run_once,
    send,
    send_keyed,
    wait_until,
)

pytestmark = pytest.mark.timeout(600)

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture
def own(broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalBroker:
    """A broker for topics with the names of the examples; the test's own directory is the current
    one.
    """
    monkeypatch.chdir(tmp_path)
    return broker({"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1})


def example(name: str, own: LocalBroker, *, dead_letters: bool = False) -> Pipeline:
    """An example; without a second query for each topic, unless the test is about dead letters."""
    pipeline = load_pipeline(str(EXAMPLES / name))
    pipeline.bootstrap = own.bootstrap
    if not dead_letters:
        pipeline.streams = {
            key: replace(one, dead_letters=None) for key, one in pipeline.streams.items()
        }
        pipeline.tables = {
            key: replace(one, dead_letters=None) for key, one in pipeline.tables.items()
        }
    return pipeline


def rows(directory: str) -> list[dict[str, Any]]:
    return pyarrow.dataset.dataset(directory, partitioning="hive").to_table().to_pylist()


def order(number: int, customer: str, amount: str) -> dict[str, str]:
    return {
        "id": f"o{number}",
        "customer": customer,
        "amount": amount,
        "at": f"2026-01-01T00:0{number % 3}:00Z",
    }


def payment(number: int) -> dict[str, str]:
    return {"order_id": f"o{number}", "paid_at": "2026-01-01T00:05:00Z"}


def latest_revenue(bootstrap: str) -> dict[str, Decimal]:
    """The revenue of each country: of every minute its last word counts."""
    last = {
        (one["minute"]["start"], one["country"]): one["revenue"]
        for one in received(bootstrap, "revenue-by-minute")
    }
    totals: dict[str, Decimal] = defaultdict(Decimal)
    for (_, country), revenue in last.items():
        totals[country] += Decimal(str(revenue))
    return dict(totals)


@pytest.mark.long
def test_revenue_by_minute_follows_orders_payments_and_a_table_that_changes(
    spark: SparkSession, own: LocalBroker, tmp_path: Path
) -> None:
    bootstrap, checkpoint = own.bootstrap, tmp_path / "checkpoints"
    create(bootstrap, "orders", "payments")
    create(bootstrap, "customers", cleanup_policy="compact")
    send_keyed(
        bootstrap, "customers", {c: {"customer": c, "country": c.upper()} for c in ("ada", "bob")}
    )
    send(
        bootstrap,
        "orders",
        [order(n, ("ada", "bob")[n % 2], f"{n}.25") for n in range(20)],
        key="id",
    )
    send(
        bootstrap, "payments", [payment(n) for n in range(18)], key="order_id"
    )  # two are never paid
    send(bootstrap, "orders", [order(90, "bob", "10000.01")], key="id")

    with Background(example("revenue.py", own), spark, checkpoint) as running:
        wait_until(
            lambda: (
                latest_revenue_if_there(bootstrap)
                == {"ADA": Decimal("74.25"), "BOB": Decimal("83.25")}
            )
        )
        # One running query: the next batch sees the table as it is by then.
        send_keyed(
            bootstrap, "customers", {"ada": {"customer": "ada", "country": "MOVED"}, "bob": None}
        )
        send(bootstrap, "orders", [order(35, "ada", "7.00"), order(32, "bob", "9.00")], key="id")
        send(bootstrap, "payments", [payment(35), payment(32)], key="order_id")
        wait_until(lambda: "MOVED" in latest_revenue_if_there(bootstrap))
        wait_until(lambda: {"o35", "o32"} <= archived())
        (status,) = find_statuses(None, str(checkpoint))
        assert (status["state"], status["running"]) == ("running", True)
        assert {flow["flow"] for flow in status["flows"]} >= {
            "paid_orders",
            "revenue_by_minute",
            "archive",
            "big_orders",
        }
        with pytest.raises(Exception, match="pipeline revenue is already running"):
            run_once(example("revenue.py", own), spark, checkpoint)
    assert running.run.state == "stopped"
    assert latest_revenue(bootstrap) == {
        "ADA": Decimal("74.25"),
        "BOB": Decimal("83.25"),
        "MOVED": Decimal("7.00"),
    }

    run_once(example("revenue.py", own), spark, checkpoint)
    paid = [f"o{n}" for n in (*range(18), 32, 35)]
    assert sorted(one["id"] for one in received(bootstrap, "paid-orders")) == sorted(paid)
    assert sorted(one["id"] for one in rows("lake/paid-orders")) == sorted(paid)
    assert [
        (key, one["id"])
        for (key, _), one in zip(
            records(bootstrap, "big-orders"), received(bootstrap, "big-orders"), strict=True
        )
    ] == [(b"o90", "o90")]
    assert str(find_statuses("revenue", str(checkpoint))[0]["state"]) == "done"
    with Admin(bootstrap) as admin:
        assert {one.lag for one in admin.groups.lags("revenue.paid_orders")} == {0}


def latest_revenue_if_there(bootstrap: str) -> dict[str, Decimal]:
    with Admin(bootstrap) as admin:
        return latest_revenue(bootstrap) if admin.topics.exists("revenue-by-minute") else {}


def archived() -> set[str]:
    return (
        {one["id"] for one in rows("lake/paid-orders")}
        if Path("lake/paid-orders").exists()
        else set()
    )


def view(number: int, visitor: str, at: str, page: str = "/") -> dict[str, str]:
    return {"event_id": f"e{number}", "visitor": visitor, "page": page, "at": f"2026-01-01T{at}Z"}


@pytest.mark.long
def test_visits_and_hot_pages_count_every_click_once(
    spark: SparkSession, own: LocalBroker, tmp_path: Path
) -> None:
    bootstrap, checkpoint = own.bootstrap, tmp_path / "checkpoints"
    create(bootstrap, "page-views", partitions=1)
    first = [
        view(1, "ada", "10:00:00"),
        view(2, "ada", "10:20:00", "/a"),
        view(3, "bob", "10:05:00"),
    ]
    send(bootstrap, "page-views", [*first, *first, view(4, "ada", "11:30:00"), b"{broken"])
    run_once(example("sessions.py", own, dead_letters=True), spark, checkpoint)
    assert records(bootstrap, "page-views.dlq") == [(None, b"{broken")]
    # Half an hour and the delay of the watermark later the visits are final.
    send(bootstrap, "page-views", [view(5, "ada", "15:00:00"), first[0]])
    run_once(example("sessions.py", own), spark, checkpoint)
    run_once(example("sessions.py", own, dead_letters=True), spark, checkpoint)
    assert records(bootstrap, "page-views.dlq") == [(None, b"{broken")]

    expected = {("ada", "10:00:00", 2), ("bob", "10:05:00", 1), ("ada", "11:30:00", 1)}
    in_topic = [
        (one["visitor"], one["visit"]["start"][11:19], one["pages"])
        for one in received(bootstrap, "visits")
    ]
    in_files = [
        (one["visitor"], str(one["visit"]["start"])[11:19], one["pages"])
        for one in rows("lake/visits")
    ]
    assert set(in_topic) == set(in_files) == expected
    assert len(in_topic) == len(in_files) == 3
    last = {
        (one["page"], one["period"]["start"]): one["count"]
        for one in received(bootstrap, "hot-pages")
    }
    assert last["/a", "2026-01-01T10:20:00.000000Z"] == 1
    assert last["/", "2026-01-01T10:00:00.000000Z"] == 2
    with Admin(bootstrap) as admin:
        assert len(admin.topics.get("visits").partitions) == 4
        settings = {
            one.name: one.value for one in admin.configs.describe_topics(["hot-pages"])["hot-pages"]
        }
        assert settings["cleanup.policy"] == "compact"


def reading(sensor: str, celsius: float, minute: int) -> dict[str, Any]:
    return {"sensor": sensor, "celsius": celsius, "at": f"2026-01-01T00:{minute:02}:00Z"}


def test_arbitrary_state_goes_on_after_a_restart(
    spark: SparkSession, own: LocalBroker, tmp_path: Path
) -> None:
    bootstrap, checkpoint = own.bootstrap, tmp_path / "checkpoints"
    create(bootstrap, "readings", partitions=1)
    send(bootstrap, "readings", [reading("a", 95, 1), reading("a", 96, 2), reading("b", 99, 1)])
    run_once(example("alerts.py", own), spark, checkpoint, conf=quick_jvm.USUAL)
    assert received(bootstrap, "alerts") == []
    send(
        bootstrap,
        "readings",
        [reading("a", 97, 3), reading("a", 98, 4), reading("b", 20, 2), reading("b", 99, 3)],
    )
    run_once(example("alerts.py", own), spark, checkpoint, conf=quick_jvm.USUAL)
    assert [(one["sensor"], one["celsius"]) for one in received(bootstrap, "alerts")] == [
        ("a", 97.0)
    ]


def test_a_lost_checkpoint_is_told_and_not_guessed_at(
    spark: SparkSession, own: LocalBroker, tmp_path: Path
) -> None:
    bootstrap, checkpoint = own.bootstrap, tmp_path / "checkpoints"
    create(bootstrap, "orders", partitions=1)
    create(bootstrap, "payments", partitions=1)
    create(bootstrap, "customers", partitions=1, cleanup_policy="compact")
    send(bootstrap, "orders", [order(1, "ada", "20000.00")])
    run_once(example("revenue.py", own), spark, checkpoint, only=["big_orders"])
    shutil.rmtree(checkpoint)
    with Background(
        example("revenue.py", own), spark, checkpoint, once=True, only=["big_orders"]
    ) as again:
        assert not again.wait()
    assert again.states("big_orders") == ["running", "failed"]
    (failed,) = [one for one in again.events if one.get("state") == "failed"]
    assert "has committed batch 0 of another query" in failed["reason"]
    run_once(
        example("revenue.py", own), spark, checkpoint, only=["big_orders"], reset_progress=True
    )
    assert [one["id"] for one in received(bootstrap, "big-orders")] == ["o1", "o1"]


def test_formats_travel_between_flows(
    spark: SparkSession, own: LocalBroker, tmp_path: Path
) -> None:
    """JSON in, Avro between two flows (its schema comes from the columns), text out; and records as
    they are.
    """
    bootstrap = own.bootstrap
    create(bootstrap, "in", partitions=1)
    send(
        bootstrap,
        "in",
        [{"id": "a", "amount": "1.50", "at": "2026-01-01T00:00:00.123456Z"}, {"id": "b"}],
        key="id",
    )
    pipeline = Pipeline("formats", bootstrap=bootstrap, dead_letters=False)
    pipeline.stream(
        "items",
        topic="in",
        schema="id string NOT NULL, amount decimal(10,2), at timestamp",
        meta=True,
    )
    pipeline.stream("plain", topic="in", value="raw")
    pipeline.sql(
        "packed",
        "SELECT id, amount, at, _offset AS o FROM items",
        to=topic("packed", key="id", value="avro"),
    )
    text = "SELECT id AS key, concat_ws(' ', id, amount, at, o) AS value FROM packed"
    pipeline.sql("text", text, to=topic("text", value="string"))
    pipeline.sql("copy", "SELECT * FROM plain", to=topic("copy", value="raw"))
    run_once(pipeline, spark, tmp_path / "checkpoints")
    assert sorted(records(bootstrap, "text")) == [
        (b"a", b"a 1.50 2026-01-01 00:00:00.123456 0"),
        (b"b", b"b 1"),
    ]
    assert records(bootstrap, "copy") == records(bootstrap, "in")
