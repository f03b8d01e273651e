"""Micro-batches of one row: with Spark's own source and a no-op write, and with our source and
sink.

Job: address, topic (filled, one partition), out (a topic), batches, warmup_batches, turns.
"""

import tempfile
from collections.abc import Callable
from statistics import median
from typing import Any

from bench.load.job import Job, run, say_ready, wait_go
from bench.load.spark_driver import Mark, intervals, source, start_session

Sink = Callable[[Any, int], None]


def rate(spark: Any, job: Job) -> Any:
    stream = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 1)
        .option("numPartitions", 1)
    )
    return stream.load().selectExpr("cast(value as string) as value")


def topic(spark: Any, job: Job) -> Any:
    return source(spark, job, maxOffsetsPerTrigger=1).select("key", "value")


def noop(batch: Any, batch_id: int) -> None:
    batch.write.format("noop").mode("overwrite").save()


def sink_of(job: Job, number: str) -> Any:
    from millstream.spark.sink.topic_sink import TopicSink

    sink = TopicSink(job["address"], f"one-row-{number}", topic=job["out"])
    sink.open()
    return sink


# The source of the row, and whether our sink writes it.
KINDS: dict[str, tuple[Callable[[Any, Job], Any], bool]] = {
    "floor": (rate, False),
    "source": (topic, False),
    "sink": (rate, True),
    "both": (topic, True),
}


def turn(spark: Any, job: Job, kind: str, number: int) -> list[Mark]:
    rows, with_sink = KINDS[kind]
    sink: Sink = sink_of(job, f"{kind}-{number}") if with_sink else noop

    def start(on_batch: Callable[[], None]) -> Any:
        def write(batch: Any, batch_id: int) -> None:
            on_batch()
            sink(batch, batch_id)

        writer = rows(spark, job).writeStream.foreachBatch(write)
        return writer.option("checkpointLocation", directory).start()

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        return intervals(start, job["batches"], job["warmup_batches"])


def work(job: Job) -> Job:
    spark = start_session()
    for kind in KINDS:
        turn(spark, job, kind, 0)
    say_ready()
    wait_go()
    marks_by_kind: dict[str, list[Mark]] = {kind: [] for kind in KINDS}
    for number in range(job["turns"]):  # alternately, since the speed of a machine varies
        for kind, marks in marks_by_kind.items():
            marks += turn(spark, job, kind, number + 1)
    spark.stop()
    result: Job = {
        f"{kind}_ms": 1000 * median(m.wall_s for m in marks)
        for kind, marks in marks_by_kind.items()
    }
    result |= {
        f"{kind}_cpu_ms": 1000 * median(m.cpu_s for m in marks)
        for kind, marks in marks_by_kind.items()
    }
    return result | {
        "batches": {
            kind: [round(m.wall_s, 4) for m in marks] for kind, marks in marks_by_kind.items()
        }
    }


if __name__ == "__main__":
    run(work)
