"""Small runs of scenarios that need a broker with a log, and the verdicts of targets."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from bench.__main__ import Runner
from bench.measures import Reading, all_measures
from bench.model import Scenario, Target
from bench.report import rows
from bench.results import Outcome, Run

from support.bench.small_scenarios import tiny

TINY = {"megabytes": 0.5, "requests": 200, "messages": 20, "seconds": 0.2, "interval_ms": 20}


@pytest.fixture
def runner(runner_of: Callable[[str], Runner]) -> Runner:
    return runner_of("millstream")


def small(name: str) -> Scenario:
    """Return the scenario with fewer connections and partitions, and small segments."""
    scenario = tiny(name, TINY)
    limits = {"connections": 10, "partitions": 8, "rate": 1000}
    load = dict(scenario.load) | {
        factor: min(scenario.load[factor], limit) for factor, limit in limits.items()
    }
    if "segment.bytes" in scenario.topic_settings:
        scenario = replace(
            scenario,
            topic_settings=dict(scenario.topic_settings) | {"segment.bytes": 1 << 20},
            amount=dict(scenario.amount) | {"megabytes": 3, "share": 0.5},
        )
    return replace(scenario, load=load)


@pytest.mark.parametrize(
    "name",
    [
        *("start", "produce-1000-partitions", "end-to-end-10k", "produce-consume"),
        *("requests-1000-connections", "transactions-100ms", "compaction", "recovery"),
    ],
)
def test_scenario_yields_every_metric_of_its_measure(runner: Runner, name: str) -> None:
    scenario = small(name)
    outcome = runner.scenario(scenario, 1, "")
    assert outcome.absent == {}
    (reading,) = outcome.readings["millstream"]
    assert set(reading.values) >= {
        metric.name for metric in all_measures()[scenario.measure].metrics
    }
    assert all(value >= 0 for value in reading.values.values())


def test_all_groups_of_a_fan_out_read_everything(runner: Runner) -> None:
    scenario = small("fan-out-5")
    (reading,) = runner.scenario(scenario, 1, "").readings["millstream"]
    assert (
        reading.detail["messages"]
        == 5 * scenario.amount["megabytes"] * 1e6 / scenario.load["message_bytes"]
    )


def test_missing_requirement_is_reported_for_every_peer(runner: Runner) -> None:
    scenario = replace(small("start"), requires={"programs": ("no-such-program",)})
    outcome = runner.scenario(scenario, 1, "")
    assert (outcome.absent, outcome.readings) == ({"millstream": "no program no-such-program"}, {})


def of(**values: float) -> list[Reading]:
    return [Reading(values)]


def test_metric_may_have_several_targets_with_verdicts() -> None:
    scenario = replace(
        tiny("produce-100b", TINY),
        targets=(
            Target("messages_per_s", versus="mock", at_least=0.5),
            Target("messages_per_s", versus="kafka", at_least=1.2),
            Target("messages_per_s", of="other", at_least=0.8),
            Target("messages_per_s", of="never-ran", at_least=0.8),
            Target("cpu_us_per_mb", at_most=100),
        ),
    )
    values = {"messages_per_s": 90.0, "cpu_us_per_mb": 130.0}
    readings = {
        "millstream": of(**values),
        "mock": of(messages_per_s=100.0),
        "kafka": of(messages_per_s=100.0),
    }
    others = Outcome({"millstream": of(messages_per_s=100.0)})
    run = Run(
        {},
        {"millstream": "1", "mock": "1", "kafka": "4"},
        {},
        1,
        {scenario.name: Outcome(readings), "other": others},
    )
    verdicts = {
        row.metric: (row.goal, row.verdict) for row in rows(run, [scenario], all_measures())
    }
    assert verdicts["messages"] == (
        "≥ 0.5x mock; ≥ 1.2x kafka; ≥ 0.8x other; ≥ 0.8x never-ran",
        "met; MISSED by 25%; met; not measured",
    )
    assert verdicts["broker CPU"] == ("≤ 100 µs/MB", "MISSED by 30%")
