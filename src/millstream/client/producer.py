"""``Producer``: send records and know that they arrived. ``produce``: a list of values in one call.

Idempotent and acks=all unless told otherwise: nothing is lost or doubled while the process lives. ``send`` only queues;
``flush`` (and the end of a ``with`` block) waits and raises DeliveryFailed if any record was refused. With a
``transactional_id`` records are sent in transactions: ``client/producing/transaction.py``. ``delivery`` says in one word how often
records may arrive: ``client/delivery.py``.
"""

from __future__ import annotations

import operator
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from millstream.client.admin.client import Admin
from millstream.client.auto_creation import CreationWait, creates_topics
from millstream.client.connection import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Connection,
    bootstrap_text,
)
from millstream.client.delivery import DeliveryName, Guarantee, for_producer
from millstream.client.errors import (
    DROPPED,
    LOCAL_STATE,
    LOCAL_UNKNOWN_PARTITION,
    ClientError,
    DeliveryFailed,
    NotInTime,
    UnknownPartition,
    WrongType,
    translate,
    unknown_topic,
)
from millstream.client.interceptors import Outgoing, ProducerChain, ProducerInterceptor
from millstream.client.library import (
    KafkaError,
    KafkaException,
    KafkaProducer,
    Message,
    cluster_metadata,
    interruptible,
    make,
)
from millstream.client.producing.late_records import find_cause
from millstream.client.producing.partitioners import (
    BY_KEY,
    Partitioner,
    PartitionerName,
    checked_partition,
    find_partitioner,
)
from millstream.client.producing.transaction import FENCED, ProducerTransaction, call, told
from millstream.client.serdes import SerdeLike, encoder
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition
from millstream.core.words import counted

if TYPE_CHECKING:
    from millstream.client.consumer import Consumer

Payload = bytes | str | None
HeadersIn = Mapping[str, Payload] | Sequence[tuple[str, Payload]]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
ANY_PARTITION = -1
MAX_RECORD_BYTES = 100 << 20  # the limit of the topic (max.message.bytes) decides, not that of the client
DELIVERY_TIMEOUT_MS = 120_000
MAX_TIMESTAMP_MS = (1 << 63) - 1
PLAIN = (bytes, str)  # what the library sends as it is
FULL_QUEUE_WAIT_S = 0.1
FLUSH_SLICE_S = 0.25
_POLL_MASK = 1023  # every so many records, what became of earlier ones is heard
KNOWN_FOR_S = 60.0  # then it is asked again how many partitions a topic has


