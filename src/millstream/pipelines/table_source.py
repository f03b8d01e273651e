"""A compacted topic as a table: the latest row of each key, as of each batch of a stream.

Spark plans a Python data source once per streaming query and keeps its partitions. So a batch read
with fixed offsets would show the table as it was when the query was planned. Here a task has no
offsets: it finds the end of the topic when it runs. A task has a share of the partitions, so that
partitions added later are read too.

A Python worker caches its rows and reads only new records the next time. So a batch costs as much
as the changes and the rows of the table, not the whole topic. A key is in one partition only, so
the latest row of a key needs no shuffle. Records without a key are skipped, and a record without a
value deletes its key.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from millstream.core.types import TopicPartition
from millstream.spark.options import BATCH, Options, parse
from millstream.spark.source.cluster_view import ClusterView, PartitionInfo
from millstream.spark.source.fetcher import Fetcher, Task
from millstream.spark.source.offsets import LogState, Range

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMAT = "millstream-table"
SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
ROWS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
ROWS_PER_BATCH = 50_000
# Tombstones may be compacted away after delete.retention.ms, so older caches are dropped.
CACHE_TTL_S = 3600.0


class TableSource(DataSource):
    """``spark.read.format("millstream-table")``; options ``subscribe`` (a topic), ``kafka.*``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return TableReader(dict(self.options))


class Share(InputPartition):
    """The partitions with ``number % count == index``."""

    def __init__(self, index: int, count: int) -> None:
        super().__init__(index)
        self.index = index
        self.count = count


class TableReader(DataSourceReader):
    """Plans shares on the driver, reads them on executors."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)

    def partitions(self) -> list[InputPartition]:
        view = ClusterView(parse(self.options, BATCH))
        try:
            count = max(1, len(view.refresh()))
        finally:
            view.close()
        return [Share(index, count) for index in range(count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        for table in _cached_tables(self.options).rows(partition):
            yield from table.to_batches(max_chunksize=ROWS_PER_BATCH)


@dataclass
class PartitionTable:
    """The rows of one partition, up to a position."""

    topic_id: bytes
    position: int = 0
    read_at_s: float = 0.0
    rows: pa.Table = field(default_factory=ROWS.empty_table)

    def add(self, batches: list[pa.RecordBatch]) -> None:
        if batches:
            new = pa.Table.from_batches(batches).select(ROWS.names).cast(ROWS)
            self.rows = latest_rows(pa.concat_tables([self.rows, new]))


class TableCache:
    """The tables of one topic in this process."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._view = ClusterView(options)
        self._parts: dict[TopicPartition, PartitionTable] = {}

    def rows(self, share: Share) -> Iterator[pa.Table]:
        """Yield the current rows of the partitions of a share."""
        places = self._view.refresh()
        partitions = [
            partition
            for partition in sorted(places)
            if partition.partition % share.count == share.index
        ]
        logs = self._view.logs(partitions)
        for partition in partitions:
            yield self._refreshed(places[partition], logs[partition])

    def _refreshed(self, place: PartitionInfo, log: LogState) -> pa.Table:
        now_s = time.monotonic()
        part = self._parts.get(place.partition)
        if part is None or _is_stale(part, place, log, now_s):
            part = self._parts[place.partition] = PartitionTable(place.topic_id, log.earliest)
        part.read_at_s = now_s
        if part.position < log.latest:
            part.add(list(self._fetch(place, Range(place.partition, part.position, log.latest))))
            part.position = log.latest
        return part.rows

    def _fetch(self, place: PartitionInfo, span: Range) -> Iterator[pa.RecordBatch]:
        task = Task(
            span=span,
            leader=place.leader,
            topic_id=place.topic_id,
            connection=self._options.connection(30.0),
            isolation=self._view.isolation,
        )
        return Fetcher(task).batches()


_tables: dict[tuple[tuple[str, str], ...], TableCache] = {}


def _cached_tables(options: Mapping[str, str]) -> TableCache:
    key = tuple(sorted(options.items()))
    if key not in _tables:
        _tables[key] = TableCache(parse(options, BATCH))
    return _tables[key]


def _is_stale(part: PartitionTable, place: PartitionInfo, log: LogState, now_s: float) -> bool:
    """Return whether a cached partition must be read from the start.

    The topic was recreated, records were deleted, or the cache is too old.
    """
    return (
        part.topic_id != place.topic_id
        or not log.earliest <= part.position <= log.latest
        or now_s - part.read_at_s > CACHE_TTL_S
    )


def latest_rows(rows: pa.Table) -> pa.Table:
    """Return the last row of each key, without keys whose last row has no value."""
    rows = rows.filter(pc.is_valid(rows["key"]))
    numbered = pa.table({"key": rows["key"], "row": pa.array(range(len(rows)), pa.int64())})
    last = numbered.group_by("key").aggregate([("row", "max")])["row_max"]
    kept = rows.take(last.take(pc.sort_indices(last)))
    return kept.filter(pc.is_valid(kept["value"])).combine_chunks()
