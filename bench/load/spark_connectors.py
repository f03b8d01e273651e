"""The same rows by our connectors and by Spark's own, alternately in one driver.

Job: kind (a name of KINDS), address, other (a second broker, for topic-topic), partitions, rows,
batch_rows, turns, jars, extensions, database (a URL of PostgreSQL), jdbc (the same for Spark), work
(a directory). Without jars only ours are measured. A turn lasts from the start of a query to the
end of its last batch; each has a new target and checkpoint.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench.load.job import Job, run, say_ready, wait_go
from bench.load.spark_driver import Mark, mark, start_session

TOPIC = "bench"
SCHEMA = "id bigint, name string, amount decimal(9,2)"
SIDES = ("ours", "spark")
DELTA_CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


class Driver:
    """A session, and the operations that both sides need."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.work = Path(job["work"])
        conf: dict[str, object] = {"spark.millstream.log.level": "OFF"}
        if job["jars"]:
            conf["spark.jars"] = ",".join(job["jars"])
            conf |= DELTA_CONF if job["kind"] == "topic-delta" else {}
        self.spark = start_session(**conf)

    def values(self) -> Any:
        """Return rows that both kinds of source and sink support."""
        rows = self.spark.range(0, self.job["rows"], numPartitions=self.job["partitions"])
        return rows.selectExpr(
            "id",
            "concat('customer ', id) AS name",
            "cast(id % 100000 AS decimal(9,2)) / 100 AS amount",
        ).selectExpr("id", "name", "cast(amount AS decimal(9,2)) AS amount")

    def create(self, topic: str, address: str | None = None) -> None:
        from millstream.client.admin.client import Admin

        with Admin(address or self.job["address"]) as admin:
            admin.topics.create(topic, partitions=self.job["partitions"])

    def fill(self) -> None:
        """Create a topic, or a directory with a file for each batch."""
        if self.job["kind"] == "csv-topic":
            files = -(-self.job["rows"] // self.job["batch_rows"])
            self.values().repartition(files).write.option("header", True).csv(str(self.work / "in"))
            return
        self.create(TOPIC)
        records = self.values().selectExpr(
            "cast(id AS string) AS key", "to_json(struct(*)) AS value", f"'{TOPIC}' AS topic"
        )
        records.write.format("millstream").option(
            "kafka.bootstrap.servers", self.job["address"]
        ).mode("append").save()

    # ---- ours ----

    def ours(self, source: str, target: str, name: str, **options: Any) -> None:
        """Connect as `millstream connect FROM TO --once` does, including dead letters."""
        from millstream.connect.addresses import parse_address
        from millstream.connect.build import ConnectOptions, connection

        connect_options = ConnectOptions(self.job["address"], name, schema=SCHEMA, **options)
        self.run_flows(connection(parse_address(source), parse_address(target), connect_options))

    def run_flows(self, pipeline: Any) -> None:
        from millstream.pipelines.runner import Run, RunOptions

        events: list[dict[str, Any]] = []
        options = RunOptions(once=True, checkpoint=str(self.work / "checkpoints"))
        if not Run(pipeline, self.spark, options, events.append).run():
            raise RuntimeError(str([event for event in events if "reason" in event]))

    @property
    def our_topic(self) -> str:
        return f"topic:{TOPIC}?records={self.job['batch_rows']}"

    # ---- Spark's own ----

    def read_topic(self) -> Any:
        reader = self.spark.readStream.format("kafka").option("subscribe", TOPIC)
        reader = reader.option("kafka.bootstrap.servers", self.job["address"]).option(
            "startingOffsets", "earliest"
        )
        return reader.option("maxOffsetsPerTrigger", self.job["batch_rows"]).load()

    def parsed(self) -> Any:
        from pyspark.sql import functions as F

        value = F.from_json(F.col("value").cast("string"), SCHEMA)
        return self.read_topic().select(value.alias("v")).select("v.*")

    def finish(self, writer: Any, name: str) -> None:
        checkpoint = str(self.work / "checkpoints" / f"spark-{name}")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()

    def to_topic(self, rows: Any, topic: str, address: str, name: str) -> None:
        writer = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", address)
        self.finish(writer.option("topic", topic), name)

    def to_jdbc(self, url: str, driver: str, name: str, writers: int) -> None:
        def write(batch: Any, batch_id: int) -> None:
            options = {"url": url, "driver": driver, "dbtable": f"spark_{name}"}
            batch.coalesce(writers).write.format("jdbc").options(**options).mode("append").save()

        self.finish(self.parsed().writeStream.foreachBatch(write), name)


# ---- the directions: one function for each side ----


def parquet_ours(driver: Driver, name: str) -> None:
    driver.ours(driver.our_topic, f"parquet:{driver.work}/{name}", name)


def parquet_spark(driver: Driver, name: str) -> None:
    writer = driver.parsed().writeStream.format("parquet").option("path", str(driver.work / name))
    driver.finish(writer, name)


def delta_ours(driver: Driver, name: str) -> None:
    driver.ours(driver.our_topic, f"delta:{driver.work}/{name}", name)


def delta_spark(driver: Driver, name: str) -> None:
    writer = driver.parsed().writeStream.format("delta").option("path", str(driver.work / name))
    driver.finish(writer, name)


def csv_ours(driver: Driver, name: str) -> None:
    target = f"topic:{name}?partitions={driver.job['partitions']}"
    driver.ours(f"files:{driver.work}/in?format=csv&files_per_batch=1", target, name, key=("id",))


def csv_spark(driver: Driver, name: str) -> None:
    driver.create(name)
    rows = (
        driver.spark.readStream.schema(SCHEMA)
        .option("header", True)
        .option("maxFilesPerTrigger", 1)
    ).csv(str(driver.work / "in"))
    records = rows.selectExpr("cast(id AS string) AS key", "to_json(struct(*)) AS value")
    driver.to_topic(records, name, driver.job["address"], name)


def sqlite_ours(driver: Driver, name: str) -> None:
    driver.ours(driver.our_topic, f"sqlite:///{driver.work}/ours.db#{name.replace('-', '_')}", name)


def sqlite_spark(driver: Driver, name: str) -> None:
    """Write with one writer: SQLite supports no more.

    The table is created here, since Spark treats the JDBC driver's error for a missing table as a
    failure.
    """
    name, file = name.replace("-", "_"), driver.work / "spark.db"
    with sqlite3.connect(file) as connection:
        connection.execute(f"CREATE TABLE spark_{name} (id BIGINT, name TEXT, amount DECIMAL(9,2))")
    driver.to_jdbc(f"jdbc:sqlite:{file}", "org.sqlite.JDBC", name, 1)


def postgresql_ours(driver: Driver, name: str) -> None:
    driver.ours(driver.our_topic, f"{driver.job['database']}#{name.replace('-', '_')}", name)


def postgresql_spark(driver: Driver, name: str) -> None:
    driver.to_jdbc(driver.job["jdbc"], "org.postgresql.Driver", name.replace("-", "_"), 2)


def topic_ours(driver: Driver, name: str) -> None:
    from millstream.connect.mirror.declare import mirror
    from millstream.pipelines import Pipeline

    pipeline = Pipeline(name, bootstrap=driver.job["address"])
    ends = (f"{name}={driver.job['address']}", f"there={driver.job['other']}")
    mirror(pipeline, *ends, topics=TOPIC, groups=(), most_records=driver.job["batch_rows"])
    driver.run_flows(pipeline)


def topic_spark(driver: Driver, name: str) -> None:
    driver.create(name, driver.job["other"])
    rows = driver.read_topic().select("key", "value", "partition")
    driver.to_topic(rows, name, driver.job["other"], name)


KINDS: dict[str, dict[str, Callable[[Driver, str], None]]] = {
    "topic-parquet": {"ours": parquet_ours, "spark": parquet_spark},
    "topic-delta": {"ours": delta_ours, "spark": delta_spark},
    "csv-topic": {"ours": csv_ours, "spark": csv_spark},
    "topic-sqlite": {"ours": sqlite_ours, "spark": sqlite_spark},
    "topic-postgresql": {"ours": postgresql_ours, "spark": postgresql_spark},
    "topic-topic": {"ours": topic_ours, "spark": topic_spark},
}


def turn(driver: Driver, side: str, number: int) -> Mark:
    started = mark()
    KINDS[driver.job["kind"]][side](driver, f"{side}-{number}")
    return mark().since(started)


def work(job: Job) -> Job:
    driver = Driver(job)
    driver.fill()
    sides = list(SIDES if job["jars"] else SIDES[:1])
    missing = ""
    turn(driver, "ours", 0)
    if "spark" in sides:
        try:
            turn(driver, "spark", 0)
        except Exception as error:  # jars of another Spark version: report what they lack
            missing = f"Spark's own does not run here: {reason(error)}"
            sides.remove("spark")
    say_ready()
    wait_go()
    turns_by_side: dict[str, list[Mark]] = {side: [] for side in sides}
    for number in range(1, job["turns"] + 1):
        for side in sides[:: 1 if number % 2 else -1]:
            turns_by_side[side].append(turn(driver, side, number))
    driver.spark.stop()
    sums = {side: {"seconds": median(m.wall_s for m in marks), "cpu_s": median(m.cpu_s for m in marks)} for side, marks in turns_by_side.items()}  # fmt: skip
    turns = {side: [round(m.wall_s, 3) for m in marks] for side, marks in turns_by_side.items()}
    return sums | {"turns": turns, "missing": missing}


def reason(error: Exception) -> str:
    from millstream.pipelines.run.failures import explain

    return explain(error, None).reason[:300]


if __name__ == "__main__":
    run(work)
