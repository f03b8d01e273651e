"""The demo's job with Spark's own Kafka connector, without exactly-once.

Broker, generator, kill and queries are the same. `python -m bench.load.demo_spark story SECONDS
RATE JARS` runs the story of `millstream demo` with a driver of this file; `... driver BOOTSTRAP
DIRECTORY JARS` is that driver. It writes the same status file, so that table and kill are the same.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from millstream.cli.demo import checks
from millstream.cli.demo.driver import PIPELINE, Driver
from millstream.cli.demo.story import Story
from millstream.pipelines.run.layout import Layout
from millstream.pipelines.run.progress import FlowProgress

ORDERS = "id string, customer string, amount decimal(12,2), at timestamp"
PAYMENTS = "order_id string, paid_at timestamp"
CUSTOMERS = "customer string, country string"
PAID = f"{ORDERS}, paid_at timestamp"
POLL_S = 0.1


class SparkDriver(Driver):
    """The driver of this file instead of `millstream pipeline run`."""

    def __init__(self, bootstrap: str, directory: Path, jars: str) -> None:
        super().__init__(bootstrap, directory)
        words = ["-m", "bench.load.demo_spark", "driver", bootstrap, str(directory), jars]
        self._command = [sys.executable, *words]


class SparkStory(Story):
    """The story with that driver.

    It commits no consumer groups, so the results show whether everything was read.
    """

    def __init__(self, *, seconds: int, rate: int, jars: str) -> None:
        super().__init__(seconds=seconds, rate=rate, keep=False)
        self._jars = jars
        self._place = Path()

    def _driver(self, bootstrap: str, directory: Path) -> Driver:
        self._place = directory
        return SparkDriver(bootstrap, directory, self._jars)

    def _settled(self, bootstrap: str, driver: Driver, books: dict[str, Any]) -> bool:
        """Return whether all results are complete; after a kill they may have duplicates."""
        paid = checks._values(bootstrap, "paid-orders")
        if len({json.loads(value)["id"] for value in paid}) < books["paid"]:
            return False
        sums = {(row["minute"], row["country"]): row["revenue"] for row in map(json.loads, checks._values(bootstrap, "revenue-by-minute"))}  # fmt: skip
        if round(100 * sum(sums.values())) < sum(books["cents"].values()):
            return False
        letters = sum(len(checks._values(bootstrap, f"{topic}.dlq")) for topic in books["broken"])
        archived = len(set(checks._archived(self._place / "paid-orders")))
        return archived >= books["paid"] and letters >= sum(books["broken"].values())


class Flows:
    """The demo's flows on Spark's connector, with the same checkpoint for each query."""

    def __init__(self, spark: Any, bootstrap: str, directory: Path) -> None:
        self.spark, self.bootstrap, self.directory = spark, bootstrap, directory
        self.checkpoints = directory / "checkpoints" / PIPELINE
        self.queries: dict[str, Any] = {}

    def start(self) -> None:
        from pyspark.sql import functions as F

        orders = self.parsed("orders", ORDERS).withWatermark("at", "2 minutes")
        payments = self.parsed("payments", PAYMENTS).withWatermark("paid_at", "2 minutes")
        in_time = F.expr("id = order_id AND paid_at BETWEEN at AND at + INTERVAL 1 MINUTE")
        paid = orders.join(payments, in_time).select("id", "customer", "amount", "at", "paid_at")
        self.to_topic("paid_orders", paid, "paid-orders", "id", "append")
        customers = self.values(self.spark.read, "customers", CUSTOMERS).select("v.*")
        minute = F.window("at", "1 minute").start.alias("minute")
        revenue = (
            self.parsed("paid-orders", PAID)
            .withWatermark("at", "3 minutes")
            .join(customers, "customer")
            .groupBy(minute, "country")
            .agg(F.sum("amount").alias("revenue"), F.count("*").alias("orders"))
        )
        self.to_topic("revenue_by_minute", revenue, "revenue-by-minute", "country", "update")
        rows = self.parsed("paid-orders", PAID).withColumn("day", F.to_date("at"))
        archive = rows.writeStream.format("parquet").partitionBy("day")
        self.begin("archive", archive.option("path", str(self.directory / "paid-orders")))
        for topic, schema in (("orders", ORDERS), ("payments", PAYMENTS), ("customers", CUSTOMERS), ("paid-orders", PAID)):  # fmt: skip
            broken = self.values(self.spark.readStream, topic, schema).filter(
                f"NOT ({_good(schema)})"
            )
            records = broken.select("key", "value").writeStream.format("kafka")
            records = records.option("kafka.bootstrap.servers", self.bootstrap).trigger(
                processingTime="5 seconds"
            )
            self.begin(f"dlq.{topic}", records.option("topic", f"{topic}.dlq"))

    def values(self, reader: Any, topic: str, schema: str) -> Any:
        from pyspark.sql import functions as F

        rows = reader.format("kafka").option("kafka.bootstrap.servers", self.bootstrap)
        rows = rows.option("subscribe", topic).option("startingOffsets", "earliest").load()
        return rows.withColumn("v", F.from_json(F.col("value").cast("string"), schema))

    def parsed(self, topic: str, schema: str) -> Any:
        return self.values(self.spark.readStream, topic, schema).filter(_good(schema)).select("v.*")

    def to_topic(self, name: str, rows: Any, topic: str, key: str, mode: str) -> None:
        records = rows.selectExpr(
            f"{key} AS key", "to_json(struct(*)) AS value"
        ).writeStream.outputMode(mode)
        records = records.format("kafka").option("kafka.bootstrap.servers", self.bootstrap)
        self.begin(name, records.option("topic", topic))

    def begin(self, name: str, writer: Any) -> None:
        folder = str(self.checkpoints / name)
        self.queries[name] = writer.queryName(name).option("checkpointLocation", folder).start()


def _good(schema: str) -> str:
    """Return the condition that every column has a value, as the demo's schemas require."""
    names = [column.strip().split()[0] for column in schema.replace("(12,2)", "").split(",")]
    return " AND ".join(f"v.{name} IS NOT NULL" for name in names)


