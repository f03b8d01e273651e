"""``df.write.format("millstream")``: all rows of a DataFrame in one transaction, or none.

Spark gives the tasks of a write no way to bring rows of one partition together, and repeats tasks as it likes. So they lay their record
batches down in a staging topic, and ``commit``, which runs once and on the driver's machine, carries over what the successful
tasks named, as the only writer, in one transaction. With ``delivery=at-least-once`` tasks write to the topics themselves.
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
    """What one successful task laid down."""

    staged: list[Staged] = field(default_factory=list)


class BatchWriter(DataSourceArrowWriter):
    """Made on the driver, sent to every task, and back on the driver's machine for the commit."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        with one_line_errors():
            self._prepare(given, schema, overwrite)

    def _prepare(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SinkError("a topic cannot be overwritten", hint='use .mode("append")')
        self.options = parse(given, SINK)
        warn_without_effect(given, SINK, batch_write=True)
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

    # ---- tasks ----------------------------------------------------------------------------------------------

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        """Encode the rows of a partition and send them: to the staging topic, or where they belong."""
        with one_line_errors():
            return self._write(iterator)

    def _write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        payloads = self._encode_job().payloads(iterator)
        first = next(payloads, None)
        if first is None:
            return TaskDone()
        destination = self._stage() if self.exactly_once else self._destination()
        place = _partition_id() % staging.PARTITIONS
        writer = Writer(destination)
        sent: list[tuple[Batch, str, int]] = []
        try:
            while first is not None:
                for one in first:
                    if self.exactly_once:
                        batch = writer.send(staging.topic_of(self.job), place, one.head, one.body)
                        sent.append((batch, one.topic, one.partition))
                    else:
                        writer.send(one.topic, one.partition, one.head, one.body)
                first = next(payloads, None)
            writer.finish()
        except BaseException:
            writer.close()
            raise
        return TaskDone([Staged(place, batch.offset, topic, partition) for batch, topic, partition in sent])

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
            largest = max([self._targets.limit(topic) for topic in self._targets.counts], default=1 << 20)
            found = staging.create(protocol, self.job, largest, self._patience_s)
        finally:
            protocol.close()
        return Destination(self._connection, found.leaders, found.brokers, timeout_s=self._patience_s)

    def _destination(self) -> Destination:
        targets = self._targets
        return Destination(self._connection, targets.leaders, targets.brokers, timeout_s=self._patience_s)

    # ---- the end --------------------------------------------------------------------------------------------

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Carry over what counts, in one transaction."""
        staged = [one for message in messages if isinstance(message, TaskDone) for one in message.staged]
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
        """Nothing has been written anywhere but to the staging topic."""
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
            for one, head, body in staging.read(protocol, self.job, staged):
                writer.send(one.topic, one.target, head, body)
            writer.finish()
        except SinkFenced as error:
            writer.close()
            raise SinkError(
                f"the write took longer than the transaction timeout of {owner.timeout_ms} ms ({error.message})",
                hint="raise transactionTimeoutMs; nothing of it is visible",
            ) from error
        except BaseException:
            writer.close()
            owner.end(commit=False)
            raise
        owner.end(commit=True)


def _partition_id() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
