"""The demo: the cost of its broker, generator and pipeline.

The same job runs with Spark's own Kafka connector, if Maven can fetch it.
"""

from typing import Any

from bench import jars
from bench.measures import Measure, Reading
from bench.model import Metric, Peer, Scenario
from bench.processes import BenchFailed
from bench.running import Workshop

TIMEOUT_S = 1800.0
FIGURES = ("first_row_s", "seconds", "cpu_s", "first_row_cpu_s", "queries", "processes")


def once(
    workshop: Workshop, scenario: Scenario, side: str, spark_jars: tuple[str, ...]
) -> dict[str, Any]:
    job = dict(scenario.amount) | {
        "side": side,
        "jars": spark_jars,
        "work": str(workshop.new_work()),
    }
    with workshop.load("demo", job) as load:
        load.wait_ready()
        load.go()
        return load.result(TIMEOUT_S)


def measure_demo(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    """Measure ours, then Spark's own. If the latter fails, the reason is reported."""
    import pyspark

    result: dict[str, Any] = {"ours": once(workshop, scenario, "ours", ())}
    try:
        result["spark"] = once(workshop, scenario, "spark", jars.kafka(pyspark.__version__))
    except (jars.Missing, BenchFailed) as reason:
        result["missing"] = f"Spark's own connector: {reason}"
    values = {
        f"{side}_{name}": float(result[side][name])
        for side in ("ours", "spark")
        if side in result
        for name in FIGURES
    }
    return Reading(values, result)


def _metrics(side: str, whose: str) -> tuple[Metric, ...]:
    return (
        Metric(f"{side}_first_row_s", f"{whose}: first row in the table after", "s", "lower"),
        Metric(f"{side}_seconds", f"{whose}: in all", "s", "lower"),
        Metric(f"{side}_first_row_cpu_s", f"{whose}: CPU to the first row", "s", "lower"),
        Metric(f"{side}_cpu_s", f"{whose}: CPU in all", "s", "lower"),
        Metric(f"{side}_queries", f"{whose}: queries", "", "lower"),
        Metric(f"{side}_processes", f"{whose}: processes at once", "", "lower"),
    )


MEASURES = (
    Measure("demo", (*_metrics("ours", "ours"), *_metrics("spark", "Spark's own")), measure_demo),
)
