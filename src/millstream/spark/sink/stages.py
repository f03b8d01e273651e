"""The work of the tasks of a batch: encode rows into record batches, and write those.

Exactly once needs two stages. The first encodes: it returns few large rows, each a record batch for
one partition, so that the shuffle moves bytes and not rows. The second stage has one task for each
target partition, or for several of them, and only it sends anything. A task that Spark runs again
raises before it writes, because its first attempt may have written, or may still be writing. At
least once, one stage does both.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.spark.sink.arrow_encode import (
    Columns,
    as_binary,
    encode,
    encode_headers,
    sizes_of,
    split,
)
from millstream.spark.sink.failures import NotFirstAttempt, RecordTooLarge, RowRefused
from millstream.spark.sink.partitioner import partition_of, spread
from millstream.spark.sink.rows import shaped_arrow
from millstream.spark.sink.spill import SMALL_BYTES, SpillReader, SpillWriter
from millstream.spark.sink.targets import Targets, missing
from millstream.spark.sink.writer import Destination, Writer, WrittenPartition
from millstream.wire.records.layout import HEADER_SIZE

Array = Any

# Rows are gathered up to this size before they are encoded, so that each partition gets large
# batches.
CHUNK_BYTES = 16 << 20
ENCODED_SCHEMA = pa.schema(
    [
        ("writer", pa.int32()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("head", pa.binary()),
        ("body", pa.binary()),
        ("file", pa.string()),
        ("start", pa.int64()),
        ("size", pa.int64()),
    ]
)
WRITTEN_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("records", pa.int64()),
        ("last_sequence", pa.int64()),
        ("batches", pa.int64()),
        ("stage", pa.int32()),
        ("sure", pa.bool_()),
    ]
)
# Spark names an executor's threads after the task they run. A Python task can find the attempt of
# its stage in no other way.
RAN_BY = "reflect('java.lang.Thread', 'currentThread')"
_THREAD = re.compile(r"task \d+\.(\d+) in stage \d+\.(\d+) \(TID (\d+)\)")


class Payload(NamedTuple):
    """A finished record batch and its target partition."""

    target: int
    topic: str
    partition: int
    head: bytes
    body: bytes | memoryview


@dataclass(frozen=True)
class EncodeJob:
    """The first stage.

    ``columns`` maps our column names to those of the rows. If ``topic`` is None, the rows have a
    column for it. ``start`` rotates the partitions of rows without a key, from batch to batch.
    """

    targets: Targets
    columns: Mapping[str, str]
    topic: str | None
    codec: int
    batch_bytes: int
    writers: int
    start: int
    directory: str | None = None
    """Where to put files that the second stage can read, if such a directory exists."""

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        spill = SpillWriter(self.directory) if self.directory is not None else None
        try:
            for payloads in self.payloads(batches):
                yield self._rows(payloads, spill)
        finally:
            if spill is not None:
                spill.close()

    def _rows(self, payloads: list[Payload], spill: SpillWriter | None) -> pa.RecordBatch:
        """Return rows for the second stage: the batches themselves, or their locations."""
        sizes = [len(payload.body) for payload in payloads]
        spilled = spill if sum(sizes) > SMALL_BYTES else None
        bodies = [payload.body if spilled is None else None for payload in payloads]
        starts = [None if spilled is None else spilled.add(payload.body) for payload in payloads]
        files = [None if spilled is None else spilled.path] * len(payloads)
        columns: list[list[Any]] = [
            [payload.target % self.writers for payload in payloads],
            [payload.topic for payload in payloads],
            [payload.partition for payload in payloads],
            [payload.head for payload in payloads],
            bodies,
            files,
            starts,
            sizes,
        ]
        arrays = [
            pa.array(column, kind)
            for column, kind in zip(columns, ENCODED_SCHEMA.types, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=ENCODED_SCHEMA)

    def payloads(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[Payload]]:
        """Yield the record batches of each chunk of rows."""
        start = self.start + _partition_id()
        for table in _chunks(shaped_arrow(batch, self.columns) for batch in batches):
            yield list(self._encode(table, start))
            start += table.num_rows

    def _encode(self, table: pa.Table, start: int) -> Iterator[Payload]:
        columns, targets = self._columns(table, start)
        names, firsts = self._names()
        if (len(targets) and targets[0] != targets[-1]) or (targets != targets[:1]).any():
            order = np.argsort(_narrow(targets, self.targets.total), kind="stable")
            columns, targets = columns.take(order), targets[order]
        ends = np.append(np.flatnonzero(np.diff(targets)) + 1, len(targets))
        groups = []
        for end in ends.tolist():
            topic = names[int(np.searchsorted(firsts, targets[end - 1], side="right")) - 1]
            groups.append((end, min(self.batch_bytes, self.targets.limit(topic)) - HEADER_SIZE))
        bounds = split(sizes_of(columns), groups)
        encoded = encode(columns, bounds, codec=self.codec)
        for first, batch in zip(bounds[:-1].tolist(), encoded, strict=True):
            target = int(targets[first])
            topic = names[int(np.searchsorted(firsts, target, side="right")) - 1]
            if batch.size > self.targets.limit(topic):
                raise _too_large(topic, batch.size, self.targets.limit(topic), columns, first)
            yield Payload(target, topic, target - self.targets.first[topic], batch.head, batch.body)

    def _names(self) -> tuple[list[str], Array]:
        """Return the topics in the order of their targets, and the first target of each."""
        names = list(self.targets.first)
        return names, np.asarray([self.targets.first[name] for name in names])

    def _columns(self, table: pa.Table, start: int) -> tuple[Columns, Array]:
        """Return the columns as they are encoded, and the target of each row."""
        rows = table.num_rows
        keys = as_binary(_column(table, "key")) if "key" in table.column_names else None
        headers = None
        if "headers" in table.column_names:
            try:
                headers = encode_headers(_column(table, "headers"))
            except ValueError as error:
                raise RowRefused(f"a row has {error}") from None
        columns = Columns(keys, as_binary(_column(table, "value")), headers, _times(table))
        counts, firsts = self._topics(table)
        partitions = spread(rows, counts, start)
        if keys is not None:
            keyed = keys.is_valid().to_numpy(zero_copy_only=False)
            partitions = np.where(keyed, partition_of(keys, counts), partitions)
        if "partition" in table.column_names:
            partitions = self._explicit_partitions(table, partitions, counts)
        return columns, (partitions + firsts).astype(np.int64)

    def _topics(self, table: pa.Table) -> tuple[int | Array, int | Array]:
        """Return the number of partitions of each row's topic, and its first target."""
        if self.topic is not None:
            return self.targets.counts[self.topic], self.targets.first[self.topic]
        column = _column(table, "topic")
        if column.null_count:
            raise RowRefused("a row has no topic", hint="set a topic on the sink, or on every row")
        encoded = column.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        unknown = [name for name in names if name not in self.targets.counts]
        if unknown:
            raise missing(unknown)
        codes = encoded.indices.to_numpy()
        counts = np.asarray([self.targets.counts[name] for name in names], np.int64)
        firsts = np.asarray([self.targets.first[name] for name in names], np.int64)
        return counts[codes], firsts[codes]

    def _explicit_partitions(self, table: pa.Table, default: Array, counts: int | Array) -> Array:
        """Return the column ``partition``, or the default partition if it is null."""
        column = _column(table, "partition")
        chosen = column.fill_null(-1).to_numpy(zero_copy_only=False)
        is_set = column.is_valid().to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(is_set & ((chosen < 0) | (chosen >= counts)))
        if len(wrong):
            row = int(wrong[0])
            count = counts if isinstance(counts, int) else int(counts[row])
            topic = self.topic or _column(table, "topic")[row].as_py()
            raise RowRefused(
                f"a row is for partition {int(chosen[row])} of topic {topic!r}, "
                f"which has the partitions 0 to {count - 1}",
                hint="leave the partition null to let the key choose it",
            )
        return np.where(is_set, chosen, default)


