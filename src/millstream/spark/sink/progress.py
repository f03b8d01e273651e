"""The committed progress of a sink: one record per sink in a compacted topic.

The record is written in the same transaction as the data of its batch. Reading it waits until every
transaction that is open on the topic has ended, including those of other sinks: before that, their
records are undecided. A sink reads its record after it has fenced its transactional id, so none of
its own transactions is open then.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from millstream.client.connection import Connection
from millstream.client.errors import ClientError, refusal
from millstream.client.protocol import Address, Protocol
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition
from millstream.spark.sink.checkpoint import BatchIdentity
from millstream.spark.sink.commit_rule import CommittedBatch, Verdict, judge
from millstream.spark.sink.failures import ProgressConflict, SinkError
from millstream.spark.sink.writer import Destination, Producer, Writer
from millstream.spark.source.fetcher import Fetcher, Task
from millstream.spark.source.offsets import Range
from millstream.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from millstream.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from millstream.wire.records.batch import Record, build_batch
from millstream.wire.records.layout import HEADER_SIZE

DEFAULT_TOPIC = "__millstream_progress"
FORMAT = 1
EARLIEST, LATEST = -2, -1
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
TOPIC_RESOURCE = 2
CREATE_TIMEOUT_MS = 30_000
RETRY_S = 0.02


@dataclass(frozen=True)
class Progress:
    """The last batch that a sink committed.

    ``commits`` counts all commits of the sink: of two records, the one with more is newer.
    """

    sink: str
    query: str
    batch: int
    offsets: str
    commits: int
    counts: Mapping[str, int] = field(default_factory=dict)
    at_ms: int = 0

    def to_batch(self) -> tuple[bytes, bytes]:
        """Return header and body of a batch with this record, without producer and checksum."""
        value = json.dumps(
            {"format": FORMAT, **asdict(self)}, separators=(",", ":"), sort_keys=True
        )
        whole = build_batch([Record(0, self.at_ms, self.sink.encode(), value.encode())])
        return whole[:HEADER_SIZE], whole[HEADER_SIZE:]

    @classmethod
    def from_value(cls, value: bytes) -> Progress:
        fields = json.loads(value)
        if fields.pop("format", None) != FORMAT:
            raise SinkError(
                "the progress record was written by a newer version", hint="use that version"
            )
        return cls(**{name: fields[name] for name in cls.__dataclass_fields__ if name in fields})


# ---- decisions ----


class CommittedProgress:
    """Decides about batches by the last one that the sink committed. No I/O."""

    def __init__(
        self,
        sink_id: str,
        last: Progress | None,
        *,
        reset_progress: bool = False,
        allows_gaps: bool = False,
    ) -> None:
        self.last = last
        self.query: str | None = None
        """The query that the sink serves, once its first batch has come."""
        self._sink_id = sink_id
        self._reset_progress = reset_progress
        self._allows_gaps = allows_gaps

    def has(self, batch_id: int, identity: BatchIdentity) -> bool:
        """Return whether the batch is committed.

        Raise ProgressConflict if it is not the next either. A sink that allows gaps takes every
        other batch for a new one.
        """
        self.check_query(identity.query)
        verdict = self._judge(batch_id, identity)
        if self._allows_gaps or verdict in (Verdict.COMMITTED, Verdict.NEXT):
            return verdict is Verdict.COMMITTED
        if self._reset_progress and self.query is None:
            self.query = identity.query
            return False
        raise _conflict(verdict, self._sink_id, self.last, batch_id, identity.query)

    def _judge(self, batch_id: int, identity: BatchIdentity) -> Verdict:
        """Apply the commit rule to a batch."""
        last = self.last
        if last is None:
            return judge(None, batch_id)
        return judge(
            CommittedBatch.compare(last.batch, last.query, last.offsets, identity), batch_id
        )

    def check_query(self, query_id: str) -> None:
        """Raise unless the sink serves this query, and the query wrote the committed progress."""
        if self.query not in (None, query_id):
            raise SinkError(
                f"sink {self._sink_id!r} already serves query {self.query}",
                hint="give each query its own sink",
            )
        if self.last is not None and self.last.query != query_id and not self._reset_progress:
            raise _other_query(self._sink_id, self.last, query_id)

    def after(
        self, batch_id: int, identity: BatchIdentity, counts: Mapping[str, int], *, now_ms: int
    ) -> Progress:
        """Return the progress after this batch."""
        commits = 1 + (0 if self.last is None else self.last.commits)
        ordered = dict(sorted(counts.items()))
        return Progress(
            self._sink_id, identity.query, batch_id, identity.offsets, commits, ordered, now_ms
        )


def _other_query(sink_id: str, last: Progress, query_id: str) -> ProgressConflict:
    return ProgressConflict(
        f"sink {sink_id!r} has committed batch {last.batch} of another query ({last.query}, this one is "
        f"{query_id}): the checkpoint is new, or this is a second copy",
        hint="use the checkpoint of that query or another sink id; reset_progress=True starts over and "
        "repeats what the other query wrote",
    )


def _conflict(
    verdict: Verdict, sink_id: str, last: Progress | None, batch_id: int, query_id: str
) -> ProgressConflict:
    reset = (
        "reset_progress=True continues from here and accepts that records are repeated or missing"
    )
    if last is None:
        return ProgressConflict(
            f"the query is at batch {batch_id}, and sink {sink_id!r} has never committed a batch: its name "
            "has changed, or the query used to write in another way",
            hint=f"use the old sink id; {reset}",
        )
    if verdict is Verdict.OTHER_QUERY:
        return _other_query(sink_id, last, query_id)
    if verdict is Verdict.GAP:
        return ProgressConflict(
            f"the query is at batch {batch_id}, and sink {sink_id!r} has committed up to {last.batch}: the "
            "batches in between are not in the topics",
            hint=f"use the checkpoint that belongs to this sink; {reset}",
        )
    how = (
        "with other offsets"
        if verdict is Verdict.OTHER_OFFSETS
        else f"and later ones up to {last.batch}"
    )
    return ProgressConflict(
        f"batch {batch_id} comes again, but sink {sink_id!r} has committed it {how}: "
        "the checkpoint was restored or copied",
        hint=f"use the latest checkpoint; {reset}",
    )


# ---- the topic ----


@dataclass(frozen=True)
class ProgressPartition:
    """A partition of the progress topic, and its leader."""

    partition: TopicPartition
    leader: Address
    topic_id: bytes


class ProgressTopic:
    """The progress topic, as the driver of one sink uses it."""

    def __init__(
        self, protocol: Protocol, connection: Connection, name: str = DEFAULT_TOPIC
    ) -> None:
        self.name = name
        self.partitions: list[ProgressPartition] = []
        self._protocol = protocol
        self._connection = connection

    def open(self, patience_s: float) -> None:
        """Find the topic, create it if it is missing, and check that it is compacted."""
        deadline_s = time.monotonic() + patience_s
        if not self._find():
            self._create()
        while not self._find():
            if time.monotonic() > deadline_s:
                raise SinkError(
                    f"the progress topic {self.name!r} has no leader",
                    hint="check that the brokers are up",
                )
            time.sleep(RETRY_S)
        self._check_compacted()

    def write(
        self, progress: Progress, transactional_id: str, producer: Producer, timeout_s: float
    ) -> None:
        """Write a record in the current transaction of the producer.

        It goes to partition 0: the topic has one partition, unless a user adds more.
        """
        target = self.partitions[0]
        writer = Writer(
            Destination(
                self._connection,
                {target.partition: target.leader.node},
                {target.leader.node: target.leader},
                transactional_id,
                producer,
                timeout_s,
            )
        )
        try:
            writer.send(*target.partition, *progress.to_batch())
            writer.finish()
        except BaseException:
            writer.close()
            raise

    def read(self, sink: str, patience_s: float) -> Progress | None:
        """Return the newest committed record of a sink, from any partition."""
        records = [
            progress
            for partition in self.partitions
            for progress in self._read_partition(partition, sink, patience_s)
        ]
        return max(records, key=lambda progress: progress.commits, default=None)

    def _read_partition(
        self, source: ProgressPartition, sink: str, patience_s: float
    ) -> list[Progress]:
        end = self._offset(source, LATEST, READ_UNCOMMITTED)
        self._wait_stable(source, end, patience_s)
        start = self._offset(source, EARLIEST, READ_UNCOMMITTED)
        task = Task(
            span=Range(source.partition, start, end),
            leader=source.leader,
            topic_id=source.topic_id,
            connection=self._connection,
            fail_on_data_loss=False,
        )
        sink_key = sink.encode()
        records = []
        for batch in Fetcher(task).batches():
            keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
            records += [
                Progress.from_value(value)
                for key, value in zip(keys, values, strict=True)
                if key == sink_key and value
            ]
        return records

    def _wait_stable(self, source: ProgressPartition, end: int, patience_s: float) -> None:
        """Wait until no transaction is open below ``end``. The last one ends with its timeout."""
        deadline_s = time.monotonic() + patience_s
        while (stable := self._offset(source, LATEST, READ_COMMITTED)) < end:
            if time.monotonic() > deadline_s:
                raise ProgressConflict(
                    f"a transaction has been open on {source.partition} since offset {stable} for more "
                    f"than {patience_s:.0f} s",
                    hint="find its owner with `millstream transactions list`, or abort it",
                )
            time.sleep(RETRY_S)

    def _offset(self, source: ProgressPartition, timestamp: int, isolation: int) -> int:
        partition = ListOffsetsPartition(
            partition_index=source.partition.partition, timestamp=timestamp
        )
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation,
            topics=[ListOffsetsTopic(name=self.name, partitions=[partition])],
        )

        def attempt() -> int:
            leader = self._protocol.leaders([self.name]).get(source.partition)
            if leader is None:
                raise refusal(ErrorCode.LEADER_NOT_AVAILABLE, doing=f"read {source.partition}")
            response = self._protocol.ask(request, node=leader).topics[0].partitions[0]
            if response.error_code:
                raise refusal(
                    response.error_code, doing=f"read {source.partition}", subject=self.name
                )
            return int(response.offset)

        return self._protocol.patiently(attempt)

    def _find(self) -> bool:
        """Look up the partitions. Return False while the topic or one of its leaders is missing."""
        metadata = self._protocol.metadata([self.name])
        brokers = {
            broker.node_id: Address(broker.node_id, broker.host, broker.port)
            for broker in metadata.brokers
        }
        (topic,) = metadata.topics
        if topic.error_code in (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.LEADER_NOT_AVAILABLE,
        ):
            return False
        if topic.error_code:
            raise refusal(topic.error_code, doing=f"read topic {self.name!r}", subject=self.name)
        described = sorted(topic.partitions, key=lambda partition: partition.partition_index)
        if not described or any(partition.leader_id not in brokers for partition in described):
            return False
        self.partitions = [
            ProgressPartition(
                TopicPartition(self.name, partition.partition_index),
                brokers[partition.leader_id],
                topic.topic_id,
            )
            for partition in described
        ]
        return True

    def _create(self) -> None:
        topic = CreatableTopic(
            name=self.name,
            num_partitions=1,
            replication_factor=-1,
            configs=[CreatableTopicConfig(name="cleanup.policy", value="compact")],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=CREATE_TIMEOUT_MS)
        (created,) = ask_controller(self._protocol, request).topics
        if created.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise refusal(
                created.error_code,
                doing=f"create the progress topic {self.name!r}",
                reason=created.error_message,
            )

    def _check_compacted(self) -> None:
        resource = DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE,
            resource_name=self.name,
            configuration_keys=["cleanup.policy"],
        )
        for result in self._protocol.ask(DescribeConfigsRequest(resources=[resource])).results:
            for entry in result.configs:
                if entry.name == "cleanup.policy" and "compact" not in (entry.value or ""):
                    raise SinkError(
                        f"the progress topic {self.name!r} is not compacted: "
                        "retention would delete the committed progress",
                        hint=f"millstream configs alter topic {self.name} --set cleanup.policy=compact",
                    )


def ask_controller(protocol: Protocol, request: Any) -> Any:
    """Send a request to the controller; another broker forwards it or returns an error."""
    controller = protocol.metadata([]).controller_id
    try:
        return protocol.ask(request, node=controller) if controller >= 0 else protocol.ask(request)
    except ClientError:
        if controller < 0:
            raise
        return protocol.ask(request)
