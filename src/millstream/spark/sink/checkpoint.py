"""The identity of a micro-batch, read from Spark's checkpoint on any file system.

Spark writes the offsets log of the checkpoint before a batch runs, and does not change it when the
batch runs again. A hash of its bytes and the query id identifies a batch.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.spark.sink.failures import SinkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERY_ID = "sql.streaming.queryId"
MICRO_BATCH = "MicroBatchExecution"
REJECTED_TRIGGERS = {
    "ContinuousTrigger": "continuous processing",
    "RealTimeTrigger": "real-time mode",
}


class BatchIdentity(NamedTuple):
    """The query's id, which the checkpoint stores, and a hash of the offsets of the batch."""

    query: str
    offsets: str


def check_session(spark: SparkSession) -> None:
    """Reject settings with which two attempts of a task could write at the same time."""
    if str(spark.conf.get("spark.speculation", "false")).lower() == "true":
        raise SinkError(
            "spark.speculation runs two attempts of a task at the same time, and only one may write",
            hint='set spark.speculation=false, or use delivery="at-least-once"',
        )


def check_execution(execution: Any) -> None:
    """Reject queries whose batches run before their offsets are written."""
    kind = execution.getClass().getSimpleName()
    if kind != MICRO_BATCH:
        feature = "asynchronous progress tracking" if "Async" in kind else kind
        raise SinkError(
            f"{feature} cannot be exactly-once: the offsets of a batch must be written before it runs",
            hint='remove the option asyncProgressTrackingEnabled, or use delivery="at-least-once"',
        )
    trigger = execution.trigger().getClass().getSimpleName().rstrip("$")
    if trigger in REJECTED_TRIGGERS:
        raise SinkError(
            f"{REJECTED_TRIGGERS[trigger]} cannot be exactly-once",
            hint="use processingTime or availableNow as the trigger",
        )


def query_id_of(spark: SparkSession) -> str:
    """Return the id of the query whose foreachBatch function runs in this thread."""
    query_id = spark.sparkContext.getLocalProperty(QUERY_ID)
    if not query_id:
        raise SinkError(
            "the sink was called outside of a streaming query",
            hint='use it in foreachBatch, or write a batch with df.write.format("millstream")',
        )
    return str(query_id)


def current(spark: SparkSession, known: Checkpoint | None) -> Checkpoint:
    """Return the checkpoint of the query that runs in this thread, reusing the known one."""
    query_id = query_id_of(spark)
    if known is not None and known.query == query_id:
        return known
    return Checkpoint(spark, query_id)


class Checkpoint:
    """The checkpoint of a running query. Values that stay the same are looked up once."""

    def __init__(self, spark: SparkSession, query_id: str) -> None:
        jvm: Any = spark._jvm
        self.query = query_id
        # Spark's object for the query, in any session of this application.
        running = spark._jsparkSession.sharedState().activeStreamingQueries()
        self._execution = running.get(jvm.java.util.UUID.fromString(query_id))
        if self._execution is None:
            raise SinkError(f"query {query_id} is no longer running")
        check_execution(self._execution)
        self._offsets = f"{str(self._execution.resolvedCheckpointRoot()).rstrip('/')}/offsets"
        self._path = jvm.org.apache.hadoop.fs.Path
        self._all_bytes = jvm.org.apache.commons.io.IOUtils.toByteArray
        settings = spark._jsparkSession.sessionState().newHadoopConf()
        self._files = self._path(self._offsets).getFileSystem(settings)

    def identify(self, batch_id: int) -> BatchIdentity:
        """Return the identity of a batch that is about to run."""
        written = self._read(batch_id)
        return BatchIdentity(
            self.query, hashlib.sha256(self.query.encode() + b"\n" + written).hexdigest()
        )

    def offsets(self, batch_id: int) -> list[str]:
        """Return where a batch ends in each of its sources, as the sources wrote it."""
        _version, _settings, *sources = self._read(batch_id).decode().splitlines()
        return sources

    def _read(self, batch_id: int) -> bytes:
        stream = self._files.open(self._path(f"{self._offsets}/{batch_id}"))
        try:
            return bytes(self._all_bytes(stream))
        finally:
            stream.close()

    def plan(self) -> Any:
        """Return Spark's plan of the running batch (``IncrementalExecution``)."""
        return self._execution.lastExecution()

    def is_active(self) -> bool:
        """Return whether the query runs and has not been asked to stop."""
        return bool(self._execution.isActive())
