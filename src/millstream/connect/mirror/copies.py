"""Reads which records of a partition are copies, and of which offsets; ``offsets.py`` decides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millstream.client.protocol import Protocol
from millstream.connect.mirror.direction import MirrorCluster
from millstream.connect.mirror.offsets import Bounds, Read, Row
from millstream.connect.mirror.policy import HEADER, Origin
from millstream.core.types import TopicPartition
from millstream.spark.options import BATCH, only_for, parse
from millstream.spark.source.cluster_view import READ_COMMITTED, ClusterView
from millstream.spark.source.fetcher import Fetcher, Task
from millstream.spark.source.offsets import Range

FETCH_BYTES = 64 << 10
PATIENCE_MS = 10_000
COLUMNS = (("offset", True), ("headers", True))


class Copies:
    """The partitions of some topics of one cluster at one time, for one thread."""

    def __init__(
        self, cluster: MirrorCluster, topics: Iterable[str], *, committed: bool = True
    ) -> None:
        names = sorted(set(topics))
        options = {
            **only_for(cluster.options, BATCH),
            "kafka.bootstrap.servers": cluster.bootstrap,
            "subscribePattern": "|".join(map(re.escape, names)) or "$^",
            "isolationLevel": "read_committed" if committed else "read_uncommitted",
            "retryTimeoutMs": str(PATIENCE_MS),
        }
        self._view = ClusterView(parse(options, BATCH))
        self._protocol = Protocol(self._view.connection)
        self.bounds: dict[TopicPartition, Bounds] = {}
        self.ids: dict[str, str] = {}
        if names:
            self._view.refresh()
            self.ids = self._view.ids
            self.bounds = {
                partition: Bounds(log.earliest, log.latest)
                for partition, log in self._view.logs().items()
            }

    def reader(
        self, partition: TopicPartition, cluster: str, topic: str, topic_id: str | None = None
    ) -> Read:
        """Return a reader of a partition that recognizes copies of a topic of a cluster (its id).

        Without a ``topic_id``, copies of earlier topics of this name count too.
        """
        place = self._view.partitions[partition]
        bounds = self.bounds[partition]

        def read(at: int) -> Sequence[Row]:
            task = Task(
                span=Range(partition, max(at, bounds.begin), bounds.end),
                leader=place.leader,
                topic_id=place.topic_id,
                connection=self._view.connection,
                isolation=READ_COMMITTED,
                columns=COLUMNS,
                fail_on_data_loss=False,
                fetch_bytes=FETCH_BYTES,
                retry_timeout_ms=PATIENCE_MS,
            )
            for batch in Fetcher(task, self._protocol).batches():
                if rows := rows_of(batch, cluster, topic, partition, topic_id):
                    return rows
            return []

        return read

    def close(self) -> None:
        self._view.close()
        self._protocol.close()


def rows_of(
    batch: pa.RecordBatch,
    cluster: str,
    topic: str,
    partition: TopicPartition,
    topic_id: str | None = None,
) -> list[Row]:
    """Return the offsets of a batch, each with the offset that it is a copy of.

    If a record passed several mirrors, the last one counts. Early versions did not write a topic id
    into the header; such a copy counts for any topic of the name.
    """
    origins = _origins(batch.column("headers"), cluster, topic, partition.partition)
    return [
        Row(offset, origin.offset, origin.topic_id)
        if (origin := origins.get(index)) is not None
        and topic_id in (None, origin.topic_id or topic_id)
        else Row(offset, None)
        for index, offset in enumerate(batch.column("offset").to_pylist())
    ]


def _origins(headers: Any, cluster: str, topic: str, partition: int) -> dict[int, Origin]:
    """Return the origins of copies by the index of their row."""
    flat = headers.flatten()
    ours = pc.equal(flat.field("key"), HEADER)
    rows = pc.list_parent_indices(headers).filter(ours).to_pylist()
    values = flat.field("value").filter(ours).to_pylist()
    last = dict(zip(rows, map(Origin.parse, values), strict=True))
    return {
        row: origin
        for row, origin in last.items()
        if origin is not None and origin[:3] == (cluster, topic, partition)
    }
