"""Micro-batches of many rows through the sink, exactly once and at least once alternately.

Job: address, topics (delivery -> topic), batch_rows, batches, warmup_batches, turns, message_bytes.
"""

import tempfile
from collections.abc import Callable
from statistics import median
from typing import Any

from bench.load.job import Job, run, say_ready, wait_go
from bench.load.spark_driver import CORES, Mark, intervals, start_session

KEYS = 10_000


def rows(spark: Any, job: Job) -> Any:
    """Made by Spark itself, the same number in every batch: nothing but the sink is measured beside
    it.
    """
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", job["batch_rows"])
    return (
        rate.option("numPartitions", CORES)
        .load()
        .selectExpr(
            f"cast(rpad(cast(value as string), {job['message_bytes']}, 'x') as binary) as value",
            f"cast(cast(value % {KEYS} as string) as binary) as key",
        )
    )


def turn(spark: Any, job: Job, delivery: str, number: int) -> list[Mark]:
    """Run one query, with some batches that do not count."""
    from millstream.spark.sink.topic_sink import TopicSink

    sink = TopicSink(
        job["address"], f"{delivery}-{number}", topic=job["topics"][delivery], delivery=delivery
    )  # type: ignore[arg-type]

    def start(on_batch: Callable[[], None]) -> Any:
        def write(batch: Any, batch_id: int) -> None:
            on_batch()
            sink(batch, batch_id)

        sink.open()
        writer = rows(spark, job).writeStream.foreachBatch(write)
        return writer.option("checkpointLocation", directory).start()

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        marks = intervals(start, job["batches"], job["warmup_batches"])
    sink.close()
    return marks


def work(job: Job) -> Job:
    spark = start_session()
    for delivery in job["topics"]:
        turn(spark, job | {"batches": 1}, delivery, 0)
    say_ready()
    wait_go()
    marks_by_delivery: dict[str, list[Mark]] = {delivery: [] for delivery in job["topics"]}
    for number in range(job["turns"]):
        for delivery in list(marks_by_delivery)[:: 1 if number % 2 else -1]:
            marks_by_delivery[delivery] += turn(spark, job, delivery, number + 1)
    spark.stop()
    return {
        delivery: {
            "seconds": median(m.wall_s for m in marks),
            "cpu_s": median(m.cpu_s for m in marks),
        }
        | {"batches": [round(m.wall_s, 3) for m in marks]}
        for delivery, marks in marks_by_delivery.items()
    }


if __name__ == "__main__":
    run(work)
