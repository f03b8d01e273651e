"""The records of a consumer, in order: fetched, decoded, intercepted, and put back if not used.

``Consumer``, ``AsyncConsumer``, ``ConsumerThreads`` and ``WorkerPool`` read from it, each with its
rule for when a record counts as handed out and when offsets are committed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from millstream.client.connection import Connection
from millstream.client.consuming.manual_assignment import ManualAssignment
from millstream.client.consuming.membership import Membership
from millstream.client.errors import (
    LOCAL_PARTITION_EOF,
    NO_ANSWER,
    UndecodableRecord,
    translate,
)
from millstream.client.interceptors import ConsumerChain
from millstream.client.library import KafkaConsumer, KafkaError, Message, interruptible
from millstream.client.record import Record, from_message
from millstream.core.types import TopicPartition

POLL_S = 0.2

Decoder = Callable[[bytes], Any]


class RecordStream:
    """One reader's records. It belongs to one thread at a time.

    ``remaining`` holds the end to read to of each partition that is not finished; None: follow.
    """

    def __init__(
        self,
        source: Membership | ManualAssignment,
        connection: Connection,
        *,
        remaining: dict[TopicPartition, int] | None,
        decode_key: Decoder | None,
        decode_value: Decoder | None,
        chain: ConsumerChain | None,
    ) -> None:
        self.client: KafkaConsumer | None = source.client
        self.membership = source if isinstance(source, Membership) else None
        self.chain = chain
        # The records of the last poll before decoding and interceptors, which may drop some.
        self.polled: Sequence[Record] = ()
        self.polled_s = -1.0
        self.consumed = 0
        self.is_rewinding = False
        self._source = source
        self._manual = source if isinstance(source, ManualAssignment) else None
        self._connection = connection
        self._remaining = remaining
        self._decode_key = decode_key
        self._decode_value = decode_value
        # Fetched records that come before the next fetch: put back, or after an undecodable one.
        self._buffered: Sequence[Record] = ()
        self._ends_reached: dict[TopicPartition, int] = {}
        self._last_record_s = time.monotonic()

    @property
    def finished(self) -> bool:
        """Whether everything up to the ends has been read; never, if the stream follows."""
        if self.client is None:
            return True
        if self.membership is not None and not self.membership.joined:
            return False
        if self.is_rewinding:
            return False
        return self._remaining is not None and not self._remaining and not self._buffered

    def poll(self, max_records: int, timeout_s: float = POLL_S) -> list[Record]:
        """Return the next records, decoded and intercepted; ``polled`` has them as fetched."""
        self.polled_s = time.monotonic()
        if self.is_rewinding:
            self._rewind()
        if self._buffered:
            self.polled, self._buffered = self._buffered[:max_records], self._buffered[max_records:]
        else:
            self.polled = () if self.finished else self._fetch(max_records, timeout_s)
        records = [*self.polled]
        if self._decode_key is not None or self._decode_value is not None:
            records = self._decode_all(records)
        self.consumed += len(records)
        return records if self.chain is None else self.chain.on_consume(records)

    def serve_group(self, timeout_s: float) -> None:
        """Poll for rebalances while no records are needed; a record that arrives is buffered."""
        self._buffered = [*self._buffered, *self._fetch(1, timeout_s)]

    def put_back(self, first: Record, polled: Sequence[Record]) -> None:
        """Return the records of ``polled`` from ``first`` on with the next poll."""
        place = first[:3]  # topic, partition, offset
        at = next(
            (index for index, record in enumerate(polled) if record[:3] == place), len(polled)
        )
        self._buffered = [*polled[at:], *self._buffered]

    def mark_handed_out(self, records: Iterable[Record]) -> None:
        """Include these records in the next commit."""
        if self.membership is not None:
            for record in records:
                partition = TopicPartition(record.topic, record.partition)
                self.membership.advance(partition, record.offset + 1)

    def mark_ends(self, but: Collection[TopicPartition] = ()) -> None:
        """Include the ends that were reached in the next commit, except those of ``but``.

        Between the last record and the end are only transaction markers and compacted records.
        """
        for partition in self._ends_reached.keys() - but:
            end = self._ends_reached.pop(partition)
            if self.membership is not None:
                self.membership.advance(partition, end)

    def rewind_later(self) -> None:
        """Rewind with the next poll to what is committed by then.

        A transaction that was aborted may be repeated with the same records until then.
        """
        self.is_rewinding = True

    def commit_handled(self) -> None:
        """Commit a batch that was handled, unless the stream is about to rewind."""
        if self.membership is not None and not self.is_rewinding:
            self.mark_ends()
            self.membership.commit()

    def close(self) -> None:
        if self.client is not None:
            self.client = None
            self._source.close()

    def _rewind(self) -> None:
        if self.membership is not None:
            self._buffered = ()
            self._ends_reached.clear()
            self.membership.seek_to_committed()
        self.is_rewinding = False

    def _fetch(self, max_records: int, timeout_s: float) -> list[Record]:
        if self.client is None:
            return []
        if self._manual is not None:
            self._manual.look_for_topics()
        records = []
        for message in _available(self.client, max_records, timeout_s):
            error = message.error()
            if error is None:
                if (record := self._accept(message)) is not None:
                    records.append(record)
            else:
                self._accept_error(error, message)
        self._check_silence(bool(records))
        return records

    def _accept(self, message: Message) -> Record | None:
        """Return the record, or None if it is past the end or its partition was revoked."""
        record = from_message(message)
        if self._remaining is None and self.membership is None:
            return record
        partition = TopicPartition(record.topic, record.partition)
        if self.membership is not None and partition not in self.membership.owned:
            return None  # revoked while the record was in flight: the new owner reads it
        if self._remaining is None:
            return record
        end = self._remaining.get(partition)
        if end is None:
            return None
        if record.offset + 1 >= end:
            del self._remaining[partition]
        return record if record.offset < end else None

    def _accept_error(self, error: KafkaError, message: Message) -> None:
        """Note the end of a partition, and ignore errors that pass; raise all others.

        The last offsets before an end may be markers or compacted away, so it counts as read.
        """
        if error.code() == LOCAL_PARTITION_EOF:
            partition = TopicPartition(message.topic() or "", message.partition() or 0)
            self._ends_reached[partition] = message.offset() or 0
            if self._remaining is not None:
                self._remaining.pop(partition, None)
            return
        if error.code() in NO_ANSWER or error.retriable():
            return
        topic = message.topic() or ""
        raise translate(error, doing=f"consume {topic or 'records'}", subject=topic)

    def _check_silence(self, received: bool) -> None:
        """Raise if no broker can be reached and the stream reads to the end.

        A stream that follows waits until a broker comes back.
        """
        now_s = time.monotonic()
        if received:
            self._last_record_s = now_s
        elif self._remaining and now_s - self._last_record_s > self._connection.timeout_s:
            self._connection.check_reachable()
            self._last_record_s = now_s

    def _decode_all(self, records: list[Record]) -> list[Record]:
        """Decode up to the first record that cannot be decoded; raise if that is the first."""
        decoded: list[Record] = []
        for at, record in enumerate(records):
            try:
                decoded.append(self._decode(record))
            except Exception as error:  # any kind: users bring their own serdes
                self.polled, later = records[:at], self._buffered
                if decoded:
                    self._buffered = [*records[at:], *later]
                    break
                self._buffered = [*records[1:], *later]
                raise UndecodableRecord(record, error) from error
        return decoded

    def _decode(self, record: Record) -> Record:
        key, value = record.key, record.value
        if self._decode_key is not None and key is not None:
            key = self._decode_key(key)
        if self._decode_value is not None and value is not None:
            value = self._decode_value(value)
        return record._replace(key=key, value=value)


def _available(client: KafkaConsumer, limit: int, timeout_s: float) -> list[Message]:
    """Return what has arrived, waiting for the first message only.

    ``consume`` alone would wait for the whole timeout if fewer than ``limit`` arrive.
    """
    first = interruptible(client.poll, timeout_s)
    if first is None:
        return []
    return [first, *interruptible(client.consume, limit - 1, 0)] if limit > 1 else [first]
