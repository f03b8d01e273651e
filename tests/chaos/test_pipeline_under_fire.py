"""Pipelines with state over a million records, while everything is killed and paused: every result
once (``make fire``).

The driver with its JVM, executors, Python workers and the broker are killed with -9 and stopped for
a while, at random moments, most of them while a transaction is open (or files are on their way).
What a ``read_committed`` reader finds in the topics, and what Spark and pyarrow find in the files,
is compared with a batch computation over the same input. Some records do not parse: each gives one
dead letter.

``MILLSTREAM_FIRE_RECORDS`` says how many records (1000000), ``MILLSTREAM_FIRE_KILLS`` how many
kills have to hit an open transaction at least (20), ``MILLSTREAM_KILL_SEED`` who and when.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')

import pyarrow.dataset

from chaos.fire_world import Driver, Fire, Staged, Transactions, leftovers
from millstream.client.admin.client import Admin
from millstream.client.consumer import Consumer
from millstream.client.dead_letters.letters import dead_letter
from millstream.client.producer import Producer
from millstream.local.broker import LocalBroker

KILLS = int(os.environ.get("MILLSTREAM_FIRE_KILLS", "20"))
RECORDS = int(os.environ.get("MILLSTREAM_FIRE_RECORDS", "1000000"))
SEED = int(os.environ.get("MILLSTREAM_KILL_SEED", time.time_ns() % 100_000))
PATIENCE_S = 1800.0
TIMEOUT_S = 25
KEYS = 1000
BROKEN = b"broken "
# A few in every batch, which the driver makes letters of; and more in one place than a batch names,
# which a job finds.
BROKEN_EVERY = 997
BURST = RECORDS // 500
# A hundred batches: enough for every kill to hit one of its own.
BATCH = max(RECORDS // 100, 1)
# Small record batches, written by tasks: a transaction is open for a good part of the time, as it
# is with large ones.
SINK = {
    "batchBytes": "2000",
    "driverBytes": "0",
    "batchAttempts": "10",
    "transactionTimeoutMs": str(TIMEOUT_S * 1000),
}

DECLARED = f"""
from pyspark.sql import functions as F
from millstream.pipelines import Pipeline, parquet, topic

pipe = Pipeline("fire", retries=1000, options={SINK!r})
pipe.stream(
    "numbers",
    schema="n int NOT NULL, k int NOT NULL, at timestamp NOT NULL",
    watermark="at 10 minutes",
    source={{"maxOffsetsPerTrigger": {BATCH}}},
)
"""
TOPICS = (
    DECLARED
    + """
@pipe.flow(to=topic("once", key="n", partitions=3))
def distinct(numbers):
    return numbers.dropDuplicatesWithinWatermark(["n"]).select("n", "k")

@pipe.flow(to=topic("totals", key="k", partitions=3), mode="update")
def totals(numbers):
    return numbers.groupBy("k").agg(F.count("*").alias("records"), F.sum("n").alias("sum"))
"""
)
FILES = (
    DECLARED
    + """
@pipe.flow(to=parquet("lake", by="third"))
def distinct(numbers):
    return numbers.dropDuplicatesWithinWatermark(["n"]).select("n", "k", (F.col("n") % 3).alias("third"))
