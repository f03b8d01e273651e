"""A driver in a separate process, to kill, stop and restart.

It runs as ``python sink_driver.py '{"bootstrap": ...}'``. It copies a topic to another with the
sink, in small batches, and ends at the end of the topic. Its JSON argument may have:

- ``die_after``: a step of the sink (``_write``, ``_end``, ...) after which it kills itself with -9;
  ``times``: the n-th time
- ``pause_before``: a step before which it creates the file ``paused`` and waits for the file ``go``
- ``pause_task``: the same in the middle of a writing task
- ``kill_task``: a writing task kills itself half-way, once
- ``pause_between``: it waits between the two steps of opening the sink
- ``mutant``: ``any-attempt`` omits the check for repeated tasks; ``read-first`` reads the progress
  before fencing
- ``shuffle``: batches go through a shuffle to their writers, as on a cluster
- ``slow_s``: seconds that every writing task waits half-way, and the driver after writing, to keep
  transactions open
- ``few``: the driver writes small batches itself (otherwise tasks always write)
- ``counted``: a running count by value in update mode, instead of the plain copy

If the query fails, the exit code is 3 and the error is on standard output.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream.spark.session import session
from millstream.spark.sink import spill
from millstream.spark.sink.stages import WriteJob
from millstream.spark.sink.topic_sink import TopicSink
from support.spark import quick_jvm

FAILED = 3


def wait_for_go(directory: Path) -> None:
    (directory / "paused").touch()
    while not (directory / "go").exists():
        time.sleep(0.02)


@dataclass(frozen=True)
class DisturbedJob(WriteJob):
    """The second stage, with the failures that the test requests."""

    pause: bool = False
    kill: bool = False
    any_attempt: bool = False
    slow_s: float = 0.0
    directory: str = "."

    def run(self, batches: Any) -> Any:
        return super().run(self.disturbed(batches))

    def disturbed(self, batches: Any) -> Any:
        if self.any_attempt and self.attempt() > 0:
            batches = reversed(list(batches))  # a shuffle promises no order
            yield from ((batch.take(list(range(batch.num_rows))[::-1])) for batch in batches)
            return
        for batch in batches:
            half = (batch.num_rows + 1) // 2
            if self.kill:
                half = min(
                    half, 4
                )  # a broker knows the last five batches again, and takes others for lost ones
            yield batch.slice(0, half)
            time.sleep(self.slow_s)
            if self.pause and self.once("task"):
                wait_for_go(Path(self.directory))
            if self.kill and self.once("task"):
                time.sleep(0.5)  # what was sent arrives
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch.slice(half)

    def once(self, name: str) -> bool:
        try:
            os.close(os.open(Path(self.directory) / f"once-{name}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def attempt(self) -> int:
        from pyspark import TaskContext

        context = TaskContext.get()
        return 0 if context is None else context.attemptNumber()

    def check_task(self) -> None:
        if not self.any_attempt:
            super().check_task()

    def check_thread(self, name: str | None) -> bool:
        return True if self.any_attempt else super().check_thread(name)


class DisturbedSink(TopicSink):
    """The sink; it can die or wait at each step."""

    asked: dict[str, Any]

    def _step(self, name: str, *args: Any) -> Any:
        if self.asked.get("pause_before") == name:
            del self.asked["pause_before"]
            wait_for_go(Path(self.asked["directory"]))
        result = getattr(super(), name)(*args)
        if self.asked.get("die_after") == name:
            self.asked["times"] = self.asked.get("times", 1) - 1
            if self.asked["times"] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return result

    def _fence(self) -> Any:
        if self.asked.get("mutant") == "read-first":
            self._step("_read_progress")
            wait_for_go(Path(self.asked["directory"]))
        return self._step("_fence")

    def _read_progress(self) -> Any:
        if self.asked.get("mutant") == "read-first":
            return None
        if self.asked.get("pause_between"):
            wait_for_go(Path(self.asked["directory"]))
        return self._step("_read_progress")

    def _is_committed(self, *args: Any) -> Any:
        return self._step("_is_committed", *args)

    def _write(self, *args: Any) -> Any:
        return self._step("_write", *args)

    def _check(self, *args: Any) -> Any:
        time.sleep(self.asked.get("slow_s", 0.0))
        return self._step("_check", *args)

    def _record_progress(self, *args: Any) -> Any:
        return self._step("_record_progress", *args)

    def _end(self, *args: Any) -> Any:
        return self._step("_end", *args)


def run(asked: dict[str, Any]) -> None:
    from pyspark.sql import functions as F

    if asked.get("shuffle"):
        spill.is_local = lambda session: False
    conf = quick_jvm.CONF | {"spark.driver.memory": "1g"}
    spark = session("sink driver", master=asked.get("master", "local[2]"), conf=conf)
    options = {"batchBytes": str(asked.get("batch_bytes", 1_000_000))}
    if not asked.get("few"):
        options["driverBytes"] = "0"
    sink = DisturbedSink(
        asked["bootstrap"],
        asked["sink"],
        topic=asked["target"],
        options=options,
        transaction_timeout_ms=asked.get("timeout_ms", 60_000),
    )
    sink.asked = asked
    sink.write_job = lambda to: DisturbedJob(  # type: ignore[assignment,misc]
        to,
        asked.get("pause_task", False),
        asked.get("kill_task", False),
        asked.get("mutant") == "any-attempt",
        asked.get("slow_s", 0.0),
        asked["directory"],
    )
    rows = (
        spark.readStream.format("millstream")
        .option("kafka.bootstrap.servers", asked["bootstrap"])
        .option("subscribe", asked["source"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", asked.get("max_offsets", 100))
        .load()
    )
    mode = "append"
    if asked.get("counted"):
        counted = rows.groupBy(F.col("value").cast("string").alias("key")).count()
        rows, mode = counted.select("key", F.col("count").cast("string").alias("value")), "update"
    else:
        rows = rows.select("value")
    writer = rows.writeStream.outputMode(mode).trigger(availableNow=True)
    query = sink.start(writer.option("checkpointLocation", asked["checkpoint"]))
    query.awaitTermination()


def main() -> None:
    try:
        run(json.loads(sys.argv[1]))
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(FAILED)
    print("done", flush=True)
    os._exit(0)  # no waiting for the JVM to say good-bye


if __name__ == "__main__":
    # Under the module's own name, so that the tasks find its classes again.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from support.spark import sink_driver

    sink_driver.main()
