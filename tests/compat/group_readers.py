"""Real clients as members of a group inside the test's process, with one face: poll, commit,
committed, close.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, ClassVar, NamedTuple

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition

from millstream.client.library import close_member

DEADLINE_S = 120.0


class Read(NamedTuple):
    """A record as a member sees it."""

    topic: str
    partition: int
    offset: int
    value: bytes


class Reader(ABC):
    """A member that subscribes when it is made.

    ``pattern`` is a regular expression of topic names.
    """

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topics: Sequence[str] = (),
        *,
        pattern: str | None = None,
        reset: str = "earliest",
        auto_commit: bool = False,
        instance: str | None = None,
        session_ms: int = 10_000,
    ) -> None:
        self.bootstrap, self.group = bootstrap, group
        self.pattern, self.reset, self.auto_commit = pattern, reset, auto_commit
        self.instance, self.session_ms = instance, session_ms
        self.rebalances = 0
        self.open(list(topics))

    @abstractmethod
    def open(self, topics: list[str]) -> None: ...

    @abstractmethod
    def poll(self) -> list[Read]: ...

    @abstractmethod
    def commit(self) -> None:
        """What it has read, and waits for the answer."""

    @abstractmethod
    def committed(self, topic: str, partition: int) -> int | None: ...

    @abstractmethod
    def close(self) -> None: ...

    def read(self, count: int) -> list[Read]:
        """Polls until there are so many."""
        return self.read_until(lambda found: len(found) >= count)

    def read_until(self, enough: Callable[[list[Read]], bool]) -> list[Read]:
        found: list[Read] = []
        deadline = time.monotonic() + DEADLINE_S
        while not enough(found):
            assert time.monotonic() < deadline, f"only {len(found)} records: {found[-3:]}"
            found += self.poll()
        return found

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Confluent(Reader):
    protocol: ClassVar[dict[str, Any]] = {}

    def open(self, topics: list[str]) -> None:
        classic = {"session.timeout.ms": self.session_ms, "heartbeat.interval.ms": 100}
        self.consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "auto.offset.reset": self.reset,
                "enable.auto.commit": self.auto_commit,
                "auto.commit.interval.ms": 50,
                "topic.metadata.refresh.interval.ms": 100,
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
            | (self.protocol or classic)
            | ({"group.instance.id": self.instance} if self.instance else {})
        )
        wanted = topics if self.pattern is None else [f"^{self.pattern}"]
        self.consumer.subscribe(wanted, on_assign=self._on_assign)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.rebalances += 1

    def poll(self) -> list[Read]:
        return [
            Read(m.topic(), m.partition(), m.offset(), m.value())
            for m in self.consumer.consume(500, 0.05)
            if m.error() is None
        ]

    def commit(self) -> None:
        self.consumer.commit(asynchronous=False)

    def committed(self, topic: str, partition: int) -> int | None:
        [found] = self.consumer.committed([TopicPartition(topic, partition)], timeout=DEADLINE_S)
        return found.offset if found.offset >= 0 else None

    def close(self) -> None:
        close_member(
            self.consumer,
            static=self.instance is not None and "group.protocol" not in self.protocol,
        )


class ConfluentNext(Confluent):
    """The same with the group protocol of KIP-848, where the broker assigns."""

    protocol: ClassVar[dict[str, Any]] = {"group.protocol": "consumer"}


class ConfluentCooperative(Confluent):
    protocol: ClassVar[dict[str, Any]] = {
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": 10_000,
        "heartbeat.interval.ms": 100,
    }


class KafkaPython(Reader):
    """Polls for long: where a poll ends in the middle of a join, kafka-python 3.0 may turn in
    circles for ever.
    """

    def open(self, topics: list[str]) -> None:
        self.consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            group_instance_id=self.instance,
            auto_offset_reset=self.reset,
            enable_auto_commit=self.auto_commit,
            auto_commit_interval_ms=50,
            session_timeout_ms=self.session_ms,
            heartbeat_interval_ms=100,
            metadata_max_age_ms=500,
            fetch_max_wait_ms=50,
        )
        self.consumer.subscribe(
            topics, pattern=self.pattern
        ) if self.pattern is None else self.consumer.subscribe(pattern=self.pattern)

    def poll(self) -> list[Read]:
        polled = self.consumer.poll(timeout_ms=1_000).values()
        return [Read(r.topic, r.partition, r.offset, r.value) for some in polled for r in some]

    def commit(self) -> None:
        self.consumer.commit()

    def committed(self, topic: str, partition: int) -> int | None:
        return self.consumer.committed(PythonPartition(topic, partition))  # type: ignore[no-any-return]

    def close(self) -> None:
        self.consumer.close()


class AioKafka(Reader):
    """Its event loop runs on a thread of its own, so that it beats between two calls."""

    def open(self, topics: list[str]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._run(self._open(topics))

    async def _open(self, topics: list[str]) -> None:
        self.consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            group_instance_id=self.instance,
            auto_offset_reset=self.reset,
            enable_auto_commit=self.auto_commit,
            auto_commit_interval_ms=50,
            session_timeout_ms=self.session_ms,
            heartbeat_interval_ms=100,
            metadata_max_age_ms=200,
            fetch_max_wait_ms=50,
        )
        self.consumer.subscribe(topics=topics, pattern=self.pattern)
        await self.consumer.start()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    def poll(self) -> list[Read]:
        polled = self._run(self.consumer.getmany(timeout_ms=50)).values()
        return [Read(r.topic, r.partition, r.offset, r.value) for some in polled for r in some]

    def commit(self) -> None:
        self._run(self.consumer.commit())

    def committed(self, topic: str, partition: int) -> int | None:
        found: int | None = self._run(self.consumer.committed(AioPartition(topic, partition)))
        return found

    def close(self) -> None:
        self._run(self.consumer.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()


READERS = (Confluent, ConfluentNext, KafkaPython, AioKafka)