"""
)
SETTINGS = {
    "transaction.state.log.num.partitions": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
}


@pytest.fixture
def own(broker: Callable[..., LocalBroker]) -> LocalBroker:
    """A broker with a million records, of which every fifth is the repetition of an earlier one,
    and broken ones between them.
    """
    made = broker(SETTINGS)
    with Admin(made.bootstrap) as admin:
        admin.topics.create("numbers", partitions=4)
    with Producer(made.bootstrap, options={"linger.ms": 20}) as producer:
        for i in range(RECORDS):
            n = i - 4 if i % 5 == 4 else i
            seconds = n // 1000 % 3600
            at = f"2026-01-01T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}Z"
            producer.send(
                "numbers",
                b'{"n":%d,"k":%d,"at":"%s"}' % (n, n % KEYS, at.encode()),
                partition=i // 5 % 4,
            )
            if i % BROKEN_EVERY == 0:
                producer.send("numbers", BROKEN + b"%d" % i, partition=i % 4)
            if i % 1000 == 0:
                producer.poll()
            if i == RECORDS // 10:
                for at_once in range(BURST):
                    producer.send("numbers", BROKEN + b"at once %d" % at_once, partition=0)
    return made


@pytest.fixture
def driver(own: LocalBroker, tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path / "fire.py", own.bootstrap)
    yield made
    made.end()


def burn(fire: Fire) -> None:
    """Until enough kills have hit, then in peace to the end of the input."""
    began_s = time.monotonic()
    print(f"\nMILLSTREAM_KILL_SEED={SEED}, {RECORDS} records", flush=True)
    while (
        fire.hits.total() < KILLS
        or min(fire.hits[kind] for kind in ("driver", "python worker", "broker")) < 2
    ):
        assert fire.kills.total() < 6 * KILLS, f"too few kills hit an open batch\n{fire.report()}"
        fire.round()
    fire.stop_driver()
    took_s = time.monotonic() - began_s
    calm = fire.driver.file.read_text().replace(
        f'"maxOffsetsPerTrigger": {BATCH}', f'"maxOffsetsPerTrigger": {10 * BATCH}'
    )
    fire.driver.file.write_text(calm)  # the rest in larger batches
    fire.driver.start("--once", master="local[2]")
    assert fire.driver.wait(PATIENCE_S) == 0, fire.driver.tail()
    assert not list(fire.driver.scratch.glob("millstream-sink-*")), (
        "batches that dead drivers left behind"
    )
    print(
        f"{fire.report()}\n{took_s:.0f} s under fire, {time.monotonic() - began_s:.0f} s in all",
        flush=True,
    )


def batch_results(
    own: LocalBroker, directory: Path, *, files: Path | None = None
) -> dict[str, Any]:
    """The same computed by Spark at once over the whole input; and what Spark
    reads in the files.
    """
    from pyspark.sql import functions as F

    from millstream.spark.session import session

    spark = session("batch", master="local[2]", conf={"spark.driver.memory": "2g"})
    try:
        raw = (
            spark.read.format("millstream")
            .option("kafka.bootstrap.servers", own.bootstrap)
            .option("subscribe", "numbers")
            .load()
        )
        values = raw.where(~F.col("value").cast("string").startswith(BROKEN.decode()))
        numbers = values.select(
            F.from_json(F.col("value").cast("string"), "n int, k int").alias("one")
        ).select("one.*")
        totals = numbers.groupBy("k").agg(F.count("*").alias("records"), F.sum("n").alias("sum"))
        found: dict[str, Any] = {
            "distinct": sorted(numbers.select("n").distinct().toArrow()["n"].to_pylist()),
            "totals": {row.k: (row.records, row.sum) for row in totals.collect()},
        }
        if files is not None:
            found["files"] = sorted(spark.read.parquet(str(files)).toArrow()["n"].to_pylist())
        return found
    finally:
        spark.stop()


@pytest.mark.timeout(0)
def test_every_result_is_in_the_topics_once(
    own: LocalBroker, driver: Driver, tmp_path: Path
) -> None:
    driver.file.write_text(TOPICS)
    is_open = Transactions(own.bootstrap, ["fire.distinct", "fire.totals"])
    burn(Fire(driver, own, is_open, SEED, TIMEOUT_S))
    assert not is_open()
    expected = batch_results(own, tmp_path)

    assert sorted(one["n"] for one in committed(own.bootstrap, "once")) == expected["distinct"]
    latest: dict[int, tuple[int, int]] = {}
    for one in committed(own.bootstrap, "totals"):
        told, before = (one["records"], one["sum"]), latest.get(one["k"], (0, 0))
        assert told[0] > before[0], (
            f"the total of {one['k']} is told twice, or went back: {before}, {told}"
        )
        latest[one["k"]] = told
    assert latest == expected["totals"]
    assert_letters_once(own.bootstrap)
    assert leftovers(own.bootstrap, ["once", "totals", "numbers.dlq"]) == 0


@pytest.mark.timeout(0)
def test_every_row_is_in_the_files_once(own: LocalBroker, driver: Driver, tmp_path: Path) -> None:
    driver.file.write_text(FILES)
    burn(
        Fire(
            driver,
            own,
            Staged(tmp_path / "lake" / "_millstream" / "fire.distinct"),
            SEED,
            TIMEOUT_S,
        )
    )
    expected = batch_results(own, tmp_path, files=tmp_path / "lake")

    plain = pyarrow.dataset.dataset(tmp_path / "lake", partitioning="hive").to_table(columns=["n"])
    assert sorted(plain["n"].to_pylist()) == expected["distinct"]
    assert expected["files"] == expected["distinct"]
    assert_letters_once(own.bootstrap)


def assert_letters_once(bootstrap: str) -> None:
    """Every broken record has one dead letter, which names its place and the flow that owns it."""
    with Consumer(bootstrap, "numbers", until_end=True) as consumer:
        broken = sorted(
            (record.partition, record.offset, record.value)
            for record in consumer
            if record.value is not None and record.value.startswith(BROKEN)
        )
    with Consumer(bootstrap, "numbers.dlq", until_end=True) as consumer:
        letters = [dead_letter(record) for record in consumer]
    assert sorted((one.partition, one.offset, one.record.value) for one in letters) == broken
    assert {(one.topic, one.flow) for one in letters} == {("numbers", "distinct")}
    assert len(broken) == BURST + -(-RECORDS // BROKEN_EVERY)


def committed(bootstrap: str, topic: str) -> Iterator[dict[str, Any]]:
    with Consumer(bootstrap, topic, until_end=True) as consumer:
        for batch in consumer.batches(max_records=20_000):
            for one in batch:
                yield json.loads(one.value or b"")
