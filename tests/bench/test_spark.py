"""Small runs of the Spark scenarios, and the counting of their batches."""

from collections.abc import Callable
from typing import Any

import pytest
from bench.__main__ import Runner
from bench.load.spark_driver import Batches, Mark, intervals
from bench.measures import all_measures
from bench.model import load_peers, load_scenarios

from support.bench.small_scenarios import tiny

pytest.importorskip("pyspark")

TINY = {"rows": 2000, "turns": 1, "batch_rows": 500, "batches": 2, "warmup_batches": 1, "keys": 10}


@pytest.fixture
def runner(runner_of: Callable[[str], Runner]) -> Runner:
    return runner_of("millstream")


def check_metrics(runner: Runner, name: str) -> None:
    scenario = tiny(name, TINY)
    outcome = runner.scenario(scenario, 1, "")
    assert outcome.absent == {}
    (reading,) = outcome.readings["millstream"]
    assert set(reading.values) == {
        metric.name for metric in all_measures()[scenario.measure].metrics
    }


def test_scenario_without_a_driver_yields_every_metric(runner: Runner) -> None:
    check_metrics(runner, "spark-codec")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    ["spark-source-noop", "spark-windowed-count", "spark-sink-exactly-once", "spark-one-row-batch"],
)
def test_other_scenarios_yield_every_metric(runner: Runner, name: str) -> None:
    check_metrics(runner, name)


def test_spark_is_not_measured_on_the_mock() -> None:
    scenarios = [s for s in load_scenarios() if s.name.startswith("spark-")]
    assert len(scenarios) == 5
    assert not any(s.concerns(load_peers()["mock"]) for s in scenarios)


class Query:
    """A query that starts a batch whenever it is checked."""

    def __init__(
        self, on_batch: Callable[[], None] | None = None, error: str | None = None
    ) -> None:
        self.on_batch, self.error, self.stopped = on_batch, error, False
        self.looks = 3
        self.recentProgress: list[dict[str, Any]] = []

    def exception(self) -> str | None:
        if self.on_batch:
            self.on_batch()
        return self.error

    def stop(self) -> None:
        self.stopped = True

    @property
    def isActive(self) -> bool:
        """End after four batches, one for each check; the last is empty, as Spark's."""
        rows = [100, 200, 300, 0][len(self.recentProgress)]
        duration = {"triggerExecution": rows * 10, "addBatch": 1}
        self.recentProgress.append({"numInputRows": rows, "durationMs": duration})
        return len(self.recentProgress) < 4

    def awaitTermination(self) -> None:
        pass


def test_batches_of_the_warm_up_do_not_count() -> None:
    done = Batches(Query(), warm_up=1).run()
    assert (done.rows, done.batches, done.took.wall_s) == (500, 2, 5.0)


def test_query_that_ends_early_is_rejected() -> None:
    with pytest.raises(RuntimeError, match="before the warm-up"):
        Batches(Query(), warm_up=5).run()


def test_intervals_are_between_starts_of_batches() -> None:
    queries: list[Query] = []

    def start(on_batch: Callable[[], None]) -> Query:
        queries.append(Query(on_batch))
        return queries[-1]

    marks = intervals(start, batches=3, warm_up=2)
    assert len(marks) == 3 and all(mark.wall_s > 0 for mark in marks)
    assert queries[0].stopped


def test_failed_query_ends_the_measurement() -> None:
    with pytest.raises(RuntimeError, match="no more"):
        intervals(lambda on_batch: Query(error="no more"), batches=1, warm_up=0)


def test_marks_are_subtracted() -> None:
    assert Mark(5.0, 3.0, 2.0).since(Mark(1.0, 1.0, 1.5)) == Mark(4.0, 2.0, 0.5)
