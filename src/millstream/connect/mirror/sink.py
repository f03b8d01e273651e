"""What writes a direction's batches: the exactly-once sink of the target, and a thread that looks after topics and groups.

Before a batch is written its topics are there, with enough partitions. The thread makes a pass every few seconds: topics that have no records yet, settings,
offsets of groups. What it cannot do now is told once and tried again; the copying goes on meanwhile.
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
from millstream.connect.mirror.data_loss import LossTeller
from millstream.connect.mirror.direction import TIMEOUT_S, Direction, Ids, MirrorCluster, find_ids
from millstream.connect.mirror.groups import GroupKeeper
from millstream.connect.mirror.policy import HEADER
from millstream.connect.mirror.topics import TopicKeeper
from millstream.core.ids import NULL_ID, id_text
from millstream.pipelines.errors import Unavailable
from millstream.pipelines.stores import WriteResult
from millstream.spark.options import SINK, only_for
from millstream.spark.sink.failures import SinkError, TopicMissing
from millstream.spark.sink.rows import HEADERS_TYPE
from millstream.spark.sink.topic_sink import TopicSink
from millstream.spark.sink.transaction import persist
from millstream.spark.source.data_loss import say

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from millstream.spark.sink.checkpoint import BatchIdentity

PATIENCE_S = 60.0
LAST_PASS_S = 30.0
LEAVE_S = 1.0


class MirrorSink:
    """Writes the batches of one direction. ``writer`` is the name of its progress and of its group in the source."""

    def __init__(self, direction: Direction, writer: str, *, reset_progress: bool = False) -> None:
        self.direction = direction
        self.writer = writer
        options = {**direction.target.options, "compression": direction.compression}
        self._sink = TopicSink(
            direction.target.bootstrap, writer, options=only_for(options, SINK), reset_progress=reset_progress
        )
        self._ids: Ids | None = None
        self._keeper: Keeper | None = None
        self._protocol = Protocol(direction.source.connection())
        self._failed = False
        self._losses = LossTeller(direction, self._say) if direction.skip_losses else None

    def open(self) -> None:
        """Fence older mirrors of this name, then begin to look after topics and groups."""
        with _patience():
            self._ids = find_ids(self.direction)
            self._sink.open()
        self._keeper = Keeper(self.direction, self._ids, self.writer, self._say)
        self._keeper.start()

    def write(self, batch: DataFrame, batch_id: int, identity: BatchIdentity) -> WriteResult:
        """One transaction in the target."""
        assert self._keeper is not None and self._ids is not None, "the sink is not open"
        try:
            self._keeper.check()
            with _patience():
                topics = self._topics()
                self._keeper.topics.ensure({name: len(one.partitions) for name, one in topics.items()})
                ids = {name: id_text(one.topic_id) for name, one in topics.items() if one.topic_id != NULL_ID}
                with self._watching(batch, batch_id):
                    self._sink(copies(batch, self.direction, self._ids, ids), batch_id)
        except BaseException as error:
            self._failed = True
            if isinstance(error, TopicMissing) and (why := self._keeper.topics.refused):
                told = "; ".join(f"{name}: {reason}" for name, reason in sorted(why.items()))
                raise TopicMissing(
                    f"{self.direction.target.name} does not take {told}",
                    hint="leave such a topic out (--exclude, with --resume and another --checkpoint), or have it made there",
                ) from error
            raise
        return WriteResult(self._sink.rows_written, replayed=False)

    def close(self) -> None:
        """The last pass sees what the last batch brought; none is made after a failure."""
        if self._keeper is not None:
            self._keeper.stop(last_pass=not self._failed)
            self._keeper = None
        self._sink.close()
        self._protocol.close()
        if self._losses is not None:
            self._losses.close()

    def _watching(self, batch: DataFrame, batch_id: int) -> AbstractContextManager[None]:
        """A loss that does not stop the flow has to be told; one that does says so itself."""
        return nullcontext() if self._losses is None else self._losses.watching(batch, batch_id)

    def _say(self, text: str) -> None:
        say(f"mirror {self.direction.name}: {text}")

    def _topics(self) -> dict[str, Any]:
        """Those of the source. Records are fetched by the id of their topic, so none comes with the id of a later one."""
        answer = persist(lambda: self._protocol.metadata(None), PATIENCE_S)
        return {
            one.name: one
            for one in answer.topics
            if one.partitions and self.direction.selection.copies(one.name)
        }


class Keeper:
    """The thread. ``topics`` are looked after by batches as well."""

    def __init__(self, direction: Direction, ids: Ids, own_group: str, say: Callable[[str], None]) -> None:
        self._admins = [_admin(one) for one in (direction.source, direction.target) for _ in range(2)]
        self.topics = TopicKeeper(direction, self._admins[0], self._admins[2], say)
        groups = GroupKeeper(direction, ids, own_group, self._admins[1], self._admins[3])
        self._steps: list[Callable[[], object]] = [self.topics.run]
        if direction.groups:
            self._steps.append(groups.run)
        self._direction = direction
        self._say = say
        self._stop = threading.Event()
        self._trouble = ""
        self._last_pass = False
        self._thread = threading.Thread(target=self._run, name=f"mirror-{direction.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, last_pass: bool) -> None:
        """End the thread, after one more pass if wanted; does not wait for ever for brokers that are away."""
        self._last_pass = last_pass
        self._stop.set()
        self._thread.join(LAST_PASS_S if last_pass else LEAVE_S)

    def check(self) -> None:
        """The thread only ends by itself when something is wrong that nobody has thought of; Python has printed it then."""
        if not self._thread.is_alive():
            raise SinkError("topics and groups are not followed any more", hint="see what was printed before")

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._pass()
                self._stop.wait(self._direction.interval_s)
            if self._last_pass:
                self._pass()
        finally:
            for one in self._admins:
                one.close()

    def _pass(self) -> None:
        try:
            for step in self._steps:
                step()
            self._trouble = ""
        except ClientError as error:
            if str(error) != self._trouble:
                self._say(f"topics and groups are not followed for now: {error}")
            self._trouble = str(error)


@contextmanager
def _patience() -> Iterator[None]:
    """Brokers that are away are waited for, by the flow as a whole."""
    try:
        yield
    except BrokerUnreachable as error:
        raise Unavailable(error.message, hint=error.hint) from error


def copies(batch: DataFrame, direction: Direction, ids: Ids, topic_ids: Mapping[str, str]) -> DataFrame:
    """The records of the source as those of the target: other topics, the same partitions, keys, values and times, and one header more."""
    from pyspark.sql import functions as F

    if direction.selection.naming == "identity":
        batch = batch.where(~_is_no_news(direction, ids))
    # One literal however many topics there are; a topic without an id adds nothing.
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
    none = F.array().cast(HEADERS_TYPE)
    named = F.lit(direction.selection.target_topic(""))
    return batch.select(
        "key",
        "value",
        F.concat(named, "topic").alias("topic"),
        "partition",
        "timestamp",
        F.concat(F.coalesce("headers", none), F.array(header)).alias("headers"),
    )


def _is_no_news(direction: Direction, ids: Ids) -> Column:
    """A record that is a copy itself, of this very topic and partition; what applications pass on in a header names others.

    Only what was written in the source is copied, so that no record comes twice on several ways. ``forward`` copies all but what came
    from the target.
    """
    from pyspark.sql import functions as F

    this = F.concat(F.lit("/"), F.col("topic"), F.lit("/"), F.col("partition").cast("string"), F.lit("/"))

    def names_it(header: Column) -> Column:
        value = header["value"].cast("string")
        from_where = (
            value.startswith(F.concat(F.lit(ids.target), this)) if direction.forward else value.contains(this)
        )
        return (header["key"] == HEADER) & from_where

    return F.coalesce(F.exists("headers", names_it), F.lit(False))


def _admin(cluster: MirrorCluster) -> Admin:
    return Admin(cluster.bootstrap, timeout_s=TIMEOUT_S)
