"""Writes the batches of a direction: exactly-once, with a thread that syncs topics and groups.

Before a batch is written, its topics exist and have enough partitions. The thread makes a pass
every few seconds over empty topics, settings and offsets of groups. It prints a failure once and
retries; copying continues.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from millstream.client.admin.client import Admin
from millstream.client.errors import BrokerUnreachable, ClientError
from millstream.client.protocol import Protocol
from millstream.connect.mirror.data_loss import DataLossReport
from millstream.connect.mirror.direction import TIMEOUT_S, Direction, Ids, MirrorCluster, find_ids
from millstream.connect.mirror.groups import GroupSync
from millstream.connect.mirror.policy import HEADER
from millstream.connect.mirror.topics import TopicSync
from millstream.core.ids import NULL_ID, id_text
from millstream.pipelines.errors import Unavailable
from millstream.pipelines.stores import WriteResult
from millstream.spark.options import SINK, only_for
from millstream.spark.sink.failures import SinkError, TopicMissing
from millstream.spark.sink.rows import HEADERS_TYPE
from millstream.spark.sink.topic_sink import TopicSink
from millstream.spark.sink.transaction import retry
from millstream.spark.source.data_loss import say

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from millstream.spark.sink.checkpoint import BatchIdentity

PATIENCE_S = 60.0
LAST_PASS_S = 30.0
LEAVE_S = 1.0


class MirrorSink:
    """Writes the batches of one direction.

    ``writer`` is the name of its progress, and of its group in the source.
    """

    def __init__(self, direction: Direction, writer: str, *, reset_progress: bool = False) -> None:
        self.direction = direction
        self.writer = writer
        options = {**direction.target.options, "compression": direction.compression}
        self._sink = TopicSink(
            direction.target.bootstrap,
            writer,
            options=only_for(options, SINK),
            reset_progress=reset_progress,
        )
        self._ids: Ids | None = None
        self._sync: SyncThread | None = None
        self._protocol = Protocol(direction.source.connection())
        self._failed = False
        self._data_loss = DataLossReport(direction, self._say) if direction.skip_losses else None

    def open(self) -> None:
        """Fence older mirrors of this name, then start to sync topics and groups."""
        with _retry_later():
            self._ids = find_ids(self.direction)
            self._sink.open()
        self._sync = SyncThread(self.direction, self._ids, self.writer, self._say)
        self._sync.start()

    def write(self, batch: DataFrame, batch_id: int, identity: BatchIdentity) -> WriteResult:
        """Write a batch in one transaction of the target."""
        assert self._sync is not None and self._ids is not None, "the sink is not open"
        try:
            self._sync.check()
            with _retry_later():
                topics = self._topics()
                self._sync.topics.ensure(
                    {name: len(topic.partitions) for name, topic in topics.items()}
                )
                ids = {
                    name: id_text(topic.topic_id)
                    for name, topic in topics.items()
                    if topic.topic_id != NULL_ID
                }
                with self._watching(batch, batch_id):
                    self._sink(copies(batch, self.direction, self._ids, ids), batch_id)
        except BaseException as error:
            self._failed = True
            if isinstance(error, TopicMissing) and (rejected := self._sync.topics.rejected):
                reasons = "; ".join(
                    f"{name}: {reason}" for name, reason in sorted(rejected.items())
                )
                raise TopicMissing(
                    f"{self.direction.target.name} rejects {reasons}",
                    hint="exclude such a topic (--exclude, with --resume and another --checkpoint), "
                    "or create it there",
                ) from error
            raise
        return WriteResult(self._sink.rows_written, replayed=False)

    def close(self) -> None:
        """Stop after a last pass for the offsets of the last batch; skip it after a failure."""
        if self._sync is not None:
            self._sync.stop(last_pass=not self._failed)
            self._sync = None
        self._sink.close()
        self._protocol.close()
        if self._data_loss is not None:
            self._data_loss.close()

    def _watching(self, batch: DataFrame, batch_id: int) -> AbstractContextManager[None]:
        """Report data loss if it does not stop the flow; otherwise the flow's error does."""
        return (
            nullcontext() if self._data_loss is None else self._data_loss.watching(batch, batch_id)
        )

    def _say(self, text: str) -> None:
        say(f"mirror {self.direction.name}: {text}")

    def _topics(self) -> dict[str, Any]:
        """Return the topics of the source.

        Records are fetched by topic id, so none is labelled with the id of a recreated topic.
        """
        metadata = retry(lambda: self._protocol.metadata(None), PATIENCE_S)
        return {
            topic.name: topic
            for topic in metadata.topics
            if topic.partitions and self.direction.selection.copies(topic.name)
        }


