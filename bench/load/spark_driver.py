"""The common parts of generators on Spark.

A driver process, the CPU time of all its processes, and the batches of a query.
"""

import itertools
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import psutil  # type: ignore[import-untyped]

from bench.load.job import Job

CORES = 2
PATIENCE_S = 120.0
POLL_S = 0.02


class Mark(NamedTuple):
    """A moment: the clock, and the CPU time so far of this process, the JVM and its Python workers.

    ``python_cpu_s`` is that of the workers alone.
    """

    wall_s: float
    cpu_s: float
    python_cpu_s: float = 0.0

    def since(self, earlier: "Mark") -> "Mark":
        return Mark(*(now - then for now, then in zip(self, earlier, strict=True)))


def start_session(**conf: object) -> Any:
    """Start a session with two cores, so that figures of several machines are comparable."""
    from millstream.spark.session import session

    settings = {"spark.driver.memory": "2g", "spark.local.dir": tempfile.gettempdir()}
    return session("bench", master=f"local[{CORES}]", conf=settings | conf)


def mark() -> Mark:
    me, total, python = psutil.Process(), 0.0, 0.0
    for process in me.children(recursive=True):
        try:
            spent = sum(process.cpu_times()[:4])  # and of children already gone
            total += spent
            python += spent * (process.name() != "java")
        except psutil.NoSuchProcess:
            pass
    return Mark(time.perf_counter(), total + sum(me.cpu_times()[:4]), python)


class Batches:
    """The batches of a running query: their rows, and the time of those after the warm-up."""

    def __init__(self, query: Any, warm_up: int) -> None:
        self.query, self.warm_up = query, warm_up
        self.rows = self.batches = 0
        self.took = Mark(0.0, 0.0)
        self.detail: list[dict[str, Any]] = []

    def run(self) -> "Batches":
        """Run to the end of a query that ends without a stop."""
        started: Mark | None = None
        while self.query.isActive:
            if started is None and len(self._finished()) >= self.warm_up:
                started = mark()
            time.sleep(POLL_S)
        self.query.awaitTermination()
        if started is None:
            raise RuntimeError("the query ended before the warm-up")
        self._count(mark().since(started))
        return self

    def _finished(self) -> list[Any]:
        return [progress for progress in self.query.recentProgress if progress["numInputRows"]]

    def _count(self, elapsed: Mark) -> None:
        """Sum up the batches. Wall time is Spark's own, batch by batch: polling is too coarse."""
        counted = self._finished()[self.warm_up :]
        wall_ms = sum(progress["durationMs"]["triggerExecution"] for progress in counted)
        self.batches, self.rows = (
            len(counted),
            sum(progress["numInputRows"] for progress in counted),
        )
        self.took = elapsed._replace(wall_s=wall_ms / 1000)
        self.detail = [
            {"rows": progress["numInputRows"]} | dict(progress["durationMs"])
            for progress in counted
        ]


def intervals(start: Callable[[Any], Any], batches: int, warm_up: int) -> list[Mark]:
    """Return the times from the start of each micro-batch to the next, after the warm-up.

    ``start`` gets a function to call at the start of each batch, and returns the running query.
    """
    marks: list[Mark] = []
    query = start(lambda: marks.append(mark()))
    try:
        deadline_s = time.monotonic() + PATIENCE_S
        while len(marks) <= warm_up + batches:
            if query.exception() is not None:
                raise RuntimeError(str(query.exception()))
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"only {len(marks)} batches within {PATIENCE_S:.0f} s")
            time.sleep(POLL_S)
    finally:
        query.stop()
    chosen = marks[warm_up : warm_up + batches + 1]
    return [later.since(earlier) for earlier, later in itertools.pairwise(chosen)]


def source(spark: Any, job: Job, **options: object) -> Any:
    """Return the topic of the job as a stream, from its beginning."""
    reader = spark.readStream.format("millstream").option("kafka.bootstrap.servers", job["address"])
    reader = reader.option("subscribe", job["topic"]).option("startingOffsets", "earliest")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()