@dataclass(frozen=True)
class WriteJob:
    """The second stage: write under the driver's producer, with sequences from 0, and report."""

    destination: Destination

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self.check_task()
        is_first = True
        writer, reader = Writer(self.destination), SpillReader()
        try:
            for batch in batches:
                if batch.num_rows and "ran_by" in batch.schema.names:
                    is_first = self.check_thread(batch.column("ran_by")[0].as_py()) and is_first
                send_all(writer, batch, reader)
            written = writer.finish()
        except BaseException:
            writer.close()
            raise
        yield written_rows(written, is_first)

    def check_task(self) -> None:
        """Raise if this is not the first attempt of the task.

        Spark says so before there is input.
        """
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and context.attemptNumber() > 0:
            raise not_first(f"attempt {context.attemptNumber()} of a task")

    def check_thread(self, name: str | None) -> bool:
        """Raise if this is not the first attempt of the stage.

        The name of the thread that reads the input says so. Return False if it does not.
        """
        from pyspark import TaskContext

        match = _THREAD.search(name or "")
        context = TaskContext.get()
        if match is None or context is None or int(match[3]) != context.taskAttemptId():
            return False
        if int(match[1]) > 0 or int(match[2]) > 0:
            raise not_first(f"attempt {match[1]} of a task, in attempt {match[2]} of its stage")
        return True


