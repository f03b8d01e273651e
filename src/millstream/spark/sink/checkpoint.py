"""Which query and which input a micro-batch is: read from Spark's own checkpoint, on whatever file system it is.

The offsets log of the checkpoint is written before a batch runs and stays as it is when the batch runs again. Its bytes, hashed together
with the id of the query, tell whether a batch is the one that was committed before.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.spark.sink.failures import SinkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERY_ID = "sql.streaming.queryId"
MICRO_BATCH = "MicroBatchExecution"
REFUSED_TRIGGERS = {
    "ContinuousTrigger": "continuous processing",
    "RealTimeTrigger": "real-time mode",
}


class BatchIdentity(NamedTuple):
    """The id of the query (it lives in the checkpoint) and a hash of the offsets that the batch reads."""

    query: str
    offsets: str


def check_session(spark: SparkSession) -> None:
    """What would let two attempts of a task write at the same time."""
    if str(spark.conf.get("spark.speculation", "false")).lower() == "true":
        raise SinkError(
            "spark.speculation runs tasks twice at the same time, and only one may write",
            hint='set spark.speculation=false, or use delivery="at-least-once"',
        )


def check_execution(execution: Any) -> None:
    """Only micro-batches whose offsets are written before they run have one transaction each."""
    kind = execution.getClass().getSimpleName()
    if kind != MICRO_BATCH:
        what = "asynchronous progress tracking" if "Async" in kind else f"{kind}"
        raise SinkError(
            f"{what} cannot be exactly-once: the offsets of a batch must be written before it runs",
            hint='leave the option asyncProgressTrackingEnabled out, or use delivery="at-least-once"',
        )
    trigger = execution.trigger().getClass().getSimpleName().rstrip("$")
    if trigger in REFUSED_TRIGGERS:
        raise SinkError(
            f"{REFUSED_TRIGGERS[trigger]} cannot be exactly-once",
            hint="use processingTime or availableNow as the trigger",
        )


def query_id_of(spark: SparkSession) -> str:
    """The query whose foreachBatch function is running in this thread."""
    query_id = spark.sparkContext.getLocalProperty(QUERY_ID)
    if not query_id:
        raise SinkError(
            "the sink was called outside of a streaming query",
            hint='use it in foreachBatch, or write a batch with df.write.format("millstream")',
        )
    return str(query_id)


def current(spark: SparkSession, known: Checkpoint | None) -> Checkpoint:
    """Return the checkpoint of the query that runs in this thread: the known one if it is that."""
    query_id = query_id_of(spark)
    if known is not None and known.query == query_id:
        return known
    return Checkpoint(spark, query_id)


class Checkpoint:
    """The checkpoint of a running query. What stays the same from batch to batch is asked for once."""

    def __init__(self, spark: SparkSession, query_id: str) -> None:
        jvm: Any = spark._jvm
        self.query = query_id
        # Spark's own object for the query, in whichever session of this application it was started.
        running = spark._jsparkSession.sharedState().activeStreamingQueries()
        self._execution = running.get(jvm.java.util.UUID.fromString(query_id))
        if self._execution is None:
            raise SinkError(f"query {query_id} is not running any more")
        check_execution(self._execution)
        self._offsets = f"{str(self._execution.resolvedCheckpointRoot()).rstrip('/')}/offsets"
        self._path = jvm.org.apache.hadoop.fs.Path
        self._all_bytes = jvm.org.apache.commons.io.IOUtils.toByteArray
        settings = spark._jsparkSession.sessionState().newHadoopConf()
        self._files = self._path(self._offsets).getFileSystem(settings)

    def identify(self, batch_id: int) -> BatchIdentity:
        """Query and offsets of a batch that is about to run."""
        written = self._read(batch_id)
        return BatchIdentity(self.query, hashlib.sha256(self.query.encode() + b"\n" + written).hexdigest())

    def offsets(self, batch_id: int) -> list[str]:
        """Where a batch ends in each of its sources, as these wrote it."""
        _version, _settings, *sources = self._read(batch_id).decode().splitlines()
        return sources

    def _read(self, batch_id: int) -> bytes:
        stream = self._files.open(self._path(f"{self._offsets}/{batch_id}"))
        try:
            return bytes(self._all_bytes(stream))
        finally:
            stream.close()

    def plan(self) -> Any:
        """Spark's plan of the batch that is running (``IncrementalExecution``)."""
        return self._execution.lastExecution()

    def is_active(self) -> bool:
        """Not after someone has asked the query to stop."""
        return bool(self._execution.isActive())
