"""Exactly-once writes from Spark: one Kafka transaction per micro-batch.

    sink = TopicSink("localhost:9092", "revenue.by-minute", topic="revenue")
    query = sink.start(df.writeStream.outputMode("update").option("checkpointLocation", "..."))

Spark writes the offsets of a batch to its checkpoint, runs the batch, and then marks it as done. A
driver that dies in between runs the batch again, with the same number and offsets. The checkpoint
cannot tell whether the records reached the topics. So the topics have to.

**Progress.** Each sink has a record in a compacted topic: query id, batch number, and a hash of the
batch's offsets. It is written in the transaction of the batch, so both are committed or neither is.

**Steps.** Each is a method, so that tests can kill the driver after each of them.

1. ``_fence``, once per start: InitProducerId with the sink's name as transactional id. It aborts
   the transaction that an older driver left open and raises the epoch. From then on brokers reject
   everything that the older driver and its tasks send.
2. ``_read_progress``, once per start: find the batch that was committed last. The read waits for
   open transactions on the progress topic, because until they end their records are undecided.
3. ``_is_committed``: compare the batch with the progress (``commit_rule``).
4. ``_write``: tasks append record batches to the target partitions under the driver's producer id
   and epoch. The open transaction is the staging area: the records are in the logs, and
   read_committed readers do not see them.
5. ``_check``: every partition was written by one task, and its last sequence matches its count.
6. ``_record_progress``: append the progress record, in the same transaction.
7. ``_end``: EndTxn, the only commit point. The response has the epoch of the next transaction
   (KIP-890), so a straggling task of this batch cannot write into the next one.

**After kill -9.** What the next start finds depends on the step:

- In steps 1 to 3, nothing is open. The query continues as if it had not been started.
- In steps 4 to 6, a transaction is open. ``_fence`` aborts it; without a new start its timeout
  does. The progress still names the batch before, so the batch is written again from the beginning.
- In step 7, the coordinator has logged the commit or it has not. If it has, ``_fence`` waits until
  the commit is complete, and the progress names this batch. The batch then runs into a no-op sink,
  because Spark's state and watermark need it. If it has not, the case is the one above.

**Exactly once.** No record is lost: Spark repeats a batch until this sink has returned, and it
returns only after the commit. No record is duplicated: a batch is written only if the progress
names its predecessor, and no other driver can commit after the progress was read. Within a
transaction, sequences start at 0 and each partition has one writer, so brokers recognise repeated
requests.

**What must never happen:**

- Reading the progress before fencing. An older driver could commit in between.
- A task that opens the transactional id. It would abort what the other tasks wrote.
- Two attempts of a task that write. A repeated task raises before it sends anything, because its
  first attempt may still be running. The whole batch starts over in a new transaction.
- Guessing the outcome of EndTxn. Without a response the query stops, and the next start reads it.
- A retry after the commit. Nothing after ``_end`` may fail the attempt.
- A batch without a progress record, even an empty one. A gap must always mean a mismatch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from millstream.client.errors import ClientError
from millstream.client.protocol import Protocol
from millstream.core.types import TopicPartition
from millstream.spark.options import SINK, Options, parse
from millstream.spark.sink import checkpoint
from millstream.spark.sink.checkpoint import BatchIdentity, Checkpoint
from millstream.spark.sink.failures import (
    JobFailed,
    NotFirstAttempt,
    RowRefused,
    SinkError,
    SinkFenced,
    TopicMissing,
    TransactionTimedOut,
    WriteFailed,
    from_job,
    raised_by_user_code,
)
from millstream.spark.sink.progress import CommittedProgress, Progress, ProgressTopic
from millstream.spark.sink.row_writer import NONE_BEFORE, RowWriter
from millstream.spark.sink.stages import WriteJob
from millstream.spark.sink.targets import missing_names
from millstream.spark.sink.transaction import TransactionOwner, retry
from millstream.spark.sink.writer import WrittenPartition
from millstream.spark.source.data_loss import warn_without_effect

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

logger = logging.getLogger("millstream.spark")
logger.addHandler(logging.NullHandler())

Delivery = Literal["exactly-once", "at-least-once"]
SideOutput = Callable[["SparkSession"], Iterable["DataFrame | pa.Table"]]

REQUEST_TIMEOUT_S = 30.0
# How long an open waits for transactions of other sinks on the progress topic: a little longer than
# the maximum transaction timeout that brokers allow by default.
OTHER_TRANSACTIONS_S = 960.0


class TopicSink:
    """Writes the batches of one streaming query to topics.

    ``sink_id`` must stay the same from start to start.
    """

    write_job = WriteJob
    allows_gaps = False
    """Whether batches may be missing between the committed one and the next."""

    def __init__(
        self,
        bootstrap: str,
        sink_id: str,
        *,
        topic: str | None = None,
        topics: Iterable[str] = (),
        delivery: Delivery = "exactly-once",
        options: Mapping[str, str] | None = None,
        transaction_timeout_ms: int | None = None,
        reset_progress: bool = False,
    ) -> None:
        """Create a sink; ``open`` connects it.

        ``topics`` are the topics that the column ``topic`` may name, if they are known. Otherwise
        every batch requests the metadata of all topics.
        """
        texts = dict(options or {}) | {"kafka.bootstrap.servers": bootstrap, "delivery": delivery}
        if topic is not None:
            texts["topic"] = topic
        if transaction_timeout_ms is not None:
            texts["transactionTimeoutMs"] = str(transaction_timeout_ms)
        if not sink_id:
            raise SinkError(
                "a sink needs a name", hint="use one that never changes, such as flow.topic"
            )
        self.sink_id = sink_id
        self.options: Options = parse(texts, SINK)
        warn_without_effect(texts, SINK)
        self.reset_progress = reset_progress
        self.rows_written = 0
        """Rows of the last batch; 0 if it had been committed before."""
        self.side_output: SideOutput | None = None
        """Called after a batch was computed. Returns more rows for its transaction, with a column
        ``topic``."""
        self.side_rows = 0
        """Rows of the last batch that came from the side output."""
        self._connection = self.options.connection(REQUEST_TIMEOUT_S)
        self._patience_s = self.options["deliveryTimeoutMs"] / 1000
        self._topics = tuple(topics)
        self._protocol: Protocol | None = None
        self._owner: TransactionOwner | None = None
        self._rows: RowWriter | None = None
        self._progress_topic: ProgressTopic | None = None
        self._committed = self._no_progress()
        self._checkpoint: Checkpoint | None = None

    @property
    def exactly_once(self) -> bool:
        return bool(self.options["delivery"] == "exactly-once")

    @property
    def topic(self) -> str | None:
        topic: str | None = self.options["topic"]
        return topic

    @property
    def progress(self) -> Progress | None:
        """The last committed batch, as far as this driver knows."""
        return self._committed.last

    # ---- opening ----

    def open(self) -> None:
        """Fence older drivers, then read the committed progress.

        Call it before the query reads its checkpoint, and again for a new start.
        """
        self.close()
        self._protocol = Protocol(self._connection)
        if self.exactly_once:
            self._owner = TransactionOwner(
                self._protocol,
                self.sink_id,
                timeout_ms=self.options["transactionTimeoutMs"],
                patience_s=self._patience_s,
            )
        self._rows = RowWriter(
            self.options,
            self._connection,
            self._protocol,
            self._owner,
            self._topics,
            self.write_job,
        )
        if self.exactly_once:
            self._fence()
            self._read_progress()

    def start(self, writer: DataStreamWriter) -> StreamingQuery:
        """Open the sink, then start the query."""
        if self.exactly_once:
            checkpoint.check_session(writer._spark)
        self.open()
        query = writer.foreachBatch(self).start()
        try:
            if self.exactly_once:
                execution = query._jsq.streamingQuery()
                checkpoint.check_execution(execution)
                self._committed.check_query(query.id)
        except SinkError:
            query.stop()
            raise
        return query

    def close(self) -> None:
        """Close the connections.

        An open transaction ends with its timeout, or with the next open.
        """
        if self._protocol is not None:
            self._protocol.close()
        self._protocol = self._owner = self._rows = self._progress_topic = self._checkpoint = None
        self._committed = self._no_progress()

    def _no_progress(self) -> CommittedProgress:
        return CommittedProgress(
            self.sink_id, None, reset_progress=self.reset_progress, allows_gaps=self.allows_gaps
        )

    def _opened(self) -> tuple[TransactionOwner, RowWriter]:
        if self._owner is None or self._rows is None:
            raise SinkError(
                "the sink is not open",
                hint="call open() before the query starts, or start the query with start(writer)",
            )
        return self._owner, self._rows

    # ---- one batch ----

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write a batch; this is the function for foreachBatch.

        Spark gets a one-line error, and the log gets the traceback. Long tracebacks overflow the
        stack of Spark's error handling.
        """
        try:
            self._process(batch, batch_id)
        except Exception as error:
            logger.error("batch %s of sink %r failed", batch_id, self.sink_id, exc_info=True)
            short = error if isinstance(error, ClientError) else from_job(error)
        else:
            return
        raise short.with_traceback(None) from None

    def _process(self, batch: DataFrame, batch_id: int) -> None:
        self.rows_written = self.side_rows = 0
        if not self.exactly_once:
            self._write_directly(batch, batch_id)
            return
        _, writer = self._opened()
        rows = writer.select_columns(batch)
        self._checkpoint = checkpoint.current(batch.sparkSession, self._checkpoint)
        identity = self._checkpoint.identify(batch_id)
        if self._is_committed(batch_id, identity):
            # A committed batch runs again only because Spark's state and watermark need it.
            batch.write.format("noop").mode("overwrite").save()
        else:
            self._transact(rows, batch_id, identity, self._checkpoint)

    def _transact(
        self, rows: DataFrame, batch_id: int, identity: BatchIdentity, running: Checkpoint
    ) -> None:
        """Write the batch. A failed job is aborted and starts over in a new transaction."""
        attempts = self.options["batchAttempts"]
        for attempt in range(1, attempts + 1):
            started_s = time.monotonic()
            try:
                failure = self._attempt(rows, batch_id, identity)
            except SinkFenced as error:
                raise self._explain_fencing(error, started_s) from error
            if failure is None:
                self._committed.query = identity.query
                return
            if attempt == attempts or not self._is_retriable(failure, running):
                raise failure

    def _attempt(self, rows: DataFrame, batch_id: int, identity: BatchIdentity) -> Exception | None:
        """Run one transaction.

        Return None if it was committed, or the error for which it was aborted.
        """
        try:
            written = self._write(rows, batch_id)
            counts = self._check(written)
            side = self._write_side_output(rows.sparkSession, batch_id, written)
            for topic, count in side.items():
                counts[topic] = counts.get(topic, 0) + count
            progress = self._record_progress(batch_id, identity, counts)
        except SinkFenced:
            raise
        except Exception as error:
            self._end(None)
            return error
        self._end(progress)
        self.side_rows = sum(side.values())
        self.rows_written -= self.side_rows
        return None

    def _write_side_output(
        self, session: SparkSession, batch_id: int, written: Sequence[WrittenPartition]
    ) -> dict[str, int]:
        """Write the side output after the records of the batch; return the count of each topic."""
        counts: dict[str, int] = {}
        if self.side_output is None or self._rows is None:
            return counts
        before = {
            TopicPartition(report.topic, report.partition): report.records for report in written
        }
        for rows in self.side_output(session):
            more = self._rows.write_side_output(rows, batch_id, before)
            for topic, count in self._check(more, before).items():
                counts[topic] = counts.get(topic, 0) + count
            for report in more:
                partition = TopicPartition(report.topic, report.partition)
                before[partition] = before.get(partition, 0) + report.records
        return counts

    def _is_retriable(self, error: Exception, running: Checkpoint) -> bool:
        """Return whether another attempt may succeed."""
        if isinstance(error, TopicMissing):
            _, writer = self._opened()
            return writer.request_creation(missing_names(error))
        if isinstance(error, RowRefused):
            return False
        if isinstance(error.__cause__, Exception) and raised_by_user_code(error.__cause__):
            return False
        return isinstance(error, JobFailed | NotFirstAttempt | WriteFailed) and running.is_active()

    def _explain_fencing(self, error: SinkFenced, started_s: float) -> SinkError:
        """Tell a transaction timeout from another driver.

        If another driver fenced this one, the coordinator shows the state of that driver's
        transaction.
        """
        timeout_ms = self.options["transactionTimeoutMs"]
        owner, _ = self._opened()
        if (time.monotonic() - started_s) * 1000 > timeout_ms and owner.was_aborted():
            return TransactionTimedOut(
                f"the batch took longer than the transaction timeout of {timeout_ms} ms, "
                "so the broker has aborted it",
                hint="raise transactionTimeoutMs, or make batches smaller (maxOffsetsPerTrigger)",
            )
        return SinkFenced(
            f"another driver has opened sink {self.sink_id!r} and fenced this one ({error.message})",
            hint="nothing of this batch is visible; let only one copy of the query run",
        )

    def _write_directly(self, batch: DataFrame, batch_id: int) -> None:
        """Write at least once: no shuffle, no transaction."""
        if self._rows is None:
            self.open()
        assert self._rows is not None
        rows = self._rows.select_columns(batch)
        try:
            written = self._rows.write_directly(rows, batch_id)
        except TopicMissing as error:
            if not self._rows.request_creation(missing_names(error)):
                raise
            self._write_directly(batch, batch_id)
            return
        self.rows_written = sum(report.records for report in written)
        side = self._write_side_output(rows.sparkSession, batch_id, ())
        self.side_rows = sum(side.values())

    # ---- the steps of a transaction ----

    def _fence(self) -> None:
        owner, _ = self._opened()
        owner.fence()

    def _read_progress(self) -> None:
        assert self._protocol is not None
        topic = ProgressTopic(self._protocol, self._connection, self.options["progressTopic"])
        retry(lambda: topic.open(self._patience_s), self._patience_s)
        last = retry(lambda: topic.read(self.sink_id, OTHER_TRANSACTIONS_S), self._patience_s)
        self._progress_topic, self._committed.last = topic, last

    def _is_committed(self, batch_id: int, identity: BatchIdentity) -> bool:
        """Return whether the batch is committed.

        Raise ProgressConflict if it is not the next either.
        """
        return self._committed.has(batch_id, identity)

    def _write(self, rows: DataFrame, batch_id: int) -> list[WrittenPartition]:
        _, writer = self._opened()
        return writer.write(rows, batch_id)

    def _check(
        self, written: list[WrittenPartition], before: Mapping[TopicPartition, int] = NONE_BEFORE
    ) -> dict[str, int]:
        """Return the count of each topic, after checking the reports of the tasks.

        Every partition was written by one task, and its last sequence matches its count.
        """
        seen: set[TopicPartition] = set()
        counts: dict[str, int] = {}
        for report in written:
            partition = TopicPartition(report.topic, report.partition)
            if partition in seen:
                raise WriteFailed(f"two tasks wrote to {partition}")
            expected = before.get(partition, 0) + report.records - 1
            if self.exactly_once and report.last_sequence != expected:
                raise WriteFailed(
                    f"{partition} has {report.records} records, and the last sequence {report.last_sequence}"
                )
            seen.add(partition)
            counts[report.topic] = counts.get(report.topic, 0) + report.records
        return counts

    def _record_progress(
        self, batch_id: int, identity: BatchIdentity, counts: Mapping[str, int]
    ) -> Progress:
        """Write the progress record; batches without rows have one too."""
        assert self._progress_topic is not None
        owner, _ = self._opened()
        progress = self._committed.after(batch_id, identity, counts, now_ms=int(time.time() * 1000))
        self._progress_topic.write(
            progress, owner.transactional_id, owner.producer, self._patience_s
        )
        return progress

    def _end(self, progress: Progress | None) -> None:
        """Commit the batch with its progress, or abort it if there is none."""
        owner, _ = self._opened()
        owner.end(commit=progress is not None)
        if progress is not None:
            self._committed.last = progress
            self.rows_written = sum(progress.counts.values())
