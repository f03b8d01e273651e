"""``Consumer`` reads topics from a position, up to their end or continuously.

``consume`` returns a list of records in one call.

Without a group the consumer assigns the partitions to itself: no coordinator, no commits.

    for record in Consumer("localhost:9092", "orders", start="-1h", until_end=True):
        ...

The members of a group share the partitions, and continue where the group has committed:

    for batch in Consumer("localhost:9092", "orders", group="billing").batches():
        handle(batch)  # committed when the block ends without an exception

    # ordered by key
    Consumer("localhost:9092", "orders", group="billing").run(handle_one, workers=16)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, get_args

from millstream.client.admin.client import Admin
from millstream.client.admin.offsets import Isolation
from millstream.client.connection import DEFAULT_TIMEOUT_S, Bootstrap, Connection, bootstrap_text
from millstream.client.consuming.manual_assignment import ManualAssignment
from millstream.client.consuming.membership import Membership, default_group
from millstream.client.consuming.positions import Position
from millstream.client.consuming.record_stream import POLL_S, RecordStream
from millstream.client.consuming.topic_pattern import is_pattern
from millstream.client.delivery import DeliveryName, Guarantee, for_consumer
from millstream.client.errors import ClientError, TooFewRecords
from millstream.client.interceptors import ConsumerChain, ConsumerInterceptor
from millstream.client.library import KafkaTopicPartition
from millstream.client.record import Record
from millstream.client.serdes import SerdeLike, decoder
from millstream.core.types import TopicPartition

if TYPE_CHECKING:
    from millstream.client.consuming.worker_pool import WorkerPool

BATCH_RECORDS = 500


class Consumer:
    """Reads partitions. Iterate over it for records, or call ``batches`` or ``poll``.

    With ``until_end`` it ends when every partition has been read up to the end it had when the
    consumer was created, or was assigned the partition. A topic that begins with ^ is a pattern
    (``topic_pattern.py``); a consumer that follows also reads topics that appear later.

    In a group (``group``, or ``subscribe`` for a group named after the user), ``start`` applies
    only to partitions without a committed offset. ``batches`` and iteration commit after each batch
    that was handled, unless ``auto_commit`` is off. After ``poll`` the caller commits with
    ``commit``. ``delivery`` chooses the same with one word (``delivery.py``).

    ``key`` and ``value`` choose how keys and values are decoded (``serdes.py``); the default is
    bytes. ``stream`` and ``membership`` are for the other classes of this package.
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
        self.commits_first = delivery == "at-most-once"
        decode_key, decode_value = decoder(key), decoder(value)
        chain = ConsumerChain(interceptors) if interceptors else None
        remaining: dict[TopicPartition, int] | None = {} if until_end else None
        self._pool: WorkerPool | None = None
        self._stop_requested = False
        self.membership: Membership | None = None
        if subscribe:
            group = group or default_group()
        if delivery is not None:
            self.guarantee = for_consumer(
                delivery, group, auto_commit=auto_commit, isolation=isolation, options=options
            )
        only = None if partitions is None else [*partitions]
        source: Membership | ManualAssignment
        if group:
            _check_joinable(self.connection, names, only)
            self.membership = source = Membership(
                self.connection,
                group,
                names,
                start=Position.of(start),
                remaining=remaining,
                isolation=isolation,
                on_committed=chain.on_commit if chain is not None else lambda offsets: None,
            )
        else:
            source = ManualAssignment(
                self.connection,
                names,
                only=only,
                start=Position.of(start),
                remaining=remaining,
                isolation=isolation,
            )
        self._source = source
        self.stream = RecordStream(
            source,
            self.connection,
            remaining=remaining,
            decode_key=decode_key,
            decode_value=decode_value,
            chain=chain,
        )

    @property
    def start(self) -> dict[TopicPartition, int]:
        """The offsets at which a consumer without a group began; empty for members of a group."""
        return self._source.started if self.membership is None else {}

    @property
    def finished(self) -> bool:
        """Whether everything up to the ends has been read; never, if the consumer follows."""
        return self.stream.finished

    def _check_open(self) -> None:
        if self.stream.client is None:
            raise ClientError("the consumer is closed", hint="create another consumer")

    def poll(self, max_records: int = 500, timeout_s: float = POLL_S) -> list[Record]:
        """Return at most ``max_records``, waiting at most ``timeout_s`` for the first.

        The list is empty if none arrived in time.
        """
        self._check_open()
        records = self.stream.poll(max_records, timeout_s)
        self.stream.mark_handed_out(self.stream.polled)
        self.stream.mark_ends()
        return records

    def commit(self, *, wait: bool = True) -> None:
        """Commit everything handed out so far for the group.

        Without ``wait``, a later call raises the error of a commit that failed.
        """
        if self.membership is None:
            raise ClientError("a consumer without a group cannot commit", hint="give it a group")
        self._check_open()
        self.membership.commit(wait=wait)

    def rewind(self) -> None:
        """Return records that were handed out and not committed again, with the next poll.

        The next poll continues at the committed offsets, or, without one, where this consumer
        started. A producer's transaction rewinds its consumers too when it is aborted.
        """
        if self.membership is None:
            raise ClientError(
                "a consumer without a group has no committed offset to go back to",
                hint="give it a group, or create another consumer with a start",
            )
        self.membership.discard_uncommitted()
        self.stream.rewind_later()

    def batches(self, max_records: int = 500) -> Iterator[list[Record]]:
        """Yield lists of records as they arrive, until finished.

        In a group, a list is committed when the next one is requested.
        """
        self._check_open()
        stream = self.stream
        while not stream.finished:
            records = stream.poll(max_records)
            stream.mark_handed_out(stream.polled)
            if self.commits_first and self.auto_commit:
                stream.commit_handled()
            if records:
                yield records
            if not self.commits_first and self.auto_commit:
                stream.commit_handled()

    def __iter__(self) -> Iterator[Record]:
        """Yield records as they arrive, until finished.

        In a group they are committed in batches, after the last record of each.
        """
        self._check_open()
        stream = self.stream
        if self.commits_first:
            for batch in self.batches():
                yield from self._hand_out(batch, stream.polled)
            return
        while not stream.finished:
            records = stream.poll(BATCH_RECORDS)
            yield from self._hand_out(records, stream.polled)
            if self.auto_commit:
                stream.commit_handled()

    def _hand_out(self, records: list[Record], polled: Sequence[Record]) -> Iterator[Record]:
        """Yield one record after the other; put back the rest if the caller's loop ends early."""
        stream = self.stream
        taken = 0
        try:
            for record in records:
                stream.mark_handed_out((record,))
                taken += 1
                yield record
                if stream.is_rewinding:
                    return
        finally:
            if taken < len(records) and not stream.is_rewinding:
                stream.put_back(records[taken], polled)
        stream.mark_handed_out(polled)

    def run(self, handle: Callable[[Record], object], *, workers: int = 8, **options: Any) -> None:
        """Call ``handle`` with every record on ``workers`` threads, until ``stop`` or the end.

        Records of one key are handled in order. In a group, handled records are committed; see
        ``client/consuming/worker_pool.py``.
        """
        from millstream.client.consuming.worker_pool import WorkerPool

        self._check_open()
        self._pool = WorkerPool(self, handle, workers=workers, **options)
        if self._stop_requested:
            self._pool.stop()
        try:
            self._pool.run()
        finally:
            self._pool, self._stop_requested = None, False

    def stop(self) -> None:
        """Make ``run`` finish and commit the records in progress, and return.

        Call it from any thread or a signal handler. A ``run`` that starts later returns at once.
        """
        self._stop_requested = True
        if (pool := self._pool) is not None:
            pool.stop()

    def metrics(self) -> dict[str, float]:
        """Return the records read, and the distances to the ends of the partitions.

        As in the Java client: ``records_lag_max`` is the largest distance to the newest record,
        ``records_lead_min`` the smallest to the oldest. A lead near 0 means that retention is about
        to delete records that were not read.
        """
        lags, leads = [], []
        positions = self.positions()
        with Admin.over(self.connection) as admin:
            first = admin.offsets.list(
                dict.fromkeys(positions, "earliest"), isolation=self.isolation
            )
            end = admin.offsets.list(dict.fromkeys(positions, "latest"), isolation=self.isolation)
        for partition, position in positions.items():
            lags.append(max(end[partition].offset - position, 0))
            leads.append(max(position - first[partition].offset, 0))
        return {
            "records_consumed_total": self.stream.consumed,
            "assigned_partitions": len(positions),
            "records_lag_max": max(lags, default=0),
            "records_lead_min": min(leads, default=0),
        }

    def positions(self) -> dict[TopicPartition, int]:
        """Return the offset of the next record, by assigned partition."""
        client = self.stream.client
        if client is None:
            return {}
        started = self._source.started
        known = client.position([KafkaTopicPartition(*partition) for partition in started])
        offsets = {
            TopicPartition(position.topic, position.partition): position.offset
            for position in known
        }
        return {
            partition: offsets[partition] if offsets[partition] >= 0 else offset
            for partition, offset in started.items()
        }

    def close(self) -> None:
        self.stream.close()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _check_arguments(topics: Sequence[str], isolation: str) -> None:
    if not topics:
        raise ClientError("no topic to consume", hint="name one or more topics")
    if isolation not in (known := get_args(Isolation)):
        raise ClientError(f"unknown isolation {isolation!r}", hint=f"choose {' or '.join(known)}")