class Delivery(NamedTuple):
    """What became of one record: where it is, or why it is nowhere. Its offset is -1 where nobody told: a leader went before it answered, and it is
    written because the batch behind it is."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    error: ClientError | None


class Producer:
    """Sends records. ``on_delivery`` is called from ``send`` and ``flush`` for every record; without it only failures are counted.

    ``key`` and ``value`` say what keys and values are (``serdes.py``; without, bytes and texts), ``partitioner`` where records go that
    do not say (``partitioners.py``). A producer that is to ``acknowledge`` also calls the ``on_delivery`` of single records.
    """

    def __init__(
        self,
        bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
        *,
        key: SerdeLike = None,
        value: SerdeLike = None,
        partitioner: PartitionerName | Partitioner = "key",
        interceptors: Sequence[ProducerInterceptor] = (),
        delivery: DeliveryName | None = None,
        compression: Compression = "none",
        acks: Literal["all", 0, 1] | None = None,
        idempotent: bool | None = None,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        linger_ms: float = 5,
        delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        on_delivery: Callable[[Delivery], None] | None = None,
        acknowledge: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.connection = Connection(bootstrap_text(bootstrap), timeout_s, options or {})
        self.sent = 0
        self.failed = 0
        self._first_failure: ClientError | None = None
        self._on_delivery = on_delivery
        self._known: dict[str, tuple[int, float]] = {}  # how many partitions, and until when that counts
        self._encode_key, self._encode_value = encoder(key), encoder(value)
        self._partitioner = find_partitioner(partitioner)
        self._chain = ProducerChain(interceptors) if interceptors else None
        # Topics that exist and whose records need nothing done to them.
        self._plain_topics: set[str] = set()
        self._plain = not (self._chain or self._encode_key or self._encode_value or self._partitioner)
        self._acknowledges = acknowledge or on_delivery is not None or self._chain is not None
        self.guarantee: Guarantee | None = None
        if delivery is not None:
            self.guarantee = for_producer(
                delivery, transactional_id, acks=acks, idempotent=idempotent, options=options
            )
        acks = "all" if acks is None else acks
        self.connection.check_reachable()
        self.transactional_id = transactional_id
        transactional: dict[str, Any] = (
            {}
            if transactional_id is None
            else {"transactional.id": transactional_id, "transaction.timeout.ms": transaction_timeout_ms}
        )
        self._initialized = False
        # Whose offsets its transactions commit, and when one of these was last aborted.
        self.consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()
        self.aborted_s = -1.0
        self._client = make(
            KafkaProducer,
            self.connection.config(
                transactional
                | {
                    "compression.type": compression,
                    "acks": acks,
                    "enable.idempotence": (acks == "all") if idempotent is None else idempotent,
                    "linger.ms": linger_ms,
                    "partitioner": BY_KEY,
                    "message.max.bytes": MAX_RECORD_BYTES,
                    # librdkafka refuses to try for longer than a transaction may last.
                    "message.timeout.ms": min(delivery_timeout_ms, transaction_timeout_ms)
                    if transactional
                    else delivery_timeout_ms,
                    "delivery.report.only.error": not self._acknowledges,
                    "on_delivery": self._delivered,
                }
                | dict(self.guarantee.settings if self.guarantee else {})
            ),
        )
        self._produce = self._client.produce

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: HeadersIn | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> None:
        """Queue one record. Without a partition the key decides (murmur2, as in Kafka), without a key it spreads."""
        # The usual record, of which a program sends millions: nothing to look at, nothing to call but the library. (Arguments that
        # may only be given by name would cost a tenth of the rate; their order is kafka-python's.)
        if (
            topic in self._plain_topics
            and partition is None
            and headers is None
            and timestamp_ms is None
            and on_delivery is None
        ):
            try:
                self._produce(topic, value, key)
            except (BufferError, KafkaException, TypeError):
                self._queue(topic, value, key, ANY_PARTITION, {})
            self.sent = sent = self.sent + 1
            if not sent & _POLL_MASK:
                self.poll()
            return
        more: dict[str, Any] = {}
        if self._chain is not None:
            outgoing = Outgoing(topic, value, key, tuple(_headers(headers or ())), partition, timestamp_ms)
            topic, value, key, headers, partition, timestamp_ms = self._chain.on_send(outgoing)
        if topic not in self._known:
            self.find_topic(topic)
        if self._encode_key is not None and key is not None:
            key = _encoded(self._encode_key, key, "key", topic)
        if self._encode_value is not None and value is not None:
            value = _encoded(self._encode_value, value, "value", topic)
        if self._partitioner is not None and partition is None:
            partition = self._partition(topic, key, value)
        if headers:
            more["headers"] = _headers(headers)
        if timestamp_ms is not None:
            more["timestamp"] = _checked_timestamp(timestamp_ms, topic)
        if on_delivery is not None:
            more["on_delivery"] = self._telling(on_delivery)
        self._queue(topic, value, key, ANY_PARTITION if partition is None else partition, more)
        self.sent += 1
        if not self.sent & _POLL_MASK:
            self.poll()

    def _queue(self, topic: str, value: Payload, key: Payload, partition: int, more: dict[str, Any]) -> None:
        while True:
            try:
                self._client.produce(topic, value, key, partition, **more)
                return
            except OverflowError:  # the library's numbers of partitions have 32 bits
                raise _no_partition(topic, partition) from None
            except BufferError:
                self.poll(FULL_QUEUE_WAIT_S)
            except KafkaException as error:
                raise self._refused_at_once(error.args[0], topic, partition) from None
            except TypeError as error:
                raise _wrong_type(error, topic, key, value, more.get("headers")) from None

    def _refused_at_once(self, error: KafkaError, topic: str, partition: int) -> ClientError:
        if error.code() == LOCAL_STATE and self.transactional_id is not None:
            return ClientError(
                f"cannot produce to {topic!r}: the producer has the transactional id {self.transactional_id!r}, "
                "and no transaction is open",
                hint="send inside `with producer.transaction():`, or make a producer without transactional_id",
            )
        if error.code() in FENCED:
            return told(error, f"produce to {topic!r}", self.transactional_id)
        return _explain(error, topic, partition)

    def _telling(
        self, on_delivery: Callable[[Delivery], None]
    ) -> Callable[[KafkaError | None, Message], None]:
        """What the library calls for a record with a callback of its own, instead of ``_delivered``."""
        if not self._acknowledges:
            raise ClientError(
                "this producer hears of failures only",
                hint="make it with acknowledge=True to give records an on_delivery",
            )

        def tell(error: KafkaError | None, message: Message) -> None:
            self._delivered(error, message, on_delivery)

        return tell

    def may_ask(self, topic: str) -> bool:
        """Whether sending to this topic may first ask the cluster, which takes a while. Interceptors may turn to any topic."""
        return self._chain is not None or topic not in self._known or self._is_stale(topic)

    def _is_stale(self, topic: str) -> bool:
        """Only a partitioner has to know how many partitions there are now."""
        return self._partitioner is not None and time.monotonic() > self._known[topic][1]

    def _partition(self, topic: str, key: Payload, value: Payload) -> int:
        if self._is_stale(topic):
            self.find_topic(topic)
        assert self._partitioner is not None
        count = self._known[topic][0]
        found = self._partitioner(topic, _bytes(key), _bytes(value), count)
        return checked_partition(found, topic, count)

    def metrics(self) -> dict[str, float]:
        """How many records were given to it, wait for delivery, and were refused since the last flush."""
        return {"records_sent_total": self.sent, "records_queued": self.queued, "records_failed": self.failed}

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every queued record is delivered; DeliveryFailed if some were not (since the last flush)."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while left := self._flush(FLUSH_SLICE_S):  # in slices, so that Ctrl-C is heard
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise DeliveryFailed(
                    f"{counted(left, 'record is', 'records are')} not delivered after {timeout_s:.1f} s",
                    failed=left,
                )
        self._raise_failures()

    def _flush(self, timeout_s: float) -> int:
        try:
            return interruptible(self._client.flush, timeout_s)
        except KafkaException as error:  # a producer that cannot go on at all
            raise told(error, "deliver what is queued", self.transactional_id) from None

    def poll(self, timeout_s: float = 0.0) -> None:
        """Report deliveries, waiting at most so long for the first; for programs that send rarely.

        The library raises a fatal error, such as fencing, in whichever call hears of it first.
        """
        try:
            interruptible(self._client.poll, timeout_s)
        except KafkaException as error:
            raise told(error, "deliver what is queued", self.transactional_id) from None

    def abandon(self) -> None:
        """Drop what is not delivered yet, as a process does that is told to stop at once."""
        self._client.purge()
        try:
            interruptible(self._client.flush, 0)
        except KafkaException:
            pass  # it cannot go on anyway, and what it could not deliver is dropped

    def settle(self, timeout_s: float) -> None:
        """Wait, at most so long, until nothing is on its way any more, whatever became of it."""
        deadline_s = time.monotonic() + timeout_s
        try:
            while interruptible(self._client.flush, FLUSH_SLICE_S) and time.monotonic() < deadline_s:
                pass
        except KafkaException:
            pass  # it cannot go on, which the next step of the transaction tells

    def forget_failures(self) -> None:
        """What failed so far belonged to a transaction that is aborted: no flush tells of it any more."""
        self.poll()
        self._first_failure, self.failed = None, 0

    def transaction(self, consumer: Consumer | None = None) -> ProducerTransaction:
        """A ``with`` block whose records, and offsets, are all committed at its end, or, if it raises, none.

        The ``consumer`` whose records it handles gets them again when it is aborted; one that was given to ``commit_offsets`` of
        this producer before is known already.
        """
        if self.transactional_id is None:
            raise ClientError(
                "a producer without a transactional id has no transactions",
                hint="give it a transactional_id that stays the same when the process restarts",
            )
        return ProducerTransaction(self, consumer)

    def prepare_transactions(self, doing: str = "prepare") -> None:
        """Fence producers with the same transactional id, and wait for the end of what they left open; the first transaction does it too."""
        if not self._initialized:
            doing, timeout_s = (
                f"{doing} a transaction of {self.transactional_id!r}",
                self.connection.timeout_s,
            )
            call(
                self._client.init_transactions,
                (timeout_s,),
                doing=doing,
                timeout_s=timeout_s,
                transactional_id=self.transactional_id,
            )
            self._initialized = True

    def transact(self, doing: str, step: str, *arguments: Any) -> None:
        """One step of a transaction."""
        self.prepare_transactions(doing)
        doing = f"{doing} a transaction of {self.transactional_id!r}"
        call(
            getattr(self._client, step),
            arguments,
            doing=doing,
            timeout_s=self.connection.timeout_s,
            transactional_id=self.transactional_id,
        )

    @property
    def queued(self) -> int:
        """How many records wait for delivery."""
        return len(self._client)

    def close(self) -> None:
        self.flush()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon() if error is not None else self.close()

    def _delivered(
        self, error: KafkaError | None, message: Message, tell: Callable[[Delivery], None] | None = None
    ) -> None:
        failure = None
        if error is not None:
            failure = self._undelivered(error, message)
            if error.code() not in DROPPED:  # dropped because we were told to: nothing went wrong
                self._count_failure(failure, tell is not None)
        if self._acknowledges:
            delivery = _delivery(message, failure)
            if self._chain is not None:
                self._chain.on_acknowledgement(delivery)
            for told in (self._on_delivery, tell):
                if told is not None:
                    told(delivery)

    def _undelivered(self, error: KafkaError, message: Message) -> ClientError:
        topic = message.topic() or ""
        if error.code() in FENCED:
            return told(error, f"produce to {topic!r}", self.transactional_id)
        return _explain(error, topic, message.partition())

    def _count_failure(self, failure: ClientError, told: bool) -> None:
        """For the next flush; ``told`` when the record has a callback of its own, which hears of it too."""
        self.failed += 1
        self._first_failure = self._first_failure or failure

    def _raise_failures(self) -> None:
        if self._first_failure is None:
            return
        first, self._first_failure = self._first_failure, None
        failed, self.failed = self.failed, 0
        raise DeliveryFailed.of(self._with_cause(first), failed)

    def _with_cause(self, failure: ClientError) -> ClientError:
        """What the cluster says of a partition that did not take a record in time."""
        if not isinstance(failure, NotInTime) or failure.partition is None:
            return failure
        cause = find_cause(self.connection, failure.partition)
        if cause is None:
            return failure
        return ClientError(f"{failure.message}: {cause.what}", hint=cause.hint)

    def find_topic(self, topic: str) -> None:
        """Learn of a missing topic now, not after the delivery timeout; the first record for a topic does it.

        Asking is also what makes a broker with auto.create.topics.enable create it. The broker answers that the topic is
        unknown until it exists, so the question is repeated; a topic without a leader is waited for longer.
        """
        started_s = time.monotonic()
        creation = CreationWait(self._creates_topics)
        while (error := self._ask(topic)) is not None:
            if error.code() == ErrorCode.LEADER_NOT_AVAILABLE:
                is_over = time.monotonic() - started_s > self.connection.timeout_s
            else:
                is_over = error.code() != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or creation.is_over()
            if is_over:
                raise self._refusal(error, topic)
            time.sleep(0.05)

    def _creates_topics(self) -> bool:
        with Admin.over(self.connection) as admin:
            return creates_topics(admin.protocol)

    def _ask(self, topic: str) -> KafkaError | None:
        """Learn how many partitions a topic has, or what is wrong with it."""
        doing = f"produce to {topic!r}"
        with Admin.over(self.connection) as admin:
            found = cluster_metadata(
                self._client,
                topic,
                admin.patience,
                lambda error: admin.explain(error, doing=doing, subject=topic),
                doing,
            ).topics[topic]
        failure: KafkaError | None = found.error
        if failure is None:
            self._known[topic] = len(found.partitions), time.monotonic() + KNOWN_FOR_S
            if self._plain:
                self._plain_topics.add(topic)
        return failure

    def _refusal(self, error: KafkaError, topic: str) -> ClientError:
        if error.code() != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return _explain(error, topic, None)
        with Admin.over(self.connection) as admin:
            return unknown_topic(topic, admin.topics.names())


def _no_partition(topic: str, partition: int | None) -> UnknownPartition:
    hint = f"see `millstream topics describe {topic}`"
    return UnknownPartition(f"topic {topic!r} has no partition {partition}", hint=hint)


def _explain(error: KafkaError, topic: str, partition: int | None) -> ClientError:
    if error.code() == LOCAL_UNKNOWN_PARTITION:
        return _no_partition(topic, partition)
    failure = translate(error, doing=f"produce to {topic!r}", subject=topic)
    if isinstance(failure, NotInTime) and partition is not None and partition >= 0:
        failure.partition = TopicPartition(topic, partition)
    return failure


def _wrong_type(
    error: TypeError, topic: str, key: Any, value: Any, headers: Sequence[tuple[str, Any]] | None
) -> WrongType:
    """The library says only that it wants bytes, and not of what."""
    for what, part in (("key", key), ("value", value)):
        if part is not None and not isinstance(part, PLAIN):
            name = "int" if isinstance(part, int) and not isinstance(part, bool) else "json"
            serde = f'make the producer with {what}="{name}", or with another serde'
            return WrongType(
                f"cannot send the {what} {_shown(part)} to {topic!r}: it is of type {type(part).__name__}, not bytes or str",
                hint="convert it with bytes()" if isinstance(part, bytearray | memoryview) else serde,
            )
    for name, part in headers or ():
        if part is not None and not isinstance(part, PLAIN):
            return WrongType(
                f"cannot send the header {name!r} with {_shown(part)} to {topic!r}: "
                f"it is of type {type(part).__name__}, not bytes or str",
                hint="encode it first, for example with str()",
            )
    return WrongType(f"cannot send a record to {topic!r}: {error}")


def _checked_timestamp(timestamp_ms: int, topic: str) -> int:
    """A timestamp that a record can hold; the library says only that an integer is too large."""
    try:
        timestamp_ms = operator.index(timestamp_ms)  # also of an int of numpy
    except TypeError:
        raise WrongType(
            f"cannot produce to {topic!r}: the timestamp {timestamp_ms!r} is not a whole number",
            hint="give milliseconds since 1970, for example int(time.time() * 1000)",
        ) from None
    if not -MAX_TIMESTAMP_MS <= timestamp_ms <= MAX_TIMESTAMP_MS:
        raise ClientError(
            f"cannot produce to {topic!r}: the timestamp {timestamp_ms} is out of range",
            hint="give milliseconds since 1970, for example int(time.time() * 1000)",
        )
    return timestamp_ms


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def produce(
    bootstrap: Bootstrap, topic: str, values: Iterable[Payload | tuple[Payload, Payload]], **options: Any
) -> int:
    """Send values, or (key, value) pairs, and wait until all are delivered; how many."""
    with Producer(bootstrap, **options) as producer:
        for one in values:
            key, value = one if isinstance(one, tuple) else (None, one)
            producer.send(topic, value, key=key)
    return producer.sent


def _encoded(encode: Callable[[Any], bytes], value: Any, what: str, topic: str) -> bytes:
    try:
        return encode(value)
    except Exception as error:  # of whatever kind: a serde may be anybody's
        raise ClientError(f"cannot serialise the {what} of a record for {topic!r}: {error}") from error


def _bytes(data: Payload) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def _headers(headers: HeadersIn) -> list[tuple[str, Payload]]:
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise WrongType(
                f"{_shown(pair)} is not a header",
                hint='give headers as {"name": b"value"} or [("name", b"value")]',
            )
    return [(name, value) for name, value in pairs]


def _delivery(message: Message, error: ClientError | None) -> Delivery:
    offset = message.offset()
    return Delivery(
        message.topic() or "",
        -1 if message.partition() is None else message.partition(),  # type: ignore[arg-type]
        -1 if offset is None else offset,
        message.key(),
        message.value(),
        error,
    )
