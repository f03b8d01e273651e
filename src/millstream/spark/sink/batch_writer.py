"""``df.write.format("millstream")``: all rows of a DataFrame in one transaction, or none.

Spark offers the tasks of a write no way to bring the rows of one partition together, and it repeats
tasks at will. So tasks write their record batches to a staging topic. ``commit`` runs once, on the
driver's machine. It copies the batches that the successful tasks named, as the only writer, in one
transaction. With ``delivery=at-least-once`` tasks write to the topics themselves.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millstream.client.protocol import Protocol
from millstream.spark.options import SINK, parse
from millstream.spark.sink import staging
from millstream.spark.sink.failures import SinkError, SinkFenced
from millstream.spark.sink.rows import find_columns
from millstream.spark.sink.stages import EncodeJob
from millstream.spark.sink.staging import Staged
from millstream.spark.sink.targets import take_snapshot
from millstream.spark.sink.transaction import TransactionOwner
from millstream.spark.sink.writer import Batch, Destination, Writer
from millstream.spark.source.data_loss import one_line_errors, warn_without_effect
from millstream.wire.records.compression import Codec

if TYPE_CHECKING:
    import pyarrow as pa

REQUEST_TIMEOUT_S = 30.0


@dataclass
class TaskDone(WriterCommitMessage):
    """The staged batches of one successful task."""

    staged: list[Staged] = field(default_factory=list)


class BatchWriter(DataSourceArrowWriter):
    """Created on the driver, sent to every task, and used on the driver for the commit."""

    def __init__(self, texts: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        with one_line_errors():
            self._prepare(texts, schema, overwrite)

    def _prepare(self, texts: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SinkError("a topic cannot be overwritten", hint='use .mode("append")')
        self.options = parse(texts, SINK)
        warn_without_effect(texts, SINK, batch_write=True)
        self.job = uuid.uuid4().hex
        self.columns = find_columns(schema, self.options["topic"])
        self._connection = self.options.connection(REQUEST_TIMEOUT_S)
        self._patience_s = self.options["deliveryTimeoutMs"] / 1000
        protocol = Protocol(self._connection)
        try:
            topic = self.options["topic"]
            self._targets = take_snapshot(
                protocol,
                [topic] if topic else [],
                others=None if topic is None else (),
                patience_s=self._patience_s,
            )
        finally:
            protocol.close()

    @property
    def exactly_once(self) -> bool:
        return bool(self.options["delivery"] == "exactly-once")

    # ---- tasks ----

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        """Encode the rows of a partition and send them to the staging topic, or to their topics."""
        with one_line_errors():
            return self._write(iterator)

    def _write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        payloads = self._encode_job().payloads(iterator)
        chunk = next(payloads, None)
        if chunk is None:
            return TaskDone()
        destination = self._stage() if self.exactly_once else self._destination()
        staging_partition = _partition_id() % staging.PARTITIONS
        writer = Writer(destination)
        sent: list[tuple[Batch, str, int]] = []
        try:
            while chunk is not None:
                for payload in chunk:
                    if self.exactly_once:
                        batch = writer.send(
                            staging.topic_of(self.job),
                            staging_partition,
                            payload.head,
                            payload.body,
                        )
                        sent.append((batch, payload.topic, payload.partition))
                    else:
                        writer.send(payload.topic, payload.partition, payload.head, payload.body)
                chunk = next(payloads, None)
            writer.finish()
        except BaseException:
            writer.close()
            raise
        return TaskDone(
            [
                Staged(staging_partition, batch.offset, topic, partition)
                for batch, topic, partition in sent
            ]
        )

    def _encode_job(self) -> EncodeJob:
        codec = Codec[self.options["compression"].upper()]
        return EncodeJob(
            self._targets,
            self.columns,
            self.options["topic"],
            int(codec),
            self.options["batchBytes"],
            writers=1,
            start=0,
        )

    def _stage(self) -> Destination:
        protocol = Protocol(self._connection)
        try:
            largest = max(
                [self._targets.limit(topic) for topic in self._targets.counts], default=1 << 20
            )
            created = staging.create(protocol, self.job, largest, self._patience_s)
        finally:
            protocol.close()
        return Destination(
            self._connection, created.leaders, created.brokers, timeout_s=self._patience_s
        )

    def _destination(self) -> Destination:
        targets = self._targets
        return Destination(
            self._connection, targets.leaders, targets.brokers, timeout_s=self._patience_s
        )

    # ---- commit ----

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Copy the batches of successful tasks in one transaction."""
        staged = [
            batch
            for message in messages
            if isinstance(message, TaskDone)
            for batch in message.staged
        ]
        if not self.exactly_once or not staged:
            return
        protocol = Protocol(self._connection)
        try:
            with one_line_errors():
                self._transact(protocol, staged)
                staging.delete(protocol, self.job)
        finally:
            protocol.close()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the staging topic; nothing was written anywhere else."""
        if not self.exactly_once:
            return
        protocol = Protocol(self._connection)
        try:
            staging.delete(protocol, self.job)
        finally:
            protocol.close()

    def _transact(self, protocol: Protocol, staged: list[Staged]) -> None:
        owner = TransactionOwner(
            protocol,
            f"millstream-batch-{self.job}",
            timeout_ms=self.options["transactionTimeoutMs"],
            patience_s=self._patience_s,
        )
        owner.fence()
        targets = self._targets
        writer = Writer(
            Destination(
                self._connection,
                targets.leaders,
                targets.brokers,
                owner.transactional_id,
                owner.producer,
                self._patience_s,
            )
        )
        try:
            for batch, head, body in staging.read(protocol, self.job, staged):
                writer.send(batch.topic, batch.target, head, body)
            writer.finish()
        except SinkFenced as error:
            writer.close()
            raise SinkError(
                f"the write took longer than the transaction timeout of {owner.timeout_ms} ms "
                f"({error.message})",
                hint="raise transactionTimeoutMs; nothing of the write is visible",
            ) from error
        except BaseException:
            writer.close()
            owner.end(commit=False)
            raise
        owner.end(commit=True)


def _partition_id() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
