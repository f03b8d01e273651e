"""The exactly-once sink: one transaction per micro-batch, whose progress is committed together with its data.

    sink = TopicSink("localhost:9092", "revenue.by-minute", topic="revenue")
    query = sink.start(df.writeStream.outputMode("update").option("checkpointLocation", "..."))

``open`` fences: it shuts out every older driver of this sink and its tasks, and only then reads which batch was committed last. Each batch
is then either known to be committed, and only run for the sake of its state, or written: tasks write under the driver's producer,
each partition in one task; the driver checks what they report, adds the progress record and commits. Whatever is not sure stops the
query, and the next start reads the truth. Each step is a method of its own: tests break them one by one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from millstream.client.errors import ClientError
from millstream.client.protocol import Protocol
from millstream.core.types import TopicPartition
from millstream.spark.options import SINK, Options, parse
from millstream.spark.sink import checkpoint, jobs, spill
from millstream.spark.sink.checkpoint import BatchIdentity, Checkpoint
from millstream.spark.sink.commit_rule import CommittedBatch, Verdict, judge
from millstream.spark.sink.driver_write import FewRows
from millstream.spark.sink.failures import (
    JobFailed,
    NotFirstAttempt,
    ProgressConflict,
    RowRefused,
    SinkError,
    SinkFenced,
    TopicMissing,
    TransactionTimedOut,
    WriteFailed,
    from_job,
    raised_by_user_code,
)
from millstream.spark.sink.progress import Progress, ProgressTopic
from millstream.spark.sink.rows import Shape
from millstream.spark.sink.stages import CHUNK_BYTES, RAN_BY, DirectJob, EncodeJob, WriteJob
from millstream.spark.sink.targets import Targets, missing_names, take_snapshot
from millstream.spark.sink.transaction import TransactionOwner, persist
from millstream.spark.sink.writer import Destination, Writer, Written
from millstream.spark.source.data_loss import warn_without_effect
from millstream.wire.records.compression import Codec

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
NONE_BEFORE: Mapping[TopicPartition, int] = MappingProxyType({})
# How long an open waits for transactions of others on the progress topic: the most that a broker allows by default, and some more.
STRANGERS_S = 960.0


class TopicSink:
    """Writes the batches of one streaming query to topics. ``sink_id`` must stay the same from start to start."""

    write_job = WriteJob

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
        """``topics``: those that the column of that name may have, where they are known. Else every batch asks for all there are."""
        given = dict(options or {}) | {"kafka.bootstrap.servers": bootstrap, "delivery": delivery}
        if topic is not None:
            given["topic"] = topic
        if transaction_timeout_ms is not None:
            given["transactionTimeoutMs"] = str(transaction_timeout_ms)
        if not sink_id:
            raise SinkError(
                "a sink needs a name of its own", hint="give it one that never changes, such as flow.topic"
            )
        self.sink_id = sink_id
        self.options: Options = parse(given, SINK)
        warn_without_effect(given, SINK)
        self.reset_progress = reset_progress
        self.rows_written = 0
        """Of the last batch: none where it had been committed before."""
        self._connection = self.options.connection(REQUEST_TIMEOUT_S)
        self._patience_s = self.options["deliveryTimeoutMs"] / 1000
        self._protocol: Protocol | None = None
        self._owner: TransactionOwner | None = None
        self._progress_topic: ProgressTopic | None = None
        self._progress: Progress | None = None
        self._query: str | None = None  # whose batches come, once the first one came
        self._expected = tuple(topics) or None
        self._made_topics: set[str] = set()
        self._shape = Shape(self.topic)
        self._swept = False
        self._few = FewRows()
        self._checkpoint: checkpoint.Checkpoint | None = None
        self.side_output: SideOutput | None = None
        """Asked after a batch has been computed for more rows, with a column ``topic``: they are part of its transaction."""
        self.side_rows = 0
        """Rows of the last batch that came from the side output."""

    @property
    def exactly_once(self) -> bool:
        return bool(self.options["delivery"] == "exactly-once")

    @property
    def topic(self) -> str | None:
        topic: str | None = self.options["topic"]
        return topic

    @property
    def progress(self) -> Progress | None:
        """What is committed, as far as this driver knows."""
        return self._progress

    # ---- opening --------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Fence, then read what is committed; before the query reads its checkpoint. May be called again for a new start."""
        self.close()
        self._protocol = Protocol(self._connection)
        if self.exactly_once:
            self._owner = TransactionOwner(
                self._protocol,
                self.sink_id,
                timeout_ms=self.options["transactionTimeoutMs"],
                patience_s=self._patience_s,
            )
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
                self._check_query(query.id)
        except SinkError:
            query.stop()
            raise
        return query

    def close(self) -> None:
        """Drop the connections. An open transaction is left to its timeout, or to the next open."""
        if self._protocol is not None:
            self._protocol.close()
        self._protocol = self._owner = self._progress_topic = self._progress = self._query = None
        self._checkpoint = None

    def _fence(self) -> None:
        self._opened_owner().fence()

    def _read_progress(self) -> None:
        assert self._protocol is not None
        self._progress_topic = ProgressTopic(self._protocol, self._connection, self.options["progressTopic"])
        topic = self._progress_topic
        persist(lambda: topic.open(self._patience_s), self._patience_s)
        self._progress = persist(lambda: topic.read(self.sink_id, STRANGERS_S), self._patience_s)

    def _opened_owner(self) -> TransactionOwner:
        if self._owner is None:
            raise SinkError(
                "the sink is not open",
                hint="call open() before the query starts, or start the query with start(writer)",
            )
        return self._owner

    # ---- one batch ------------------------------------------------------------------------------------------

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """The function for foreachBatch. Spark gets one sentence; what lies behind it is logged: long traces overflow its stack."""
        try:
            self._serve(batch, batch_id)
        except Exception as error:
            logger.error("batch %s of sink %r failed", batch_id, self.sink_id, exc_info=True)
            said = error if isinstance(error, ClientError) else from_job(error)
        else:
            return
        raise said.with_traceback(None) from None

    def _serve(self, batch: DataFrame, batch_id: int) -> None:
        self.rows_written = self.side_rows = 0
        rows = self._shape.of(batch)
        if not self.exactly_once:
            self._write_directly(rows, batch_id)
            return
        self._opened_owner()
        self._checkpoint = checkpoint.current(batch.sparkSession, self._checkpoint)
        identity = self._checkpoint.identify(batch_id)
        if self._is_committed(batch_id, identity):
            self._replay(batch)
        else:
            self._transact(rows, batch_id, identity, self._checkpoint)

    def _is_committed(self, batch_id: int, identity: BatchIdentity) -> bool:
        """Return whether the batch is committed. Raise ProgressConflict if it is not the next one either."""
        self._check_query(identity.query)
        verdict = self._judge(batch_id, identity)
        if verdict in (Verdict.COMMITTED, Verdict.NEXT):
            return verdict is Verdict.COMMITTED
        if self.reset_progress and self._query is None:
            self._query = identity.query
            return False
        raise _conflict(verdict, self.sink_id, self._progress, batch_id, identity.query)

    def _judge(self, batch_id: int, identity: BatchIdentity) -> Verdict:
        """Apply the commit rule to a batch."""
        last = self._progress
        if last is None:
            return judge(None, batch_id)
        return judge(CommittedBatch.compare(last.batch, last.query, last.offsets, identity), batch_id)

    def _check_query(self, query_id: str) -> None:
        """A sink serves one query, and goes on with the one that wrote its progress."""
        if self._query not in (None, query_id):
            raise SinkError(
                f"sink {self.sink_id!r} serves query {self._query} already", hint="give each query its own"
            )
        last = self._progress
        if last is not None and last.query != query_id and not self.reset_progress:
            raise _other_query(self.sink_id, last, query_id)

    def _transact(self, rows: DataFrame, batch_id: int, identity: BatchIdentity, place: Checkpoint) -> None:
        """Write, check, record, commit. A failed job is aborted and begins again in a new transaction."""
        attempts = self.options["batchAttempts"]
        for attempt in range(1, attempts + 1):
            started_s = time.monotonic()
            try:
                failed = self._attempt(rows, batch_id, identity)
            except SinkFenced as error:
                raise self._explained(error, started_s) from error
            if failed is None:
                self._query = identity.query
                return
            if attempt == attempts or not self._may_begin_again(failed, place):
                raise failed

    def _attempt(self, rows: DataFrame, batch_id: int, identity: BatchIdentity) -> Exception | None:
        """One transaction: committed, or aborted because of what is returned."""
        try:
            written = self._write(rows, batch_id)
            counts = self._check(written)
            side = self._write_side_output(rows.sparkSession, batch_id, written)
            for topic, count in side.items():
                counts[topic] = counts.get(topic, 0) + count
            self._record_progress(batch_id, identity, counts)
        except SinkFenced:
            raise
        except Exception as error:
            self._end(commit=False)
            return error
        self._end(commit=True)
        self.side_rows = sum(side.values())
        self.rows_written -= self.side_rows
        return None

    def _write_side_output(
        self, session: SparkSession, batch_id: int, written: Sequence[Written]
    ) -> dict[str, int]:
        """Write the rows beside the batch, behind what the batch itself has ``written``; return the count of each topic."""
        counts: dict[str, int] = {}
        if self.side_output is None:
            return counts
        before = {TopicPartition(one.topic, one.partition): one.records for one in written}
        for rows in self.side_output(session):
            more = self._write_more(rows, batch_id, before)
            for topic, count in self._check(more, before).items():
                counts[topic] = counts.get(topic, 0) + count
            for one in more:
                place = TopicPartition(one.topic, one.partition)
                before[place] = before.get(place, 0) + one.records
        return counts

    def _write_more(
        self, rows: DataFrame | pa.Table, batch_id: int, before: Mapping[TopicPartition, int]
    ) -> list[Written]:
        """Write rows of the side output; partitions go on with the sequence that they have."""
        import pyarrow as pa

        if isinstance(rows, pa.Table):
            targets = self._targets()
            columns = {name: name for name in rows.column_names if name != "topic" or self.topic is None}
            job = self._encode_job(targets, batch_id, 1, None, columns)
            encoded = jobs.encode_here(rows.to_batches(), job)
            return jobs.write_here(encoded, self._destination(targets, before))
        shape = Shape(self.topic)
        return self._write(shape.of(rows), batch_id, shape.columns, before)

    def _may_begin_again(self, error: Exception, place: Checkpoint) -> bool:
        if isinstance(error, TopicMissing):
            return self._make_topics(missing_names(error))
        if isinstance(error, RowRefused):
            return False
        if isinstance(error.__cause__, Exception) and raised_by_user_code(error.__cause__):
            return False
        return isinstance(error, JobFailed | NotFirstAttempt | WriteFailed) and place.is_active()

    def _make_topics(self, names: Iterable[str]) -> bool:
        """Topics that rows name and that are not there: asking for them makes them, where the broker does that. Once for each."""
        new = set(names) - self._made_topics
        self._made_topics |= new
        return bool(new)

    def _explained(self, error: SinkFenced, started_s: float) -> SinkError:
        """Who is to blame: the clock, or another driver. An owner that came later leaves the state of its own doings behind."""
        timeout_ms = self.options["transactionTimeoutMs"]
        if (time.monotonic() - started_s) * 1000 > timeout_ms and self._opened_owner().was_aborted():
            return TransactionTimedOut(
                f"the batch took longer than the transaction timeout of {timeout_ms} ms, so the broker has aborted it",
                hint="raise transactionTimeoutMs, or make batches smaller (maxOffsetsPerTrigger)",
            )
        return SinkFenced(
            f"another driver has opened sink {self.sink_id!r}, and this one is shut out ({error.message})",
            hint="nothing of this batch is visible; let only one copy of the query run",
        )

    # ---- the steps of a transaction -------------------------------------------------------------------------

    def _write(
        self,
        rows: DataFrame,
        batch_id: int,
        columns: Mapping[str, str] | None = None,
        before: Mapping[TopicPartition, int] = NONE_BEFORE,
    ) -> list[Written]:
        """Encode, bring each partition to one writer, write. ``before``: records of the transaction that are there already."""
        context = rows.sparkSession.sparkContext
        targets = self._targets()
        writers = max(1, min(targets.total, context.defaultParallelism))
        if not spill.is_local(rows.sparkSession):
            return self._write_over_shuffle(rows, targets, batch_id, writers, columns, before)
        if not self._swept:
            spill.sweep(rows.sparkSession)
            self._swept = True
        few = self._few.collect(rows, self._shape.columns) if columns is None else None
        if few is not None:
            encoded = jobs.encode_here(few, self._encode_job(targets, batch_id, writers, None))
            return self._write_encoded(rows.sparkSession, encoded, targets, writers, before)
        directory = spill.make_directory(rows.sparkSession)
        try:
            job = self._encode_job(targets, batch_id, writers, directory, columns)
            encoded = jobs.encoded_batches(jobs.map_batches(rows, job, jobs.ENCODED))
            return self._write_encoded(rows.sparkSession, encoded, targets, writers, before)
        finally:
            spill.remove(directory)

    def _write_over_shuffle(
        self,
        rows: DataFrame,
        targets: Targets,
        batch_id: int,
        writers: int,
        columns: Mapping[str, str] | None,
        before: Mapping[TopicPartition, int],
    ) -> list[Written]:
        """One job of two stages. The result stage is the one that writes: no shuffle comes after it."""
        from pyspark.sql import functions as F

        session = rows.sparkSession  # this query's own, so that what is set here concerns nobody else
        encode_job = self._encode_job(targets, batch_id, writers, None, columns)
        encoded = jobs.map_batches(rows, encode_job, jobs.ENCODED)
        placed = encoded.repartitionById(writers, F.col("writer")).selectExpr("*", f"{RAN_BY} AS ran_by")
        with jobs.settings(session, {jobs.ARROW_BYTES: str(CHUNK_BYTES), jobs.ADAPTIVE: "false"}):
            job = self.write_job(self._destination(targets, before))
            return jobs.manifests(jobs.map_batches(placed, job, jobs.WRITTEN))

    def _write_encoded(
        self,
        session: SparkSession,
        encoded: pa.Table,
        targets: Targets,
        writers: int,
        before: Mapping[TopicPartition, int],
    ) -> list[Written]:
        """On one machine: batches wait in files, and small ones are written by the driver itself."""
        size = encoded.column("size").to_numpy().sum()
        if self.options["driverBytes"]:
            self._few.learn(size)
        destination = self._destination(targets, before)
        if size > self.options["driverBytes"]:
            return jobs.write_in_tasks(session, encoded, self.write_job(destination), writers)
        return jobs.write_here(encoded, destination)

    def _check(
        self, written: list[Written], before: Mapping[TopicPartition, int] = NONE_BEFORE
    ) -> dict[str, int]:
        """The records of each topic; every partition was written by one task, and has what its sequence says."""
        seen: set[TopicPartition] = set()
        counts: dict[str, int] = {}
        for one in written:
            place = TopicPartition(one.topic, one.partition)
            if place in seen:
                raise WriteFailed(f"two tasks wrote to {place}")
            if self.exactly_once and one.last_sequence != before.get(place, 0) + one.records - 1:
                raise WriteFailed(
                    f"{place} has {one.records} records, and the last sequence {one.last_sequence}"
                )
            seen.add(place)
            counts[one.topic] = counts.get(one.topic, 0) + one.records
        return counts

    def _record_progress(self, batch_id: int, identity: BatchIdentity, counts: Mapping[str, int]) -> None:
        """The record that makes the batch a committed one, in the same transaction; also for a batch without rows."""
        assert self._progress_topic is not None
        place = self._progress_topic.home(self.sink_id)
        commits = 1 + (0 if self._progress is None else self._progress.commits)
        now_ms = int(time.time() * 1000)
        progress = Progress(
            self.sink_id,
            identity.query,
            batch_id,
            identity.offsets,
            commits,
            dict(sorted(counts.items())),
            now_ms,
        )
        owner = self._opened_owner()
        writer = Writer(
            Destination(
                self._connection,
                {place.partition: place.leader.node},
                {place.leader.node: place.leader},
                owner.transactional_id,
                owner.producer,
                self._patience_s,
            )
        )
        try:
            writer.send(place.partition.topic, place.partition.partition, *progress.to_batch())
            writer.finish()
        except BaseException:
            writer.close()
            raise
        self._recorded = progress

    def _end(self, *, commit: bool) -> None:
        """The commit point, and nothing after it can fail the batch."""
        self._opened_owner().end(commit=commit)
        if commit:
            self._progress = self._recorded
            self.rows_written = sum(self._recorded.counts.values())

    def _replay(self, batch: DataFrame) -> None:
        """A committed batch runs again only because Spark's state and watermark need it."""
        batch.write.format("noop").mode("overwrite").save()

    # ---- jobs -----------------------------------------------------------------------------------------------

    def _write_directly(self, rows: DataFrame, batch_id: int) -> None:
        """At least once: no shuffle, no transaction."""
        if self._protocol is None:
            self.open()
        targets = self._targets()
        job = DirectJob(self._encode_job(targets, batch_id, 1, None), self._destination(targets))
        try:
            written = jobs.manifests(jobs.map_batches(rows, job, jobs.WRITTEN))
        except TopicMissing as error:
            if not self._make_topics(missing_names(error)):
                raise
            self._write_directly(rows, batch_id)
            return
        self.rows_written = sum(one.records for one in written)
        side = self._write_side_output(rows.sparkSession, batch_id, ())
        self.side_rows = sum(side.values())

    def _targets(self) -> Targets:
        assert self._protocol is not None
        protocol = self._protocol
        topics, others = ({self.topic}, ()) if self.topic is not None else (self._made_topics, self._expected)
        return persist(
            lambda: take_snapshot(protocol, topics, others=others, patience_s=self._patience_s),
            self._patience_s,
        )

    def _encode_job(
        self,
        targets: Targets,
        batch_id: int,
        writers: int,
        directory: Path | None,
        columns: Mapping[str, str] | None = None,
    ) -> EncodeJob:
        return EncodeJob(
            targets,
            self._shape.columns if columns is None else columns,
            self.topic,
            int(Codec[self.options["compression"].upper()]),
            self.options["batchBytes"],
            writers,
            batch_id,
            None if directory is None else str(directory),
        )

    def _destination(
        self, targets: Targets, before: Mapping[TopicPartition, int] = NONE_BEFORE
    ) -> Destination:
        if not self.exactly_once:
            return Destination(self._connection, targets.leaders, targets.brokers, timeout_s=self._patience_s)
        owner = self._opened_owner()
        return Destination(
            self._connection,
            targets.leaders,
            targets.brokers,
            owner.transactional_id,
            owner.producer,
            self._patience_s,
            dict(before),
        )


