"""A row of the edge-case tables: a request, and the error code that Apache Kafka 4.3 answers to it.

The answers were observed on Apache Kafka 4.3.1 with raw frames. Where Millstream differs on
purpose, the row carries both answers and the reason. With ``MILLSTREAM_TEST_BOOTSTRAP`` naming an
Apache Kafka, the same rows check Kafka's side.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from compat.crafted import batch
from compat.raw_client import Closed, RawConnection, ask
from compat.raw_requests import (
    EARLIEST,
    create_topics,
    errors,
    list_offsets,
    metadata,
    new_topic,
    produce,
    values,
)
from millstream.core.errors import ErrorCode
from millstream.wire.schema import Struct

AGAINST_KAFKA = "MILLSTREAM_TEST_BOOTSTRAP" in os.environ
CLOSED = "the connection is closed"
SILENT = "the connection stays open and nothing comes"
T0 = 1_700_000_000_000

# A code: every entry of the answer is fine or has this code, and at least one has it. A tuple: the
# codes one by one. A set: the codes in any order, where Kafka answers in the order of a hash map.
Expected = ErrorCode | tuple[int, ...] | frozenset[int] | str


@dataclass(frozen=True)
class Case:
    """``body`` makes the request from the world it is asked in. ``shows``: field name -> its values
    in the answer.
    """

    name: str
    api: str
    version: int
    body: Callable[[World], Struct]
    expect: Expected
    shows: Mapping[str, Any] = field(default_factory=dict)
    kafka: Expected | None = None
    why: str = ""

    def __post_init__(self) -> None:
        assert (self.kafka is None) == (not self.why), f"{self.name}: a difference needs its reason"

    @property
    def id(self) -> str:
        return f"{self.api} v{self.version}: {self.name}"

    def check(self, world: World) -> None:
        expected = self.kafka if AGAINST_KAFKA and self.kafka is not None else self.expect
        if expected == SILENT:
            pytest.skip("would take as long as we are willing to wait")
        try:
            answer = ask(world.bootstrap, self.api, self.version, self.body(world))
        except Closed:
            assert expected == CLOSED
            return
        assert expected != CLOSED, f"answered: {answer}"
        assert _summary(answer, expected) == expected, answer
        if self.kafka is None or not AGAINST_KAFKA:
            assert {name: values(answer, name) for name in self.shows} == self.shows, answer


def _summary(answer: Any, expected: Expected) -> Expected:
    codes = errors(answer)
    if isinstance(expected, tuple):
        return tuple(codes)
    if isinstance(expected, frozenset):
        return frozenset(codes)
    failed = {ErrorCode.of(code) for code in codes} - {ErrorCode.NONE}
    if len(failed) > 1:
        return tuple(codes)
    return failed.pop() if failed else ErrorCode.NONE


# name -> (partitions, settings)
TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    "plain": (1, {}),
    "small": (1, {"max.message.bytes": "1000"}),
    "compact": (1, {"cleanup.policy": "compact"}),
    "both": (1, {"cleanup.policy": "compact,delete"}),
    "append-time": (1, {"message.timestamp.type": "LogAppendTime"}),
    "bounded": (
        1,
        {"message.timestamp.after.max.ms": "1000", "message.timestamp.before.max.ms": "60000"},
    ),
    "segment": (1, {"segment.bytes": str(1 << 20), "max.message.bytes": str(4 << 20)}),
    "gzip": (1, {"compression.type": "gzip"}),
    # Kafka looks at every record of every topic.
    "deep": (1, {} if AGAINST_KAFKA else {"message.validation.deep": "true"}),
    "read": (3, {}),
    "cut": (1, {}),
    "times": (2, {}),
    "two": (2, {}),
    "set": (1, {"retention.ms": "5000", "cleanup.policy": "compact"}),
    "dot.ted": (1, {}),
    "page-1": (4, {}),
    "page-2": (3, {}),
    "page-3": (1, {}),
}
SMALL_PAIR = (b"k", b"v" * 10)


class World:
    """A broker with the topics of the tables, under names of this run."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.run = uuid.uuid4().hex[:8]
        self.connection = RawConnection(bootstrap)
        topics = [new_topic(self[name], count, configs=c) for name, (count, c) in TOPICS.items()]
        assert not any(errors(self.call("CreateTopics", 7, create_topics(*topics))))
        self.ids = self._wait_for_leaders()
        self.node_id: int = self.call("Metadata", 12, metadata()).brokers[0].node_id
        self._fill()

    def __getitem__(self, name: str) -> str:
        """The topic of the tables called so; any other name is one that does not exist."""
        return f"edge-{self.run}-{name}"

    def id(self, name: str) -> bytes:
        return self.ids[self[name]]

    def call(self, api: str, version: int, request: Struct) -> Any:
        return self.connection.call(api, version, request)

    def close(self) -> None:
        self.connection.close()

    def _wait_for_leaders(self) -> dict[str, bytes]:
        """Apache Kafka may tell of a topic and its leader a moment before that leader knows."""
        while True:
            answer = self.call("Metadata", 12, metadata(*map(self.__getitem__, TOPICS)))
            asked = [
                list_offsets(topic.name, EARLIEST, partition=row.partition_index)
                for topic in answer.topics
                for row in topic.partitions
            ]
            codes = [errors(answer), *[errors(self.call("ListOffsets", 7, one)) for one in asked]]
            if not any(map(any, codes)):
                return {topic.name: topic.topic_id for topic in answer.topics}

    def _fill(self) -> None:
        for _ in range(5):
            self._append("read", batch([SMALL_PAIR] * 2))
            self._append("cut", batch([SMALL_PAIR] * 2))
        for _ in range(3):
            self._append("read", batch([SMALL_PAIR] * 2), partition=2)
        self._append("times", batch([SMALL_PAIR] * 3, timestamp=T0, time_deltas=[0, 100, 50]))
        self._append("times", batch([SMALL_PAIR] * 2, timestamp=T0 + 1000, time_deltas=[0, 10]))
        self._append("times", batch([SMALL_PAIR], timestamp=T0 + 500))
        self._append("both", batch())

    def _append(self, name: str, records: bytes, *, partition: int = 0) -> None:
        assert errors(
            self.call("Produce", 9, produce(self[name], records, partition=partition))
        ) == [0]
