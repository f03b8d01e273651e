"""A cluster as a peer: which scenarios it is in, what is compared with what, and a tiny run of each of its measures."""

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
    found = tiny(name, TINY)
    return replace(found, load=dict(found.load) | {"partitions": min(found.load["partitions"], 6)})


def test_a_peer_that_is_not_for_everything_runs_where_it_is_named() -> None:
    peers, scenarios = load_peers(), {s.name: s for s in load_scenarios()}
    assert scenarios["cluster-produce"].concerns(peers["cluster"])
    assert scenarios["cluster-produce"].concerns(peers["millstream"])
    assert not scenarios["cluster-produce"].concerns(peers["mock"])
    assert not scenarios["produce-100b"].concerns(peers["cluster"])
    assert scenarios["produce-100b"].concerns(peers["mock"])


def test_scenarios_name_peers_that_exist_and_their_subject_is_among_them() -> None:
    peers = load_peers()
    for one in load_scenarios():
        assert set(one.peers) <= set(peers), one.name
        assert one.subject in (one.peers or peers), one.name


def test_a_cluster_is_measured_with_acks_of_all() -> None:
    peers, found = load_peers(), scenario("cluster-produce")
    acks = {name: found.on(peers[name]).load["acks"] for name in found.peers}
    assert acks == {"millstream": 1, "cluster": -1, "kafka-cluster": -1}


def test_the_subject_of_a_scenario_is_compared_with_the_others_of_it() -> None:
    found = scenario("cluster-produce")
    outcome = Outcome(
        {
            "millstream": [Reading({"messages_per_s": 100.0})],
            "cluster": [Reading({"messages_per_s": 45.0})],
        }
    )
    run = Run({}, {"millstream": "1", "mock": "2", "cluster": "1"}, {}, 1, {found.name: outcome})
    row = next(rows(run, [found], all_measures()))
    assert row.heads == ("metric", "millstream", "cluster", "ratio to millstream", "goal", "")
    assert (row.ratios, row.goal) == (("0.45x",), "≥ 0.4x millstream; ≥ 1x kafka-cluster")
    assert row.verdict == "met; not measured"


def test_partitions_are_shared_out_among_topics() -> None:
    assert dict(topic_sizes(10, 4)) == {"bench-0": 4, "bench-1": 4, "bench-2": 2}


@pytest.fixture
def runner(runner_of: Callable[[str], Runner]) -> Runner:
    skip_without_zookeeper()
    return runner_of("cluster")


@pytest.mark.parametrize("name", ["cluster-end-to-end-1k", "cluster-leader-change-30"])
def test_a_cluster_yields_every_metric_of_the_measure(runner: Runner, name: str) -> None:
    found = scenario(name)
    outcome = runner.scenario(found, 1, "")
    assert outcome.absent == {}
    (reading,) = outcome.readings["cluster"]
    assert set(reading.values) >= {metric.name for metric in all_measures()[found.measure].metrics}


@pytest.mark.long
def test_brokers_are_killed_and_stopped_and_what_that_costs_is_told(runner: Runner) -> None:
    found = scenario("cluster-3000-partitions")
    outcome = runner.scenario(found, 1, "")
    assert outcome.absent == {}
    (reading,) = outcome.readings["cluster"]
    assert set(reading.values) == {metric.name for metric in all_measures()[found.measure].metrics}