def create_topics(bootstrap: str) -> None:
    from millstream.client import Admin

    letters = [f"{topic}.dlq" for topic in ("orders", "payments", "customers", "paid-orders")]
    with Admin(bootstrap) as admin:
        for name in {"paid-orders", "revenue-by-minute", *letters} - set(admin.topics.names()):
            admin.topics.create(name, partitions=2)


def drive(bootstrap: str, directory: Path, jars: str) -> None:
    """Run the flows until SIGTERM, and write their status where the demo reads it."""
    from millstream.pipelines.runner import SESSION_CONF
    from millstream.spark.session import session

    stopping: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.append(number)

    signal.signal(signal.SIGTERM, stop)
    create_topics(bootstrap)
    spark = session("demo", master="local[*]", conf=dict(SESSION_CONF) | {"spark.jars": jars})
    flows = Flows(spark, bootstrap, directory)
    flows.start()
    layout = Layout(PIPELINE, str(directory / "checkpoints"))
    figures = {name: FlowProgress(name) for name in flows.queries}
    for progress in figures.values():
        progress.begin(now_ms())
    while not stopping:
        for name, query in flows.queries.items():
            if query.exception() is not None:
                raise RuntimeError(f"{name}: {query.exception()}")
            for report in query.recentProgress:
                if figures[name].report(report, now_ms()):
                    figures[name].wrote(max(0, (report["sink"] or {}).get("numOutputRows") or 0))
        rows = [progress.figures("running", now_ms())._asdict() for progress in figures.values()]
        layout.write_status({"pid": os.getpid(), "state": "running", "flows": rows})
        time.sleep(POLL_S)
    for query in flows.queries.values():
        query.stop()
    spark.stop()


def now_ms() -> int:
    return int(time.time() * 1000)


def main() -> None:
    role, *arguments = sys.argv[1:]
    if role == "driver":
        drive(arguments[0], Path(arguments[1]), arguments[2])
        return
    SparkStory(seconds=int(arguments[0]), rate=int(arguments[1]), jars=arguments[2]).run()


if __name__ == "__main__":
    main()