class SyncThread:
    """Syncs topics and groups. Batches sync ``topics`` as well."""

    def __init__(
        self, direction: Direction, ids: Ids, own_group: str, say: Callable[[str], None]
    ) -> None:
        self._admins = [
            _admin(cluster) for cluster in (direction.source, direction.target) for _ in range(2)
        ]
        self.topics = TopicSync(direction, self._admins[0], self._admins[2], say)
        groups = GroupSync(direction, ids, own_group, self._admins[1], self._admins[3])
        self._steps: list[Callable[[], object]] = [self.topics.run]
        if direction.groups:
            self._steps.append(groups.run)
        self._direction = direction
        self._say = say
        self._stop = threading.Event()
        self._last_error = ""
        self._last_pass = False
        self._thread = threading.Thread(
            target=self._run, name=f"mirror-{direction.name}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, last_pass: bool) -> None:
        """Stop the thread, after a last pass if requested; do not wait forever for brokers."""
        self._last_pass = last_pass
        self._stop.set()
        self._thread.join(LAST_PASS_S if last_pass else LEAVE_S)

    def check(self) -> None:
        """Raise if the thread has died of an unexpected exception, which Python has printed."""
        if not self._thread.is_alive():
            raise SinkError(
                "the sync of topics and groups has stopped", hint="see the exception printed before"
            )

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._pass()
                self._stop.wait(self._direction.interval_s)
            if self._last_pass:
                self._pass()
        finally:
            for admin in self._admins:
                admin.close()

    def _pass(self) -> None:
        try:
            for step in self._steps:
                step()
            self._last_error = ""
        except ClientError as error:
            if str(error) != self._last_error:
                self._say(f"topics and groups cannot be synced, retrying: {error}")
            self._last_error = str(error)


@contextmanager
def _retry_later() -> Iterator[None]:
    """Make the flow wait for unreachable brokers."""
    try:
        yield
    except BrokerUnreachable as error:
        raise Unavailable(error.message, hint=error.hint) from error


def copies(
    batch: DataFrame, direction: Direction, ids: Ids, topic_ids: Mapping[str, str]
) -> DataFrame:
    """Return the records for the target: with its topics, and one more header.

    Partitions, keys, values and timestamps stay the same.
    """
    from pyspark.sql import functions as F

    if direction.selection.naming == "identity":
        batch = batch.where(~_is_copy(direction, ids))
    # One literal for all topics; concat_ws omits the id of a topic without one.
    known = F.from_json(F.lit(json.dumps(dict(topic_ids))), "map<string,string>")
    origin = F.concat_ws(
        "/",
        F.lit(ids.source),
        "topic",
        F.col("partition").cast("string"),
        F.col("offset").cast("string"),
        F.try_element_at(known, F.col("topic")),
    )
    header = F.struct(F.lit(HEADER).alias("key"), origin.cast("binary").alias("value"))
    no_headers = F.array().cast(HEADERS_TYPE)
    prefix = F.lit(direction.selection.target_topic(""))
    return batch.select(
        "key",
        "value",
        F.concat(prefix, "topic").alias("topic"),
        "partition",
        "timestamp",
        F.concat(F.coalesce("headers", no_headers), F.array(header)).alias("headers"),
    )


def _is_copy(direction: Direction, ids: Ids) -> Column:
    """Return whether a record is a copy of this topic and partition.

    Applications may pass on the header of another topic. Only records that were written in the
    source are copied, so that none arrives twice on different routes. ``forward`` copies all
    records except those that came from the target.
    """
    from pyspark.sql import functions as F

    this = F.concat(
        F.lit("/"), F.col("topic"), F.lit("/"), F.col("partition").cast("string"), F.lit("/")
    )

    def names_this(header: Column) -> Column:
        value = header["value"].cast("string")
        from_here = (
            value.startswith(F.concat(F.lit(ids.target), this))
            if direction.forward
            else value.contains(this)
        )
        return (header["key"] == HEADER) & from_here

    return F.coalesce(F.exists("headers", names_this), F.lit(False))


def _admin(cluster: MirrorCluster) -> Admin:
    return Admin(cluster.bootstrap, timeout_s=TIMEOUT_S)
