"""The Spark scenarios in small, and how their batches are counted."""

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
    assert set(reading.values) == {metric.name for metric in all_measures()[scenario.measure].metrics}


def test_a_scenario_without_a_driver_yields_every_metric_of_its_measure(runner: Runner) -> None:
    check_metrics(runner, "spark-codec")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    ["spark-source-noop", "spark-windowed-count", "spark-sink-exactly-once", "spark-one-row-batch"],
)
def test_the_other_scenarios_do_too(runner: Runner, name: str) -> None:
    check_metrics(runner, name)


def test_spark_is_measured_on_brokers_that_it_can_read() -> None:
    found = [s for s in load_scenarios() if s.name.startswith("spark-")]
    assert len(found) == 5
    assert not any(s.concerns(load_peers()["mock"]) for s in found)


class Query:
    """A query that notes the start of a batch whenever it is looked at, and is stopped in the end."""

    def __init__(self, noted: Callable[[], None] | None = None, error: str | None = None) -> None:
        self.noted, self.error, self.stopped = noted, error, False
        self.looks = 3
        self.recentProgress: list[dict[str, Any]] = []

    def exception(self) -> str | None:
        if self.noted:
            self.noted()
        return self.error

    def stop(self) -> None:
        self.stopped = True

    @property
    def isActive(self) -> bool:
        """Ends by itself, a batch at each look; the empty one is Spark's last."""
        rows = [100, 200, 300, 0][len(self.recentProgress)]
        duration = {"triggerExecution": rows * 10, "addBatch": 1}
        self.recentProgress.append({"numInputRows": rows, "durationMs": duration})
        return len(self.recentProgress) < 4

    def awaitTermination(self) -> None:
        pass


def test_batches_before_the_warm_up_is_over_do_not_count() -> None:
    done = Batches(Query(), warm_up=1).run()
    assert (done.rows, done.batches, done.took.wall_s) == (500, 2, 5.0)


def test_a_query_that_ends_early_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="before the warm-up"):
        Batches(Query(), warm_up=5).run()


def test_intervals_are_those_between_the_starts_of_batches() -> None:
    queries: list[Query] = []

    def start(noted: Callable[[], None]) -> Query:
        queries.append(Query(noted))
        return queries[-1]

    found = intervals(start, batches=3, warm_up=2)
    assert len(found) == 3 and all(one.wall_s > 0 for one in found)
    assert queries[0].stopped


def test_a_query_that_fails_ends_the_measurement() -> None:
    with pytest.raises(RuntimeError, match="no more"):
        intervals(lambda noted: Query(error="no more"), batches=1, warm_up=0)


def test_marks_tell_what_passed() -> None:
    assert Mark(5.0, 3.0, 2.0).since(Mark(1.0, 1.0, 1.5)) == Mark(4.0, 2.0, 0.5)