@dataclass(frozen=True)
class DirectJob:
    """At least once: encode and send in one stage. A repeated task duplicates its records."""

    encode: EncodeJob
    destination: Destination

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = Writer(self.destination)
        try:
            for payloads in self.encode.payloads(batches):
                for payload in payloads:
                    writer.send(payload.topic, payload.partition, payload.head, payload.body)
            written = writer.finish()
        except BaseException:
            writer.close()
            raise
        yield written_rows(written, True)


def not_first(attempt: str) -> NotFirstAttempt:
    return NotFirstAttempt(
        f"this is {attempt}: only a whole batch may be repeated, so it starts over"
    )


def written_rows(written: list[WrittenPartition], is_first: bool) -> pa.RecordBatch:
    """Return the reports of a task as rows. ``is_first`` is False if the attempt is not known."""
    from pyspark import TaskContext

    context = TaskContext.get()
    stage = -1 if context is None else context.stageId()
    rows = [{**report._asdict(), "stage": stage, "sure": is_first} for report in written]
    return pa.RecordBatch.from_pylist(rows, schema=WRITTEN_SCHEMA)


def send_all(writer: Writer, batch: pa.RecordBatch, reader: SpillReader) -> None:
    topics, partitions, heads, files, starts, sizes = (
        batch.column(name).to_pylist()
        for name in ("topic", "partition", "head", "file", "start", "size")
    )
    bodies = as_binary(batch.column("body"))
    for row, file in enumerate(files):
        if file is not None:
            body = reader.view(file, starts[row], sizes[row])
        else:
            body = memoryview(bodies[row].as_buffer())
        writer.send(topics[row], partitions[row], heads[row], body)


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    gathered: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        gathered.append(batch)
        size += batch.nbytes
        if size >= CHUNK_BYTES:
            yield pa.Table.from_batches(gathered)
            gathered, size = [], 0
    if gathered:
        yield pa.Table.from_batches(gathered)


def _column(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _times(table: pa.Table) -> Array:
    now_ms = int(time.time() * 1000)
    if "timestamp" not in table.column_names:
        return np.full(table.num_rows, now_ms, np.int64)
    column = pc.fill_null(_column(table, "timestamp"), now_ms)
    return column.to_numpy(zero_copy_only=False).astype(np.int64)


def _narrow(targets: Array, total: int) -> Array:
    """Convert to the narrowest type that fits: numpy sorts 16-bit numbers by counting."""
    return targets.astype(np.uint16 if total <= 1 << 16 else np.uint32)


def _partition_id() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def _too_large(topic: str, size: int, limit: int, columns: Columns, row: int) -> RecordTooLarge:
    key = None if columns.keys is None else columns.keys[row].as_py()
    shown = "no key" if key is None else f"key {key[:50]!r}"
    return RecordTooLarge(
        f"a record ({shown}) makes a batch of {size} bytes, and topic {topic!r} accepts {limit}",
        hint="nothing of this batch was written; raise max.message.bytes with "
        f"`millstream configs alter topic {topic}`, send smaller records, or compress them",
    )
