"""A cluster as a peer: its scenarios, its comparisons, and a small run of each of its measures."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from bench.__main__ import Runner
from bench.cluster import topic_sizes
from bench.measures import Reading, all_measures
from bench.model import Scenario, load_peers, load_scenarios
from bench.report import rows
from bench.results import Outcome, Run

from support.bench.small_scenarios import tiny
from support.zookeeper import skip_without_zookeeper

TINY = {"partitions": 6, "partitions_per_topic": 4, "changes": 3, "megabytes": 0.5, "seconds": 0.3}


def scenario(name: str) -> Scenario:
    declared = tiny(name, TINY)
    return replace(
        declared, load=dict(declared.load) | {"partitions": min(declared.load["partitions"], 6)}
    )


def test_peer_that_is_not_everywhere_runs_where_it_is_named() -> None:
    peers, scenarios = load_peers(), {s.name: s for s in load_scenarios()}
    assert scenarios["cluster-produce"].concerns(peers["cluster"])
    assert scenarios["cluster-produce"].concerns(peers["millstream"])
    assert not scenarios["cluster-produce"].concerns(peers["mock"])
    assert not scenarios["produce-100b"].concerns(peers["cluster"])
    assert scenarios["produce-100b"].concerns(peers["mock"])


def test_scenarios_name_existing_peers_including_their_subject() -> None:
    peers = load_peers()
    for declared in load_scenarios():
        assert set(declared.peers) <= set(peers), declared.name
        assert declared.subject in (declared.peers or peers), declared.name


def test_cluster_is_measured_with_acks_all() -> None:
    peers, small = load_peers(), scenario("cluster-produce")
    acks = {name: small.on(peers[name]).load["acks"] for name in small.peers}
    assert acks == {"millstream": 1, "cluster": -1, "kafka-cluster": -1}


def test_subject_of_a_scenario_is_compared_with_its_other_peers() -> None:
    small = scenario("cluster-produce")
    outcome = Outcome(
        {
            "millstream": [Reading({"messages_per_s": 100.0})],
            "cluster": [Reading({"messages_per_s": 45.0})],
        }
    )
    run = Run({}, {"millstream": "1", "mock": "2", "cluster": "1"}, {}, 1, {small.name: outcome})
    row = next(rows(run, [small], all_measures()))
    assert row.heads == ("metric", "millstream", "cluster", "ratio to millstream", "goal", "")
    assert (row.ratios, row.goal) == (("0.45x",), "≥ 0.4x millstream; ≥ 1x kafka-cluster")
    assert row.verdict == "met; not measured"


def test_partitions_are_distributed_over_topics() -> None:
    assert dict(topic_sizes(10, 4)) == {"bench-0": 4, "bench-1": 4, "bench-2": 2}


@pytest.fixture
def runner(runner_of: Callable[[str], Runner]) -> Runner:
    skip_without_zookeeper()
    return runner_of("cluster")


@pytest.mark.parametrize("name", ["cluster-end-to-end-1k", "cluster-leader-change-30"])
def test_cluster_yields_every_metric_of_the_measure(runner: Runner, name: str) -> None:
    small = scenario(name)
    outcome = runner.scenario(small, 1, "")
    assert outcome.absent == {}
    (reading,) = outcome.readings["cluster"]
    assert set(reading.values) >= {metric.name for metric in all_measures()[small.measure].metrics}


@pytest.mark.long
def test_killed_and_stopped_brokers_yield_every_metric(runner: Runner) -> None:
    small = scenario("cluster-3000-partitions")
    outcome = runner.scenario(small, 1, "")
    assert outcome.absent == {}
    (reading,) = outcome.readings["cluster"]
    assert set(reading.values) == {metric.name for metric in all_measures()[small.measure].metrics}
