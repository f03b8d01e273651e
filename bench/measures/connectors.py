"""Our connectors beside Spark's own, alternately on one broker and in one driver.

If Maven cannot fetch Spark's jars, only ours are measured, with the reason.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from bench import jars
from bench.measures import Measure, Reading
from bench.measures.spark import driver
from bench.model import HERE, Metric, Peer, Scenario
from bench.processes import BenchFailed
from bench.running import Workshop


def jars_of(kind: str) -> tuple[str, ...]:
    """Return the jars for Spark's side; jars.Missing if they are not available."""
    import pyspark

    more = {
        "topic-sqlite": lambda: jars.jars(jars.SQLITE),
        "topic-postgresql": lambda: jars.jars(jars.POSTGRESQL),
        "topic-delta": jars.delta,
    }.get(kind, tuple)
    return (*jars.kafka(pyspark.__version__), *more())


@contextmanager
def postgresql(kind: str) -> Iterator[dict[str, str]]:
    """Run a server for a measurement, as the tests do; yield its URL for us and for Java."""
    if kind != "topic-postgresql":
        yield {}
        return
    sys.path.insert(0, str(HERE.parent / "tests"))
    from support import postgres

    if reason := postgres.why_not():
        raise BenchFailed(reason)
    with postgres.server(address="127.0.0.1") as server:
        yield {"database": server.url, "jdbc": server.jdbc}


def measure_connector(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    amount, missing = dict(scenario.amount), ""
    kind = amount["kind"]
    try:
        spark_jars = jars_of(kind)
    except jars.Missing as error:
        spark_jars, missing = (), f"Spark's own: {error}"
    job: dict[str, Any] = amount | {"jars": spark_jars, "partitions": scenario.load["partitions"]}
    with ExitStack() as stack:
        broker = stack.enter_context(workshop.broker(peer, scenario.settings))
        job |= {"address": broker.address, "work": str(workshop.new_work()), "other": ""}
        if kind == "topic-topic":
            job["other"] = stack.enter_context(workshop.broker(peer, scenario.settings)).address
        job |= stack.enter_context(postgresql(kind))
        result, _ = driver(workshop, "spark_connectors", job, None)
    values = {}
    for side in ("ours", "spark"):
        if side in result:
            values[f"{side}_rows_per_s"] = amount["rows"] / result[side]["seconds"]
            values[f"{side}_cpu_us_per_row"] = result[side]["cpu_s"] * 1e6 / amount["rows"]
    if "spark" in result:
        values["ratio"] = result["spark"]["seconds"] / result["ours"]["seconds"]
    reason = missing or result["missing"]
    return Reading(values, result | ({"missing": reason} if reason else {}))


CONNECTOR = (
    Metric("ours_rows_per_s", "ours", "rows/s", "higher"),
    Metric("spark_rows_per_s", "Spark's own", "rows/s", "higher"),
    Metric("ratio", "ours to Spark's own", "x", "higher"),
    Metric("ours_cpu_us_per_row", "Spark's CPU with ours", "µs/row", "lower"),
    Metric("spark_cpu_us_per_row", "and with its own", "µs/row", "lower"),
)
MEASURES = (Measure("connector", CONNECTOR, measure_connector),)