def _other_query(sink_id: str, last: Progress, query_id: str) -> ProgressConflict:
    return ProgressConflict(
        f"sink {sink_id!r} has committed batch {last.batch} of another query ({last.query}, this one is {query_id}): "
        "the checkpoint is new, or this is a second copy",
        hint="use the checkpoint of that query or another sink id; reset_progress=True begins anew, and repeats what "
        "the other one wrote",
    )


def _conflict(
    verdict: Verdict, sink_id: str, last: Progress | None, batch_id: int, query_id: str
) -> ProgressConflict:
    anew = "reset_progress=True goes on from here, and accepts that records are repeated or missing"
    if last is None:
        return ProgressConflict(
            f"the query is at batch {batch_id}, and sink {sink_id!r} has never committed one: its name has changed, or the "
            "query used to write in another way",
            hint=f"use the old sink id; {anew}",
        )
    if verdict is Verdict.OTHER_QUERY:
        return _other_query(sink_id, last, query_id)
    if verdict is Verdict.GAP:
        return ProgressConflict(
            f"the query is at batch {batch_id}, and sink {sink_id!r} has committed up to {last.batch}: batches in between are "
            "not in the topics",
            hint=f"use the checkpoint that belongs to this sink; {anew}",
        )
    what = "with other offsets" if verdict is Verdict.OTHER_OFFSETS else f"and later ones up to {last.batch}"
    return ProgressConflict(
        f"batch {batch_id} comes again, but sink {sink_id!r} has committed it {what}: the checkpoint was restored or copied",
        hint=f"use the latest checkpoint; {anew}",
    )
