"""How long the start of a flow delays the next one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

pytest.importorskip("pyspark")

from millstream.pipelines.durations import setting_s
from millstream.pipelines.errors import PipelineError
from millstream.pipelines.run import queries
from millstream.pipelines.run.options import RunOptions
from millstream.pipelines.run.queries import SOURCES_WAIT, SOURCES_WAIT_S, Queries

STATUSES = [
    "Initializing StreamExecution",
    "Initializing sources",
    "Initializing state store",
    "Getting offsets from KafkaV2",
]


class Query:
    """A query whose status changes with each read. The last status stays."""

    def __init__(self, statuses: list[str]) -> None:
        self.seen: list[str] = []
        self._statuses = iter(statuses)
        self.isActive = True

    @property
    def status(self) -> dict[str, str]:
        self.seen.append(next(self._statuses, self.seen[-1] if self.seen else ""))
        return {"message": self.seen[-1]}


class Host:
    """A run without Spark."""

    stop_requested = False
    hurry = False

    def tick(self) -> None: ...

    def batch_done(self, flow: str, report: Mapping[str, Any]) -> None: ...

    def finished(self, flow: str) -> None: ...

    def failed(self, flow: str, error: BaseException) -> None: ...


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A second passes with each read of the time."""
    seconds = iter(range(1_000_000))
    monkeypatch.setattr(queries.time, "monotonic", lambda: float(next(seconds)))
    monkeypatch.setattr(queries.time, "sleep", lambda seconds: None)
    yield


def wait_for_sources(query: Any, host: Host, wait_s: str = "120") -> None:
    spark: Any = None
    Queries(spark, {SOURCES_WAIT: wait_s}, RunOptions(), host).wait_for_sources(query)


def test_start_waits_through_every_initializing_status() -> None:
    query = Query(STATUSES)
    wait_for_sources(query, Host())
    assert query.seen == STATUSES


def test_start_waits_no_longer_than_the_setting() -> None:
    query = Query(STATUSES[:1])
    wait_for_sources(query, Host(), "5")
    assert set(query.seen) == {STATUSES[0]} and 1 < len(query.seen) <= 6


@pytest.mark.parametrize("end", ["stop", "failure"])
def test_stop_and_failure_end_the_wait(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    query, host = Query(STATUSES[:1]), Host()

    def tick() -> None:
        if end == "stop":
            host.stop_requested = True
        else:
            query.isActive = False

    monkeypatch.setattr(host, "tick", tick)
    wait_for_sources(query, host)
    assert len(query.seen) <= 2


def test_setting_is_a_number_of_seconds() -> None:
    assert setting_s({}, SOURCES_WAIT, SOURCES_WAIT_S) == SOURCES_WAIT_S
    assert setting_s({SOURCES_WAIT: "7.5"}, SOURCES_WAIT, SOURCES_WAIT_S) == 7.5
    with pytest.raises(PipelineError, match=f"{SOURCES_WAIT} is '2m'.*seconds"):
        setting_s({SOURCES_WAIT: "2m"}, SOURCES_WAIT, SOURCES_WAIT_S)
