"""How long a flow whose sources are being set up holds back the next one, and sources that are looked at in parallel."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

from millstream.pipelines import Pipeline, runner, topic
from millstream.pipelines.durations import setting_s
from millstream.pipelines.errors import PipelineError
from millstream.pipelines.frames import Frames
from millstream.pipelines.runner import SOURCES_WAIT, SOURCES_WAIT_S, Run

STATUSES = [
    "Initializing StreamExecution",
    "Initializing sources",
    "Initializing state store",
    "Getting offsets from KafkaV2",
]


class Query:
    """A query that goes through statuses, one for each look; the last one stays."""

    def __init__(self, statuses: list[str]) -> None:
        self.seen: list[str] = []
        self._statuses = iter(statuses)
        self.isActive = True

    @property
    def status(self) -> dict[str, str]:
        self.seen.append(next(self._statuses, self.seen[-1] if self.seen else ""))
        return {"message": self.seen[-1]}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A run without Spark, whose time passes a second with each look."""
    clock = iter(range(1_000_000))
    monkeypatch.setattr(runner.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(runner.time, "sleep", lambda seconds: None)
    made: Any = object.__new__(Run)
    made.stop_requested, made._running = False, {}
    made._write_status = lambda ended: None
    made._each = lambda: None
    made._sources_wait_s = 120.0
    yield made


def test_start_waits_through_every_initializing_status(run: Run) -> None:
    query: Any = Query(STATUSES)
    run._wait_for_sources(query)
    assert query.seen == STATUSES


def test_start_waits_no_longer_than_the_setting(run: Run) -> None:
    run._sources_wait_s = 5.0
    query: Any = Query(STATUSES[:1])
    run._wait_for_sources(query)
    assert set(query.seen) == {STATUSES[0]} and 1 < len(query.seen) <= 6


@pytest.mark.parametrize("end", ["stop", "failure"])
def test_stop_and_failure_end_the_wait(run: Run, end: str) -> None:
    query: Any = Query(STATUSES[:1])

    def each() -> None:
        if end == "stop":
            run.stop()
        else:
            query.isActive = False

    run._each = each
    run._wait_for_sources(query)
    assert len(query.seen) <= 2


def test_setting_is_a_number_of_seconds() -> None:
    assert setting_s({}, SOURCES_WAIT, SOURCES_WAIT_S) == SOURCES_WAIT_S
    assert setting_s({SOURCES_WAIT: "7.5"}, SOURCES_WAIT, SOURCES_WAIT_S) == 7.5
    with pytest.raises(PipelineError, match=f"{SOURCES_WAIT} is '2m'.*seconds"):
        setting_s({SOURCES_WAIT: "2m"}, SOURCES_WAIT, SOURCES_WAIT_S)


def test_sources_are_looked_at_in_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline("shop")
    for name in ("orders", "payments"):
        pipeline.stream(name, schema="id string")
    pipeline.table("customers", schema="id string")
    query = "SELECT * FROM orders JOIN payments USING (id) JOIN customers USING (id)"
    pipeline.sql("joined", query, to=topic("joined"))
    together = threading.Barrier(3, timeout=60)
    looked: list[str] = []

    def look(frames: Frames, leaf: Any, *reader: str) -> None:
        together.wait()  # breaks if the looks come one after the other
        looked.append(leaf.name)

    monkeypatch.setattr(Frames, "_raw_stream", look)
    monkeypatch.setattr(Frames, "_raw_table", look)
    frames: Any = object.__new__(Frames)
    frames.pipeline = pipeline
    frames.look_at_sources(pipeline.flows.values())
    assert sorted(looked) == ["customers", "orders", "payments"]