def _check_joinable(
    connection: Connection, topics: Sequence[str], only: Sequence[int] | None
) -> None:
    """Raise ClientError if a member cannot choose its partitions, or if a topic does not exist."""
    if only is not None:
        raise ClientError(
            "the members of a group share its partitions",
            hint="leave out the partitions, or the group",
        )
    with Admin.over(connection) as admin:
        admin.topics.describe(topic for topic in topics if not is_pattern(topic))


def consume(
    bootstrap: Bootstrap,
    topics: str | Iterable[str],
    *,
    n: int | None = None,
    start: str | int | Position = "earliest",
    timeout_s: float = DEFAULT_TIMEOUT_S,
    **options: Any,
) -> list[Record]:
    """Return the records up to the current end; with ``n``, wait for exactly ``n`` records."""
    records: list[Record] = []
    with Consumer(
        bootstrap, topics, start=start, until_end=n is None, timeout_s=timeout_s, **options
    ) as consumer:
        deadline_s = time.monotonic() + timeout_s
        while not consumer.finished and (n is None or len(records) < n):
            batch = consumer.poll(
                BATCH_RECORDS if n is None else min(BATCH_RECORDS, n - len(records))
            )
            records += batch
            if batch:
                deadline_s = time.monotonic() + timeout_s
            elif time.monotonic() > deadline_s:
                goal = "the end of the topic" if n is None else f"{n} records"
                raise TooFewRecords(
                    f"waited {timeout_s:.0f} s for {goal} and got {len(records)}",
                    hint="wait longer (timeout_s), or request fewer",
                )
    return records
