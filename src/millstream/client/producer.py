"""``Producer`` sends records and reports their delivery. ``produce`` sends a list in one call.

The default is idempotent with acks=all: no record is lost or duplicated while the process lives.
``send`` only queues. ``flush``, and the end of a ``with`` block, wait for all records, and raise
DeliveryFailed if any was rejected.

With a ``transactional_id`` records are sent in transactions: ``client/producing/transaction.py``.
``delivery`` chooses the delivery guarantee with one word: ``client/delivery.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from millstream.client.connection import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Connection,
    bootstrap_text,
)
from millstream.client.delivery import DeliveryName, Guarantee, for_producer
from millstream.client.errors import LOCAL_STATE, ClientError, DeliveryFailed
from millstream.client.interceptors import Outgoing, ProducerChain, ProducerInterceptor
from millstream.client.library import KafkaError, KafkaException, KafkaProducer, interruptible, make
from millstream.client.producing.delivery_reports import (
    Delivery,
    DeliveryReports,
    explain_failure,
    no_partition,
)
from millstream.client.producing.partitioners import (
    BY_KEY,
    Partitioner,
    PartitionerName,
    checked_partition,
    find_partitioner,
)
from millstream.client.producing.record_checks import (
    HeadersIn,
    Payload,
    as_bytes,
    checked_headers,
    checked_timestamp,
    encoded,
    wrong_type,
)
from millstream.client.producing.topic_metadata import TopicMetadata
from millstream.client.producing.transaction import (
    FENCED,
    ProducerTransaction,
    TransactionCoordination,
    explain_producer_error,
)
from millstream.client.serdes import SerdeLike, encoder
from millstream.core.words import counted

if TYPE_CHECKING:
    from millstream.client.consumer import Consumer

__all__ = ["DELIVERY_TIMEOUT_MS", "Delivery", "Payload", "Producer", "produce"]

Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
ANY_PARTITION = -1
# The topic's limit (max.message.bytes) decides, and not the client's.
MAX_RECORD_BYTES = 100 << 20
DELIVERY_TIMEOUT_MS = 120_000
FULL_QUEUE_WAIT_S = 0.1
FLUSH_SLICE_S = 0.25
# Delivery reports are served once every 1,024 records.
_POLL_MASK = 1023


class Producer:
    """Sends records.

    ``on_delivery`` is called from ``send`` and ``flush`` for every record; without it only failures
    are counted. With ``acknowledge``, ``send`` also accepts an ``on_delivery`` for one record.

    ``key`` and ``value`` choose how keys and values are encoded (``serdes.py``); the default takes
    bytes and str. ``partitioner`` chooses the partition of records without one
    (``partitioners.py``).
    """

    _reports_type: ClassVar[type[DeliveryReports]] = DeliveryReports

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
        self._encode_key, self._encode_value = encoder(key), encoder(value)
        self._partitioner = find_partitioner(partitioner)
        self._chain = ProducerChain(interceptors) if interceptors else None
        # Topics that exist, if records need no processing: the fast path of ``send``.
        self._fast_topics: set[str] = set()
        self._is_plain = not (
            self._chain or self._encode_key or self._encode_value or self._partitioner
        )
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
            else {
                "transactional.id": transactional_id,
                "transaction.timeout.ms": transaction_timeout_ms,
            }
        )
        self._reports = self._reports_type(
            self.connection,
            transactional_id,
            acknowledges=acknowledge or on_delivery is not None or self._chain is not None,
            on_delivery=on_delivery,
            chain=self._chain,
        )
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
                    # librdkafka rejects a delivery timeout above the transaction timeout.
                    "message.timeout.ms": min(delivery_timeout_ms, transaction_timeout_ms)
                    if transactional
                    else delivery_timeout_ms,
                    "delivery.report.only.error": not self._reports.acknowledges,
                    "on_delivery": self._reports.report,
                }
                | dict(self.guarantee.settings if self.guarantee else {})
            ),
        )
        # A cycle through the library's callback: a producer that the application drops without a
        # flush lives, and delivers, until the garbage collector runs. Otherwise its records would
        # be lost.
        self._reports.owner = self
        self._produce = self._client.produce
        self._topics = TopicMetadata(self._client, self.connection)
        self._partition_counts = self._topics.partition_counts
        self.coordination = TransactionCoordination(self._client, transactional_id, timeout_s)

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
        """Queue one record.

        Without a partition the key decides (murmur2, as in Kafka); records without a key are
        spread over the partitions.
        """
        # The fast path calls nothing but the library. Keyword-only arguments would cost a tenth of
        # the rate; the order of the arguments is that of kafka-python.
        if (
            topic in self._fast_topics
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
            outgoing = Outgoing(
                topic, value, key, tuple(checked_headers(headers or ())), partition, timestamp_ms
            )
            topic, value, key, headers, partition, timestamp_ms = self._chain.on_send(outgoing)
        if topic not in self._partition_counts:
            self.find_topic(topic)
        if self._encode_key is not None and key is not None:
            key = encoded(self._encode_key, key, "key", topic)
        if self._encode_value is not None and value is not None:
            value = encoded(self._encode_value, value, "value", topic)
        if self._partitioner is not None and partition is None:
            partition = self._partition(topic, key, value)
        if headers:
            more["headers"] = checked_headers(headers)
        if timestamp_ms is not None:
            more["timestamp"] = checked_timestamp(timestamp_ms, topic)
        if on_delivery is not None:
            more["on_delivery"] = self._reports.reporter(on_delivery)
        self._queue(topic, value, key, ANY_PARTITION if partition is None else partition, more)
        self.sent += 1
        if not self.sent & _POLL_MASK:
            self.poll()

    def _queue(
        self, topic: str, value: Payload, key: Payload, partition: int, more: dict[str, Any]
    ) -> None:
        while True:
            try:
                self._client.produce(topic, value, key, partition, **more)
                return
            except OverflowError:  # the library's partition numbers have 32 bits
                raise no_partition(topic, partition) from None
            except BufferError:
                self.poll(FULL_QUEUE_WAIT_S)
            except KafkaException as error:
                raise self._explain_rejection(error.args[0], topic, partition) from None
            except TypeError as error:
                raise wrong_type(error, topic, key, value, more.get("headers")) from None

    def _explain_rejection(self, error: KafkaError, topic: str, partition: int) -> ClientError:
        if error.code() == LOCAL_STATE and self.transactional_id is not None:
            return ClientError(
                f"cannot produce to {topic!r}: the producer has the transactional id "
                f"{self.transactional_id!r}, and no transaction is open",
                hint="send inside `with producer.transaction():`, "
                "or create a producer without transactional_id",
            )
        if error.code() in FENCED:
            return explain_producer_error(error, f"produce to {topic!r}", self.transactional_id)
        return explain_failure(error, topic, partition)

    def may_request_metadata(self, topic: str) -> bool:
        """Whether sending to this topic may first request metadata, which takes a while.

        Interceptors may redirect a record to any topic.
        """
        return (
            self._chain is not None or topic not in self._partition_counts or self._is_stale(topic)
        )

    def _is_stale(self, topic: str) -> bool:
        """Only a partitioner needs the current number of partitions."""
        return self._partitioner is not None and self._topics.is_stale(topic)

    def _partition(self, topic: str, key: Payload, value: Payload) -> int:
        if self._is_stale(topic):
            self.find_topic(topic)
        assert self._partitioner is not None
        count = self._partition_counts[topic]
        partition = self._partitioner(topic, as_bytes(key), as_bytes(value), count)
        return checked_partition(partition, topic, count)

    def find_topic(self, topic: str) -> None:
        """Raise ClientError if the topic does not exist and is not created.

        The first record for a topic does this too.
        """
        self._topics.find(topic)
        if self._is_plain:
            self._fast_topics.add(topic)

    @property
    def failed(self) -> int:
        """How many records were rejected since the last flush."""
        return self._reports.failed

    @property
    def queued(self) -> int:
        """How many records wait for delivery."""
        return len(self._client)

    def metrics(self) -> dict[str, float]:
        """Return how many records were sent, are queued, and were rejected since the last flush."""
        return {
            "records_sent_total": self.sent,
            "records_queued": self.queued,
            "records_failed": self.failed,
        }

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every queued record is delivered.

        Raise DeliveryFailed if some were rejected since the last flush, or after ``timeout_s``.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while left := self._flush(FLUSH_SLICE_S):  # in slices, so that Ctrl-C interrupts
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise DeliveryFailed(
                    f"{counted(left, 'record is', 'records are')} not delivered after {timeout_s:.1f} s",
                    failed=left,
                )
        self._reports.raise_failures()

    def _flush(self, timeout_s: float) -> int:
        try:
            return interruptible(self._client.flush, timeout_s)
        except KafkaException as error:  # the producer cannot continue
            raise explain_producer_error(
                error, "deliver queued records", self.transactional_id
            ) from None

    def poll(self, timeout_s: float = 0.0) -> None:
        """Report deliveries, waiting at most ``timeout_s`` for the first.

        Programs that send rarely should call it. The library raises a fatal error, such as fencing,
        in the first call that notices it.
        """
        try:
            interruptible(self._client.poll, timeout_s)
        except KafkaException as error:
            raise explain_producer_error(
                error, "deliver queued records", self.transactional_id
            ) from None

    def abandon(self) -> None:
        """Drop records that are not delivered yet, as in a process that must stop at once."""
        self._client.purge()
        try:
            interruptible(self._client.flush, 0)
        except KafkaException:
            pass  # the producer cannot continue, and its records are dropped anyway

    def settle(self, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` until no record is in flight, delivered or not."""
        deadline_s = time.monotonic() + timeout_s
        try:
            while (
                interruptible(self._client.flush, FLUSH_SLICE_S) and time.monotonic() < deadline_s
            ):
                pass
        except KafkaException:
            pass  # the producer cannot continue; the next step of the transaction reports it

    def discard_failures(self) -> None:
        """Keep failures of an aborted transaction out of the next flush."""
        self.poll()
        self._reports.discard_failures()

    def transaction(self, consumer: Consumer | None = None) -> ProducerTransaction:
        """Return a ``with`` block that commits all its records and offsets, or none if it raises.

        The ``consumer`` of the records rewinds if the transaction is aborted. A consumer that was
        given to ``commit_offsets`` of this producer before is known already.
        """
        if self.transactional_id is None:
            raise ClientError(
                "a producer without a transactional id has no transactions",
                hint="give it a transactional_id that stays the same when the process restarts",
            )
        return ProducerTransaction(self, consumer)

    def prepare_transactions(self) -> None:
        """Fence other producers with this transactional id, and wait for the end of their work.

        The first transaction does this too.
        """
        self.coordination.prepare()

    def close(self) -> None:
        self.flush()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abandon() if error is not None else self.close()


def produce(
    bootstrap: Bootstrap,
    topic: str,
    values: Iterable[Payload | tuple[Payload, Payload]],
    **options: Any,
) -> int:
    """Send values, or (key, value) pairs; return their number when all are delivered."""
    with Producer(bootstrap, **options) as producer:
        for item in values:
            key, value = item if isinstance(item, tuple) else (None, item)
            producer.send(topic, value, key=key)
    return producer.sent
