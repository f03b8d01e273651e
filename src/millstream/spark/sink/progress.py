"""What a sink has committed: one record per sink in a compacted topic, written in the same transaction as the data.

Reading it waits until every transaction that is open on the topic has ended, also those of strangers: before that, nobody can tell
whether a record counts. The sink itself is read after its transactional id was opened, so none of its own is open then.
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
from millstream.spark.sink.failures import ProgressConflict, SinkError
from millstream.spark.source.fetcher import Fetcher, Task
from millstream.spark.source.offsets import Range
from millstream.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from millstream.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millstream.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
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
    """The last batch that a sink committed. ``commits`` counts all it ever did: of two records the higher one is newer."""

    sink: str
    query: str
    batch: int
    offsets: str
    commits: int
    counts: Mapping[str, int] = field(default_factory=dict)
    at_ms: int = 0

    def to_batch(self) -> tuple[bytes, bytes]:
        """Header and body of a record batch that holds it, not yet stamped."""
        value = json.dumps({"format": FORMAT, **asdict(self)}, separators=(",", ":"), sort_keys=True)
        whole = build_batch([Record(0, self.at_ms, self.sink.encode(), value.encode())])
        return whole[:HEADER_SIZE], whole[HEADER_SIZE:]

    @classmethod
    def from_value(cls, value: bytes) -> Progress:
        fields = json.loads(value)
        if fields.pop("format", None) != FORMAT:
            raise SinkError("the progress record was written by a newer version", hint="use that version")
        return cls(**{name: fields[name] for name in cls.__dataclass_fields__ if name in fields})


@dataclass(frozen=True)
class Place:
    """A partition of the progress topic, and who leads it."""

    partition: TopicPartition
    leader: Address
    topic_id: bytes


class ProgressTopic:
    """The topic, as the driver of one sink uses it."""

    def __init__(self, protocol: Protocol, connection: Connection, name: str = DEFAULT_TOPIC) -> None:
        self.name = name
        self.places: list[Place] = []
        self._protocol = protocol
        self._connection = connection

    def open(self, patience_s: float) -> None:
        """Find the topic, make it if it is not there, and see that it keeps what it is given."""
        deadline_s = time.monotonic() + patience_s
        if not self._find():
            self._create()
        while not self._find():
            if time.monotonic() > deadline_s:
                raise SinkError(
                    f"the progress topic {self.name!r} has no leader", hint="see that the brokers are up"
                )
            time.sleep(RETRY_S)
        self._check_compacted()

    def home(self, sink: str) -> Place:
        """Where the record of a sink is written: partition 0, since the topic has one unless someone adds more."""
        return self.places[0]

    def read(self, sink: str, patience_s: float) -> Progress | None:
        """The newest committed record of a sink, in whichever partition it is."""
        found = [
            progress for place in self.places for progress in self._read_partition(place, sink, patience_s)
        ]
        return max(found, key=lambda progress: progress.commits, default=None)

    def _read_partition(self, place: Place, sink: str, patience_s: float) -> list[Progress]:
        end = self._offset(place, LATEST, READ_UNCOMMITTED)
        self._wait_stable(place, end, patience_s)
        start = self._offset(place, EARLIEST, READ_UNCOMMITTED)
        task = Task(
            span=Range(place.partition, start, end),
            leader=place.leader,
            topic_id=place.topic_id,
            connection=self._connection,
            fail_on_data_loss=False,
        )
        wanted = sink.encode()
        found = []
        for batch in Fetcher(task).batches():
            keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
            found += [Progress.from_value(v) for k, v in zip(keys, values, strict=True) if k == wanted and v]
        return found

    def _wait_stable(self, place: Place, end: int, patience_s: float) -> None:
        """Until no transaction is open below ``end``; the last of them ends with its timeout."""
        deadline_s = time.monotonic() + patience_s
        while (stable := self._offset(place, LATEST, READ_COMMITTED)) < end:
            if time.monotonic() > deadline_s:
                raise ProgressConflict(
                    f"a transaction is open on {place.partition} since offset {stable}, for more than {patience_s:.0f} s",
                    hint="find its owner with `millstream transactions list`, or abort it",
                )
            time.sleep(RETRY_S)

    def _offset(self, place: Place, timestamp: int, isolation: int) -> int:
        part = ListOffsetsPartition(partition_index=place.partition.partition, timestamp=timestamp)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation,
            topics=[ListOffsetsTopic(name=self.name, partitions=[part])],
        )

        def attempt() -> int:
            leader = self._protocol.leaders([self.name]).get(place.partition)
            if leader is None:
                raise refusal(ErrorCode.LEADER_NOT_AVAILABLE, doing=f"read {place.partition}")
            answer = self._protocol.ask(request, node=leader)
            found = answer.topics[0].partitions[0]
            if found.error_code:
                raise refusal(found.error_code, doing=f"read {place.partition}", subject=self.name)
            return int(found.offset)

        return self._protocol.patiently(attempt)

    def _find(self) -> bool:
        """Learn the partitions; False while the topic or one of its leaders is missing."""
        answer = self._protocol.metadata([self.name])
        brokers = {one.node_id: Address(one.node_id, one.host, one.port) for one in answer.brokers}
        (topic,) = answer.topics
        if topic.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE):
            return False
        if topic.error_code:
            raise refusal(topic.error_code, doing=f"read topic {self.name!r}", subject=self.name)
        parts = sorted(topic.partitions, key=lambda one: one.partition_index)
        if not parts or any(one.leader_id not in brokers for one in parts):
            return False
        self.places = [
            Place(TopicPartition(self.name, one.partition_index), brokers[one.leader_id], topic.topic_id)
            for one in parts
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
        (made,) = ask_controller(self._protocol, request).topics
        if made.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise refusal(
                made.error_code, doing=f"create the progress topic {self.name!r}", reason=made.error_message
            )

    def _check_compacted(self) -> None:
        resource = DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=self.name, configuration_keys=["cleanup.policy"]
        )
        for result in self._protocol.ask(DescribeConfigsRequest(resources=[resource])).results:
            for entry in result.configs:
                if entry.name == "cleanup.policy" and "compact" not in (entry.value or ""):
                    raise SinkError(
                        f"the progress topic {self.name!r} is not compacted: it would forget what was committed",
                        hint=f"millstream configs alter topic {self.name} --set cleanup.policy=compact",
                    )


def ask_controller(protocol: Protocol, request: Any) -> Any:
    """Changes of topics go to the controller; a broker that is not it either passes them on or says so."""
    controller = protocol.metadata([]).controller_id
    try:
        return protocol.ask(request, node=controller) if controller >= 0 else protocol.ask(request)
    except ClientError:
        if controller < 0:
            raise
        return protocol.ask(request)
