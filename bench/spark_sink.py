"""What the Spark sink costs: encoding, exactly-once against at-least-once, and the smallest micro-batch against Spark's own.

``python -m bench.spark_sink [encode] [delivery] [latency]`` prints a line for each figure. Wall time and processor time of this process, the JVM and
its Python workers: on a busy machine the second one says more.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from millstream.cli.local_broker import LocalBroker
from millstream.client.admin import Admin
from millstream.spark.session import session
from millstream.spark.sink import TopicSink
from millstream.spark.stages import EncodeJob
from millstream.spark.targets import Targets

ROWS = 1_000_000
VALUE_BYTES = 100
PARTITIONS = 4


def encode(rows: int = 200_000) -> None:
    """Records of 100 bytes, keyed, from Arrow columns to finished batches of eight partitions, on one core."""
    random = np.random.default_rng(1)
    values = pa.array([random.bytes(VALUE_BYTES) for _ in range(rows)], pa.binary())
    keys = pa.array([b"key-%06d" % (index % 10_000) for index in range(rows)], pa.binary())
    targets = Targets({"t": 8}, {"t": 0}, {}, {}, {})
    for name, columns in (("keyed", [values, keys]), ("without key", [values])):
        batch = pa.RecordBatch.from_arrays(columns, names=["value", "key"][: len(columns)])
        for codec, number in (("none", 0), ("lz4", 3)):
            job = EncodeJob(
                targets, {name: name for name in batch.schema.names}, "t", number, 1_000_000, 8, 0
            )
            best = min(_cpu(lambda job=job, batch=batch: list(job.payloads([batch]))) for _ in range(7))
            print(
                f"encode, {name}, {codec}: {rows / best / 1e6:.2f} M records/s of processor time, {best / rows * 1e9:.0f} ns each"
            )


def _cpu(work: Callable[[], object]) -> float:
    before = time.process_time()
    work()
    return time.process_time() - before


def delivery(spark: Any, broker: LocalBroker, batches: int = 5) -> None:
    """Micro-batches of a million rows through the sink, both ways."""
    figures: dict[str, list[tuple[float, float]]] = {}
    for mode in ("at-least-once", "exactly-once") * 3:
        rows = _rate(spark, ROWS, 2).selectExpr(
            f"cast(rpad(cast(value as string), {VALUE_BYTES}, 'x') as binary) as value",
            "cast(cast(value % 10000 as string) as binary) as key",
        )
        topic = _topic(broker, PARTITIONS)
        sink = TopicSink(broker.bootstrap, topic, topic=topic, delivery=mode)  # type: ignore[arg-type]
        figures.setdefault(mode, []).extend(_timed(rows, sink, batches, broker.pid)[1:])
    middle = {
        mode: [statistics.quantiles(one, n=4)[0] for one in zip(*found, strict=True)]
        for mode, found in figures.items()
    }
    for mode, (wall_s, cpu_s) in middle.items():
        print(
            f"{mode}: {ROWS / wall_s / 1e3:.0f}k rows/s, {wall_s:.2f} s and {cpu_s:.2f} s of processor time for a million rows"
        )
    for index, what in enumerate(("wall time", "processor time")):
        ratio = middle["exactly-once"][index] / middle["at-least-once"][index]
        print(f"exactly-once takes {100 * (ratio - 1):+.0f} % of {what}")


def latency(spark: Any, broker: LocalBroker, batches: int = 25) -> None:
    """Micro-batches of one row: Spark's own foreachBatch with a no-op write, and the sink."""

    class Noop:
        def __call__(self, batch: Any, batch_id: int) -> None:
            batch.write.format("noop").mode("overwrite").save()

    topic = _topic(broker, PARTITIONS)
    sinks = {
        "noop": Noop(),
        "at-least-once": TopicSink(broker.bootstrap, f"{topic}-a", topic=topic, delivery="at-least-once"),
        "exactly-once": TopicSink(broker.bootstrap, f"{topic}-e", topic=topic, reset_progress=True),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sinks}
    for _ in range(3):  # in turn, since the machine is never twice the same
        for name, sink in sinks.items():
            rows = _rate(spark, 1, 1).selectExpr("cast(value as string) as value")
            found[name] += _timed(rows, sink, batches, broker.pid)[5:]
    figures = {
        name: [statistics.quantiles(one, n=4)[0] * 1000 for one in zip(*times, strict=True)]
        for name, times in found.items()
    }
    for name, (wall_ms, cpu_ms) in figures.items():
        print(f"one row, {name}: {wall_ms:.0f} ms, {cpu_ms:.0f} ms of processor time (lower quartile)")
    for index, what in enumerate(("ms", "ms of processor time")):
        added = figures["exactly-once"][index] - figures["noop"][index]
        print(f"exactly-once adds {added:.0f} {what} to a batch of one row")


def _timed(rows: Any, sink: Any, batches: int, broker_pid: int) -> list[tuple[float, float]]:
    """(wall, processor) seconds between the starts of batches."""
    marks: list[tuple[float, float]] = []

    def call(batch: Any, batch_id: int) -> None:
        marks.append((time.monotonic(), _processor_s(broker_pid)))
        sink(batch, batch_id)

    if isinstance(sink, TopicSink):
        sink.open()
    with tempfile.TemporaryDirectory() as directory:
        writer = rows.writeStream.foreachBatch(call).option("checkpointLocation", directory)
        query = writer.start()
        while len(marks) <= batches:
            if query.exception() is not None:
                raise RuntimeError(query.exception())
            time.sleep(0.01)
        query.stop()
    return [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(marks[: batches + 1])]


def _processor_s(broker_pid: int) -> float:
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        if process.pid != broker_pid:
            try:
                times = process.cpu_times()
                total += times.user + times.system
            except psutil.NoSuchProcess:
                pass
    return total


def _rate(spark: Any, rows: int, partitions: int) -> Any:
    source = spark.readStream.format("rate-micro-batch")
    return source.option("rowsPerBatch", rows).option("numPartitions", partitions).load()


def _topic(broker: LocalBroker, partitions: int) -> str:
    name = f"bench-{os.urandom(4).hex()}"
    with Admin(broker.bootstrap) as admin:
        admin.topics.create(name, partitions=partitions)
    return name


@contextmanager
def _broker() -> Iterator[LocalBroker]:
    with tempfile.TemporaryDirectory() as directory:
        broker = LocalBroker(Path(directory)).start()
        try:
            yield broker
        finally:
            broker.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", choices=["encode", "delivery", "latency", []], default=[])
    wanted = parser.parse_args().what or ["encode", "delivery", "latency"]
    if "encode" in wanted:
        encode()
    if {"delivery", "latency"} & set(wanted):
        with _broker() as broker:
            spark = session("bench", master="local[2]", conf={"spark.driver.memory": "3g"})
            if "latency" in wanted:
                latency(spark, broker)
            if "delivery" in wanted:
                delivery(spark, broker)
            spark.stop()


if __name__ == "__main__":
    main()
