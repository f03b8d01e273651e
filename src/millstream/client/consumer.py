"""``Consumer``: read topics from a position, to the present end or for ever. ``consume``: a list of records in one call.

Without a group the partitions are assigned by hand: no coordinator, nothing is committed.

    for record in Consumer("localhost:9092", "orders", start="-1h", until_end=True):
        ...

With one they are shared among its members, and reading goes on where the group has committed:

    for batch in Consumer("localhost:9092", "orders", group="billing").batches():
        handle(batch)  # committed when the block ends well

    Consumer("localhost:9092", "orders", group="billing").run(handle_one, workers=16)  # ordered by key
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, get_args

from millstream.client.admin.client import Admin
from millstream.client.admin.offsets import Isolation
from millstream.client.connection import (
    DEFAULT_TIMEOUT_S,
    QUICK_READER,
    Bootstrap,
    Connection,
    bootstrap_text,
)
from millstream.client.consuming.membership import Membership, default_group
from millstream.client.consuming.positions import Position
from millstream.client.consuming.topic_pattern import TopicSelection, is_pattern
from millstream.client.delivery import DeliveryName, Guarantee, for_consumer
from millstream.client.errors import (
    LOCAL_PARTITION_EOF,
    NO_ANSWER,
    ClientError,
    TooFewRecords,
    UndecodableRecord,
    translate,
)
from millstream.client.interceptors import ConsumerChain, ConsumerInterceptor
from millstream.client.library import (
    KafkaConsumer,
    KafkaError,
    KafkaException,
    KafkaTopicPartition,
    Message,
    cluster_metadata,
    interruptible,
    make,
)
from millstream.client.record import Record, from_message
from millstream.client.serdes import SerdeLike, decoder
from millstream.core.types import TopicPartition

if TYPE_CHECKING:
    from millstream.client.consuming.worker_pool import WorkerPool

POLL_S = 0.2
# How often a consumer without a group looks for new topics and partitions that its pattern matches.
LOOK_FOR_TOPICS_S = 10.0
LOOK_TIMEOUT_S = 5.0


class Consumer:
    """Reads partitions. Iterate over it for records, or call ``batches`` or ``poll``.

    With ``until_end`` it ends when every partition has been read to where it ended when the consumer was made, or got it.
    A topic that begins with ^ is a pattern (``topic_pattern.py``); a consumer that follows also reads topics that appear later.
    In a group (``group``, or ``subscribe`` for a group named after the user) ``start`` counts only where the group has committed nothing. ``batches`` and iteration commit after each batch
    that was handled, unless ``auto_commit`` is off; after ``poll`` the caller does it with ``commit``. ``delivery`` says the same in one
    word (``delivery.py``). ``key`` and ``value`` say what keys and values are (``serdes.py``); without, they are bytes.
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        topics: str | Iterable[str],
        *,
        group: str | None = None,
        subscribe: bool = False,
        auto_commit: bool | None = None,
        delivery: DeliveryName | None = None,
        key: SerdeLike = None,
        value: SerdeLike = None,
        interceptors: Sequence[ConsumerInterceptor] = (),
        partitions: Iterable[int] | None = None,
        start: str | int | Position = "earliest",
        until_end: bool = False,
        isolation: Isolation = "read_committed",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        names = [topics] if isinstance(topics, str) else list(topics)
        _check_arguments(names, isolation)
        self.connection = Connection(bootstrap_text(bootstrap), timeout_s, options or {})
        self.isolation: Isolation = isolation
        self.guarantee: Guarantee | None = None
        self.auto_commit = delivery != "exactly-once" if auto_commit is None else auto_commit
        self._commits_first = delivery == "at-most-once"
        self._decode_key, self._decode_value = decoder(key), decoder(value)
        self._chain = ConsumerChain(interceptors) if interceptors else None
        self._polled: Sequence[Record] = ()  # what was taken of the last poll, as it came
        self._behind: Sequence[
            Record
        ] = ()  # what comes before what is fetched next: behind one that cannot be decoded, or left
        self._going_back = False
        self.polled_s = -1.0
        self._consumed = 0
        self._left: dict[TopicPartition, int] | None = {} if until_end else None
        self._reached: dict[TopicPartition, int] = {}
        self._last_s = time.monotonic()
        self._client: KafkaConsumer | None = None
        self._pool: WorkerPool | None = None
        self._stop_asked = False
        self.start: dict[TopicPartition, int] = {}
        self.membership: Membership | None = None
        if subscribe:
            group = group or default_group()
        self._selection = TopicSelection(() if group else names)
        self._only = None if partitions is None else [*partitions]
        self._look_at_s = self._last_s + LOOK_FOR_TOPICS_S
        if delivery is not None:
            self.guarantee = for_consumer(
                delivery, group, auto_commit=auto_commit, isolation=isolation, options=options
            )
        if group:
            self._join(group, names, Position.of(start))
        else:
            self._take_all(names, Position.of(start))

    def _join(self, group: str, names: list[str], start: Position) -> None:
        if self._only is not None:
            raise ClientError(
                "the members of a group share its partitions",
                hint="leave out the partitions, or the group",
            )
        with Admin.over(self.connection) as admin:
            admin.topics.describe(name for name in names if not is_pattern(name))
        self.membership = Membership(
            self.connection,
            group,
            names,
            start=start,
            left=self._left,
            isolation=self.isolation,
            on_committed=self._chain.on_commit if self._chain is not None else lambda offsets: None,
        )
        self._client = self.membership.client

    def _take_all(self, names: list[str], start: Position) -> None:
        with Admin.over(self.connection) as admin:
            if self._selection.has_pattern:
                names = self._selection.topics(admin.topics.names())
            assigned = [one for name in names for one in admin.topics.partitions(name, self._only)]
            self.start = start.resolve(assigned, admin.offsets, self.isolation)
            if self._left is not None:
                ends = admin.offsets.list(dict.fromkeys(assigned, "latest"), isolation=self.isolation)
                self._left |= {one: end.offset for one, end in ends.items() if end.offset > self.start[one]}
        self._client = self._assign(assigned)

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
                    **QUICK_READER,
                }
            ),
        )
        # librdkafka drops the bootstrap connection once it knows the brokers, and without a group coordinator may take a
        # second to open the next; asking for metadata opens it now.
        self._warm_up(client, partitions)
        client.assign([KafkaTopicPartition(*one, self.start[one]) for one in partitions])
        return client

    def _look_for_topics(self, client: KafkaConsumer) -> None:
        """Take over what a pattern matches since the last look, from its beginning. Members of a group hear of it from the group."""
        now_s = time.monotonic()
        if now_s < self._look_at_s or self.membership is not None or self._left is not None:
            return
        if not self._selection.has_pattern:
            self._look_at_s = math.inf
            return
        self._look_at_s = now_s + LOOK_FOR_TOPICS_S
        try:
            known = interruptible(client.list_topics, timeout=LOOK_TIMEOUT_S).topics
        except KafkaException:
            return  # the next look may be answered; reading goes on by itself
        new = [
            partition
            for name in self._selection.appeared(known)
            for number in known[name].partitions
            if (self._only is None or number in self._only)
            and (partition := TopicPartition(name, number)) not in self.start
        ]
        if new:
            try:
                with Admin.over(self.connection) as admin:
                    self.start |= Position("earliest").resolve(new, admin.offsets, self.isolation)
            except ClientError:
                return  # as above: a topic may be deleted again by now
            client.incremental_assign([KafkaTopicPartition(*one, self.start[one]) for one in new])

    def _warm_up(self, client: KafkaConsumer, partitions: Sequence[TopicPartition]) -> None:
        if partitions:
            topic = partitions[0].topic
            doing = f"consume {topic!r}"
            try:
                with Admin.over(self.connection) as admin:
                    cluster_metadata(
                        client,
                        topic,
                        admin.patience,
                        lambda error: admin.explain(error, doing=doing, subject=topic),
                        doing,
                    )
            except ClientError:
                client.close()
                raise

    @property
    def finished(self) -> bool:
        """Whether everything that was to be read has been read; never, when following."""
        if self._client is None:
            return True
        if self.membership is not None and not self.membership.joined:
            return False
        if self._going_back:
            return False
        return self._left is not None and not self._left and not self._behind

    def _check_open(self) -> None:
        if self._client is None:
            raise ClientError("the consumer is closed", hint="make another one")

    def poll(self, max_records: int = 500, timeout_s: float = POLL_S) -> list[Record]:
        """The next records, at most so many, waiting at most so long for the first; none when nothing came."""
        self._check_open()
        records = self._poll(max_records, timeout_s)
        self._note(self._polled)
        self._note_ends()
        return records

    def commit(self, *, wait: bool = True) -> None:
        """Commit, for the group, everything handed out so far. Without waiting, a later call raises what went wrong."""
        if self.membership is None:
            raise ClientError("a consumer without a group cannot commit", hint="give it a group")
        self._check_open()
        self.membership.commit(wait=wait)

    def rewind(self) -> None:
        """What was handed out and is not committed comes again: the next poll goes back to what the group has committed, or, where
        that is nothing, to where this consumer started. A producer's transaction that is aborted asks for it too."""
        if self.membership is None:
            raise ClientError(
                "a consumer without a group has committed nothing that it could go back to",
                hint="give it a group, or make another consumer with a start",
            )
        self.membership.forget_noted()
        self.go_back_later()

    def go_back_later(self) -> None:
        """With the next poll, unless what was handed out is committed by then: a transaction may be tried again with the same records."""
        self._going_back = True

    def _go_back(self) -> None:
        if self.membership is not None:
            self._behind = ()
            self._reached.clear()
            self.membership.go_back()
        self._going_back = False

    def _listen(self, timeout_s: float) -> None:
        """To the group, while no records are wanted; should one come, it is the next that is handed out."""
        self._behind = [*self._behind, *self._fetch(1, timeout_s)]

    def _poll(self, max_records: int, timeout_s: float = POLL_S) -> list[Record]:
        """The next records, decoded and intercepted; ``_polled`` is what they were made of."""
        self.polled_s = time.monotonic()
        if self._going_back:
            self._go_back()
        if self._behind:
            self._polled, self._behind = self._behind[:max_records], self._behind[max_records:]
        else:
            self._polled = () if self.finished else self._fetch(max_records, timeout_s)
        records = [*self._polled]
        if self._decode_key is not None or self._decode_value is not None:
            records = self._decoded(records)
        self._consumed += len(records)
        return records if self._chain is None else self._chain.on_consume(records)

    def _decoded(self, records: list[Record]) -> list[Record]:
        """Of records that can be decoded up to the first that cannot; that one is told when it is the first."""
        decoded: list[Record] = []
        for at, record in enumerate(records):
            try:
                decoded.append(self._decode(record))
            except Exception as error:  # of whatever kind: a serde may be anybody's
                self._polled, later = records[:at], self._behind
                if decoded:
                    self._behind = [*records[at:], *later]
                    break
                self._behind = [*records[1:], *later]
                raise UndecodableRecord(record, error) from error
        return decoded

    def _decode(self, record: Record) -> Record:
        key, value = record.key, record.value
        if self._decode_key is not None and key is not None:
            key = self._decode_key(key)
        if self._decode_value is not None and value is not None:
            value = self._decode_value(value)
        return record._replace(key=key, value=value)

    def _fetch(self, max_records: int, timeout_s: float) -> list[Record]:
        if self._client is None:
            return []
        self._look_for_topics(self._client)
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

    def _note(self, records: Iterable[Record]) -> None:
        if self.membership is not None:
            for record in records:
                self.membership.note(TopicPartition(record.topic, record.partition), record.offset + 1)

    def _note_ends(self, but: Collection[TopicPartition] = ()) -> None:
        """What lies between the last record and the end of a partition is markers, or compacted away: nothing to read."""
        for partition in self._reached.keys() - but:
            end = self._reached.pop(partition)
            if self.membership is not None:
                self.membership.note(partition, end)

    def _batch_is_handled(self) -> None:
        if self.membership is not None and self.auto_commit and not self._going_back:
            self._note_ends()
            self.membership.commit()

    @staticmethod
    def _messages(client: KafkaConsumer, limit: int, timeout_s: float) -> list[Message]:
        """What is there. ``consume`` alone would wait out the timeout whenever fewer than the limit came."""
        first = interruptible(client.poll, timeout_s)
        if first is None:
            return []
        return [first, *interruptible(client.consume, limit - 1, 0)] if limit > 1 else [first]

    def batches(self, max_records: int = 500) -> Iterator[list[Record]]:
        """Lists of records as they come, until finished. In a group a list is committed when the next is asked for."""
        self._check_open()
        while not self.finished:
            records = self._poll(max_records)
            self._note(self._polled)
            if self._commits_first:
                self._batch_is_handled()
            if records:
                yield records
            if not self._commits_first:
                self._batch_is_handled()

    def __iter__(self) -> Iterator[Record]:
        """Records as they come, until finished. In a group they are committed in batches, after the last of each."""
        self._check_open()
        if self._commits_first:
            for batch in self.batches():
                yield from self._hand_out(batch, self._polled)
            return
        while not self.finished:
            records = self._poll(500)
            yield from self._hand_out(records, self._polled)
            self._batch_is_handled()

    def _hand_out(self, records: list[Record], polled: Sequence[Record]) -> Iterator[Record]:
        """One by one. Those that are left, because the caller's loop ended before them, come again."""
        taken = 0
        try:
            for record in records:
                self._note((record,))
                taken += 1
                yield record
                if self._going_back:
                    return
        finally:
            if taken < len(records) and not self._going_back:
                self._put_back(records[taken], polled)
        self._note(polled)

    def _put_back(self, first: Record, polled: Sequence[Record]) -> None:
        place = first[:3]  # topic, partition, offset
        at = next((number for number, one in enumerate(polled) if one[:3] == place), len(polled))
        self._behind = [*polled[at:], *self._behind]

    def run(self, handle: Callable[[Record], object], *, workers: int = 8, **options: Any) -> None:
        """Call ``handle`` with every record, on so many threads, records of one key in their order, until ``stop`` or the end.

        What is handled is committed, in a group: ``client/consuming/worker_pool.py``.
        """
        from millstream.client.consuming.worker_pool import WorkerPool

        self._check_open()
        self._pool = WorkerPool(self, handle, workers=workers, **options)
        if self._stop_asked:
            self._pool.stop()
        try:
            self._pool.run()
        finally:
            self._pool, self._stop_asked = None, False

    def stop(self) -> None:
        """From any thread or a signal handler: ``run`` finishes what it has begun, commits it, and returns; one that has not begun
        returns at once."""
        self._stop_asked = True
        if (pool := self._pool) is not None:
            pool.stop()

    def metrics(self) -> dict[str, float]:
        """How much was read, and how far it is to the ends of its partitions: the most to go, and the least to what is deleted next.

        As of the Java client: a lead near 0 means that retention is about to overtake the reader.
        """
        lags, leads = [], []
        positions = self.positions()
        with Admin.over(self.connection) as admin:
            first = admin.offsets.list(dict.fromkeys(positions, "earliest"), isolation=self.isolation)
            end = admin.offsets.list(dict.fromkeys(positions, "latest"), isolation=self.isolation)
        for one, position in positions.items():
            lags.append(max(end[one].offset - position, 0))
            leads.append(max(position - first[one].offset, 0))
        return {
            "records_consumed_total": self._consumed,
            "assigned_partitions": len(positions),
            "records_lag_max": max(lags, default=0),
            "records_lead_min": min(leads, default=0),
        }

    def positions(self) -> dict[TopicPartition, int]:
        """Of its partitions, the offset of the next record that it hands out."""
        if self._client is None:
            return {}
        start = self.membership.started if self.membership is not None else self.start
        asked = [KafkaTopicPartition(*one) for one in start]
        found = {TopicPartition(one.topic, one.partition): one.offset for one in self._client.position(asked)}
        return {one: found[one] if found[one] >= 0 else begin for one, begin in start.items()}

    def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            if self.membership is not None:
                self.membership.close()
            else:
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
        if self._left is None and self.membership is None:
            return record
        partition = TopicPartition(record.topic, record.partition)
        if self.membership is not None and partition not in self.membership.owned:
            return None  # given up while it was on its way: the new owner reads it
        if self._left is None:
            return record
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
            partition = TopicPartition(message.topic() or "", message.partition() or 0)
            self._reached[partition] = message.offset() or 0
            if self._left is not None:
                self._left.pop(partition, None)
            return
        if error.code() in NO_ANSWER or error.retriable():
            return
        raise translate(error, doing=f"consume {message.topic() or 'records'}", subject=message.topic() or "")


def _check_arguments(topics: Sequence[str], isolation: str) -> None:
    if not topics:
        raise ClientError("there is no topic to consume", hint="name one, or several")
    if isolation not in (known := get_args(Isolation)):
        raise ClientError(f"there is no isolation {isolation!r}", hint=f"there are {' and '.join(known)}")


def consume(
    bootstrap: Bootstrap,
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
