"""A streaming query over a filled topic, in micro-batches of a fixed size, until its end.

Job: address, topic, batch_rows, warmup_batches, messages, query. The query is "noop" (discard every
column) or "windowed-count" (rows of each key in windows of ten seconds).
"""

import tempfile
from typing import Any

from bench.load.job import Job, run, say_ready, wait_go
from bench.load.spark_driver import Batches, source, start_session


def noop(rows: Any) -> Any:
    return rows.writeStream.format("noop")


def windowed_count(rows: Any) -> Any:
    from pyspark.sql import functions as F

    late = rows.withWatermark("timestamp", "1 minute")
    counted = late.groupBy(F.window("timestamp", "10 seconds"), "key").count()
    return counted.writeStream.format("noop").outputMode("update")


QUERIES = {"noop": noop, "windowed-count": windowed_count}


def work(job: Job) -> Job:
    spark = start_session()
    say_ready()
    wait_go()
    rows = source(spark, job, maxOffsetsPerTrigger=job["batch_rows"])
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = QUERIES[job["query"]](rows).option("checkpointLocation", checkpoint)
        done = Batches(writer.trigger(availableNow=True).start(), job["warmup_batches"]).run()
    spark.stop()
    expected = job["messages"] - job["warmup_batches"] * job["batch_rows"]
    if done.rows != expected:
        raise RuntimeError(f"expected {expected} rows behind the warm-up, read {done.rows}")
    return {
        "rows": done.rows,
        "batches": done.batches,
        "seconds": done.took.wall_s,
        "cpu_s": done.took.cpu_s,
        "python_cpu_s": done.took.python_cpu_s,
        "detail": done.detail,
    }


if __name__ == "__main__":
    run(work)
