"""How each kind of scenario is measured: one file per kind, listed here.

A measure is a function (workshop, scenario, peer) -> Reading and the metrics it yields.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.model import Metric, Peer, Scenario
from bench.running import Workshop

TOPIC = "bench"


@dataclass(frozen=True, slots=True)
class Reading:
    """One measurement of one peer: values by metric, and details for the JSON."""

    values: Mapping[str, float]
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measure:
    """A way to measure, with its metrics."""

    name: str
    metrics: tuple[Metric, ...]
    run: Callable[[Workshop, Scenario, Peer], Reading]


def all_measures() -> dict[str, Measure]:
    from bench.measures import (
        clients,
        cluster,
        compaction,
        connectors,
        consume,
        demo,
        end_to_end,
        groups,
        kafka_tools,
        leader_change,
        limits,
        memory,
        offsets,
        produce,
        rebalance,
        recovery,
        requests,
        spark,
        stall,
        start,
        sync,
        transactions,
    )

    modules = (
        *(limits, start, memory, produce, sync, consume, end_to_end, requests),
        *(compaction, recovery, groups, offsets, rebalance, transactions),
        *(kafka_tools, clients, stall, cluster, leader_change, spark, connectors, demo),
    )
    return {m.name: m for module in modules for m in module.MEASURES}
