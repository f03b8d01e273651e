"""``Consumer``: read topics from a position, to the present end or for ever. ``consume``: a list of records in one call.

The partitions are assigned by hand: no group, no coordinator, nothing is committed.

    for record in Consumer("localhost:9092", "orders", start="-1h", until_end=True):
        ...
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from millstream.client.admin import Admin
from millstream.client.connection import DEFAULT_TIMEOUT_S, Connection
from millstream.client.errors import (
    LOCAL_PARTITION_EOF,
    NO_ANSWER,
    TooFewRecords,
    translate,
)
from millstream.client.library import (
    KafkaConsumer,
    KafkaError,
    KafkaException,
    KafkaTopicPartition,
    Message,
    interruptible,
    make,
)
from millstream.client.offsets import Isolation
from millstream.client.positions import Position
from millstream.client.record import Record, from_message
from millstream.core.types import TopicPartition

POLL_S = 0.2


class Consumer:
    """Reads partitions. Iterate over it for records, or call ``batches`` or ``poll``.

    With ``until_end`` it ends when every partition has been read to where it ended when the consumer was made.
    """

    def __init__(
        self,
        bootstrap: str,
        topics: str | Iterable[str],
        *,
        partitions: Iterable[int] | None = None,
        start: str | int | Position = "earliest",
        until_end: bool = False,
        isolation: Isolation = "read_committed",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.connection = Connection(bootstrap, timeout_s, options or {})
        self.isolation: Isolation = isolation
        names = [topics] if isinstance(topics, str) else list(topics)
        with Admin.over(self.connection) as admin:
            assigned = [one for name in names for one in admin.topics.partitions(name, partitions)]
            self.start = Position.of(start).resolve(assigned, admin.offsets, isolation)
            ends = (
                admin.offsets.list(dict.fromkeys(assigned, "latest"), isolation=isolation)
                if until_end
                else {}
            )
        self._left = (
            {one: end.offset for one, end in ends.items() if end.offset > self.start[one]}
            if until_end
            else None
        )
        self._last_s = time.monotonic()
        self._client: KafkaConsumer | None = self._assign(assigned)

    def _assign(self, partitions: Sequence[TopicPartition]) -> KafkaConsumer:
        client = make(
            KafkaConsumer,
            self.connection.config(
                {
                    # librdkafka wants a name even where there is no group; nothing is ever committed under it.
                    "group.id": "millstream",
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "enable.partition.eof": True,
                    "auto.offset.reset": "earliest",
                    "isolation.level": self.isolation,
                    # The end of a partition is known from an empty answer, which a broker holds back for so long.
                    "fetch.wait.max.ms": 500 if self._left is None else 100,
                }
            ),
        )
        # librdkafka drops the bootstrap connection once it knows the brokers, and without a group coordinator may take a
        # second to open the next; asking for metadata opens it now.
        self._warm_up(client, partitions)
        client.assign([KafkaTopicPartition(*one, self.start[one]) for one in partitions])
        return client

    def _warm_up(self, client: KafkaConsumer, partitions: Sequence[TopicPartition]) -> None:
        if partitions:
            try:
                interruptible(client.list_topics, partitions[0].topic, timeout=self.connection.timeout_s)
            except KafkaException as error:
                client.close()
                raise translate(
                    error, doing=f"consume {partitions[0].topic!r}", subject=partitions[0].topic
                ) from None

    @property
    def finished(self) -> bool:
        """Whether everything that was to be read has been read; never, when following."""
        return self._client is None or (self._left is not None and not self._left)

    def poll(self, max_records: int = 500, timeout_s: float = POLL_S) -> list[Record]:
        """The next records, at most so many, waiting at most so long for the first; none when nothing came."""
        if self.finished or self._client is None:
            return []
        records = []
        for message in self._messages(self._client, max_records, timeout_s):
            error = message.error()
            if error is None:
                if (record := self._take(message)) is not None:
                    records.append(record)
            else:
                self._take_error(error, message)
        self._watch_silence(bool(records))
        return records

    @staticmethod
    def _messages(client: KafkaConsumer, limit: int, timeout_s: float) -> list[Message]:
        """What is there. ``consume`` alone would wait out the timeout whenever fewer than the limit came."""
        first = interruptible(client.poll, timeout_s)
        if first is None:
            return []
        return [first, *interruptible(client.consume, limit - 1, 0)] if limit > 1 else [first]

    def batches(self, max_records: int = 500) -> Iterator[list[Record]]:
        """Lists of records as they come, until finished."""
        while not self.finished:
            if records := self.poll(max_records):
                yield records

    def __iter__(self) -> Iterator[Record]:
        for records in self.batches():
            yield from records

    def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            client.close()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self, message: Message) -> Record | None:
        """The record, or None if it is past the end of what was to be read."""
        record = from_message(message)
        if self._left is None:
            return record
        partition = TopicPartition(record.topic, record.partition)
        end = self._left.get(partition)
        if end is None:
            return None
        if record.offset + 1 >= end:
            del self._left[partition]
        return record if record.offset < end else None

    def _watch_silence(self, heard: bool) -> None:
        """Who follows waits for a broker to come back; who reads to the end wants to know that it is gone."""
        now_s = time.monotonic()
        if heard:
            self._last_s = now_s
        elif self._left and now_s - self._last_s > self.connection.timeout_s:
            self.connection.check_reachable()
            self._last_s = now_s

    def _take_error(self, error: KafkaError, message: Message) -> None:
        """The end of a partition counts (its last offsets may be markers or compacted away); silence is waited out."""
        if error.code() == LOCAL_PARTITION_EOF:
            if self._left is not None:
                self._left.pop(TopicPartition(message.topic() or "", message.partition() or 0), None)
            return
        if error.code() in NO_ANSWER or error.retriable():
            return
        raise translate(error, doing=f"consume {message.topic() or 'records'}", subject=message.topic() or "")


def consume(
    bootstrap: str,
    topics: str | Iterable[str],
    *,
    n: int | None = None,
    start: str | int | Position = "earliest",
    timeout_s: float = DEFAULT_TIMEOUT_S,
    **options: Any,
) -> list[Record]:
    """The records up to the present end; with ``n``, exactly so many, waiting for those that are still to come."""
    records: list[Record] = []
    with Consumer(
        bootstrap, topics, start=start, until_end=n is None, timeout_s=timeout_s, **options
    ) as consumer:
        deadline_s = time.monotonic() + timeout_s
        while not consumer.finished and (n is None or len(records) < n):
            batch = consumer.poll(500 if n is None else min(500, n - len(records)))
            records += batch
            if batch:
                deadline_s = time.monotonic() + timeout_s
            elif time.monotonic() > deadline_s:
                wanted = "the end of the topic" if n is None else f"{n} records"
                raise TooFewRecords(
                    f"waited {timeout_s:.0f} s for {wanted} and got {len(records)}",
                    hint="wait longer (timeout_s), or ask for fewer",
                )
    return records
