"""``AsyncProducer`` and ``AsyncConsumer``: the same clients under asyncio.

    async with AsyncProducer("localhost:9092") as producer:
        delivery = await producer.send("orders", b"...")  # returns when it is written

    async for batch in AsyncConsumer("localhost:9092", "orders", group="billing").batches():
        await handle(batch)  # committed when the block ends without an exception

librdkafka blocks its caller. Each client here calls it on a separate thread, so the event loop
never blocks.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from millstream.client.connection import Bootstrap
from millstream.client.consumer import BATCH_RECORDS, Consumer
from millstream.client.consuming.record_stream import RecordStream
from millstream.client.errors import ClientError, DeliveryFailed
from millstream.client.producer import Delivery, Producer
from millstream.client.producing.delivery_reports import DeliveryReports
from millstream.client.producing.transaction import ProducerTransaction
from millstream.client.record import Record

T = TypeVar("T")
POLL_S = 0.1
MAX_WAITING = 10_000


class _Thread:
    """A thread for calls that block."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, name)

    async def call(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: function(*arguments, **named))

    def end(self) -> None:
        self._executor.shutdown(wait=False)


class _Sent(asyncio.Future[Delivery]):
    """The delivery of one record. ``flush`` ignores failures that the sender has retrieved."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_retrieved: Callable[[DeliveryFailed], None]
    ) -> None:
        super().__init__(loop=loop)
        self.retrieved = False
        self._on_retrieved = on_retrieved

    def _retrieve(self) -> None:
        if not self.retrieved:
            self.retrieved = True
            if (
                self.done()
                and not self.cancelled()
                and (failure := super().exception()) is not None
            ):
                assert isinstance(failure, DeliveryFailed)
                self._on_retrieved(failure)

    def __await__(self) -> Generator[Any, None, Delivery]:
        self._retrieve()
        return (yield from super().__await__())

    def result(self) -> Delivery:  # asyncio.gather calls it instead of awaiting
        self._retrieve()
        return super().result()

    def exception(self) -> BaseException | None:
        self._retrieve()
        return super().exception()


class _Failures:
    """Failures that no sender has retrieved, by message: many have the same reason."""

    def __init__(self) -> None:
        self._by_message: dict[str, tuple[int, DeliveryFailed]] = {}

    def add(self, failure: DeliveryFailed) -> None:
        count, first = self._by_message.get(failure.message, (0, failure))
        self._by_message[failure.message] = count + 1, first

    def discount(self, failure: DeliveryFailed) -> None:
        count, first = self._by_message.pop(failure.message, (0, failure))
        if count > 1:
            self._by_message[failure.message] = count - 1, first

    def raise_all(self) -> None:
        failures, self._by_message = self._by_message, {}
        for _count, first in failures.values():
            raise DeliveryFailed.of(first, failed=sum(count for count, _first in failures.values()))


class _AwaitedReports(DeliveryReports):
    """Leaves failures to the senders that await them. In a transaction every failure counts."""

    def count_failure(self, failure: ClientError, *, has_callback: bool) -> None:
        if not has_callback or self.transactional_id is not None:
            super().count_failure(failure, has_callback=has_callback)


class _AwaitedProducer(Producer):
    _reports_type = _AwaitedReports


class AsyncProducer:
    """Takes the arguments of Producer. It connects at its block, or at the first ``send``."""

    def __init__(
        self,
        bootstrap: Bootstrap = "localhost:9092",
        *,
        max_waiting: int = MAX_WAITING,
        **options: Any,
    ) -> None:
        """At most ``max_waiting`` records wait for delivery; further calls of ``send`` wait."""
        if not options.setdefault("acknowledge", True):
            raise ClientError(
                "an AsyncProducer needs the acknowledgement of every record",
                hint="leave out acknowledge=False, or use Producer",
            )
        self._make = lambda: _AwaitedProducer(bootstrap, **options)
        self._thread = _Thread("async-producer")
        self._producer: Producer | None = None
        self._opening: asyncio.Lock = asyncio.Lock()
        self._room = asyncio.Semaphore(max_waiting)
        self._waiting: set[_Sent] = set()
        self._failures = _Failures()
        self._transactional = options.get("transactional_id") is not None
        self._sending = 0  # calls of Producer.send on the thread
        self._ending = threading.Event()
        self._reporter: threading.Thread | None = None

    async def open(self) -> Producer:
        async with self._opening:
            if self._producer is None:
                self._producer = await self._thread.call(self._make)
                self._reporter = threading.Thread(
                    target=self._report, name="delivery-reports", daemon=True
                )
                self._reporter.start()
        return self._producer

    async def send(self, topic: str, value: Any = None, **more: Any) -> Delivery:
        """Send one record, with the arguments of Producer.send, and return when it is written.

        Raise DeliveryFailed if it is not written, and another ClientError if it was not even sent:
        the topic does not exist, or the value cannot be serialised.
        """
        return await (await self.queue(topic, value, **more))

    async def queue(
        self,
        topic: str,
        value: Any = None,
        *,
        on_delivery: Callable[[Delivery], None] | None = None,
        **more: Any,
    ) -> Awaitable[Delivery]:
        """Queue one record; return an awaitable of its delivery, which can be gathered with others.

        ``on_delivery`` is called on the event loop.
        """
        producer = self._producer or await self.open()
        loop = asyncio.get_running_loop()
        sent = _Sent(loop, self._failures.discount)
        await self._room.acquire()

        def delivered(delivery: Delivery) -> None:
            loop.call_soon_threadsafe(self._settle, sent, delivery, on_delivery)

        self._waiting.add(sent)
        try:
            await self._send(producer, topic, value, on_delivery=delivered, **more)
        except BaseException:
            self._release(sent)
            raise
        return sent

    async def _send(self, producer: Producer, topic: str, value: Any, **more: Any) -> None:
        """Send, on the thread if the producer may have to request metadata.

        Records behind such a record go through the thread too, so that they do not overtake it.
        """
        if not self._sending and not producer.may_request_metadata(topic):
            producer.send(topic, value, **more)
            return
        self._sending += 1
        try:
            await self._thread.call(producer.send, topic, value, **more)
        finally:
            self._sending -= 1

    def _release(self, sent: _Sent) -> None:
        if sent in self._waiting:
            self._waiting.remove(sent)
            self._room.release()

    def _settle(
        self, sent: _Sent, delivery: Delivery, on_delivery: Callable[[Delivery], None] | None
    ) -> None:
        self._release(sent)
        if delivery.error is None:
            if not sent.done():
                sent.set_result(delivery)
        else:
            failure = DeliveryFailed.of(delivery.error)
            if (not sent.retrieved or sent.cancelled()) and not self._transactional:
                self._failures.add(failure)
            if not sent.done():
                sent.set_exception(failure)
        if on_delivery is not None:
            on_delivery(delivery)

    def _report(self) -> None:
        assert self._producer is not None
        while not self._ending.is_set():
            try:
                self._producer.poll(POLL_S)
            except ClientError:
                # A fatal error, which the next step of the transaction raises. The reports of the
                # records that it dropped are still to come.
                self._ending.wait(POLL_S)

    async def flush(self) -> None:
        """Wait until everything queued is delivered.

        Raise DeliveryFailed for failures since the last flush that no sender has retrieved.
        """
        await self._thread.call((await self.open()).flush)
        await self._settled()

    async def _settled(self) -> None:
        if self._waiting:
            await asyncio.wait(set(self._waiting))
        self._failures.raise_all()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncTransaction]:
        """Commit everything sent in the block, or nothing."""
        producer = await self.open()
        transaction = await self._thread.call(producer.transaction)
        await self._thread.call(transaction.__enter__)
        try:
            yield AsyncTransaction(self, transaction, self._thread)
        except BaseException as error:
            await self._thread.call(transaction.__exit__, type(error), error, error.__traceback__)
            raise
        await self._thread.call(transaction.__exit__, None, None, None)

    async def close(self, *, abandon: bool = False) -> None:
        if self._producer is not None:
            producer = self._producer
            try:
                await self._thread.call(producer.abandon if abandon else producer.close)
                if not abandon:
                    await self._settled()
            finally:
                self._ending.set()
                await asyncio.sleep(0)
        self._thread.end()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(abandon=error is not None)


class AsyncTransaction:
    """An open transaction. It is committed if its block ends without an exception."""

    def __init__(
        self, producer: AsyncProducer, transaction: ProducerTransaction, thread: _Thread
    ) -> None:
        self._producer = producer
        self._transaction = transaction
        self._thread = thread

    async def send(self, topic: str, value: Any = None, **more: Any) -> None:
        """Queue a record. The end of the block waits for its delivery."""
        await self._thread.call(self._transaction.send, topic, value, **more)

    async def commit_offsets(self, consumer: AsyncConsumer) -> None:
        await self._thread.call(self._transaction.commit_offsets, await consumer.open())


@dataclass
class _Batch:
    """Records of which the first ``taken`` have been handed out."""

    records: list[Record]
    polled: Sequence[Record]  # the same before decoding and interceptors
    taken: int = 0


class AsyncConsumer:
    """Takes the arguments of Consumer. Iterate over it for records, or over ``batches()``."""

    def __init__(self, bootstrap: Bootstrap, topics: str | Iterable[str], **options: Any) -> None:
        self._make = lambda: Consumer(bootstrap, topics, **options)
        self._thread = _Thread("async-consumer")
        self._consumer: Consumer | None = None
        self._pending: asyncio.Future[list[Record]] | None = None
        self._batch: _Batch | None = None

    async def open(self) -> Consumer:
        if self._consumer is None:
            self._consumer = await self._thread.call(self._make)
        return self._consumer

    async def poll(self, max_records: int = 500, timeout_s: float = POLL_S) -> list[Record]:
        """Return the next records. A cancelled call loses none: the next call returns them."""
        stream = (await self._resume()).stream
        records = await self._next(stream, max_records, timeout_s)
        stream.mark_handed_out(stream.polled)
        stream.mark_ends()
        return records

    async def _resume(self) -> Consumer:
        """Return the consumer, after putting back the records that the last loop did not take.

        The end of that loop's generator would be too late: it may be closed much later.
        """
        consumer = await self.open()
        if (batch := self._batch) is not None:
            self._batch = None
            if batch.taken < len(batch.records):
                consumer.stream.put_back(batch.records[batch.taken], batch.polled)
        return consumer

    async def _next(
        self, stream: RecordStream, max_records: int, timeout_s: float = POLL_S
    ) -> list[Record]:
        if self._pending is None:
            self._pending = asyncio.ensure_future(
                self._thread.call(stream.poll, max_records, timeout_s)
            )
        try:
            records = await asyncio.shield(self._pending)
        except asyncio.CancelledError:
            if self._pending.cancelled():
                self._pending = None
            raise  # its records are for the next call, even if they have just arrived
        except BaseException:
            self._pending = None
            raise
        self._pending = None
        return records

    def _finished(self, stream: RecordStream) -> bool:
        return self._pending is None and stream.finished

    async def commit(self, *, wait: bool = True) -> None:
        await self._thread.call((await self.open()).commit, wait=wait)

    async def metrics(self) -> dict[str, float]:
        return await self._thread.call((await self.open()).metrics)

    async def batches(self, max_records: int = 500) -> AsyncIterator[list[Record]]:
        """Yield lists of records as they arrive, until finished.

        In a group, a list is committed when the next one is requested.
        """
        consumer = await self._resume()
        stream = consumer.stream
        while not self._finished(stream):
            records = await self._next(stream, max_records)
            stream.mark_handed_out(stream.polled)
            if consumer.commits_first and consumer.auto_commit:
                await self._thread.call(stream.commit_handled)
            if records:
                yield records
            if not consumer.commits_first and consumer.auto_commit:
                await self._thread.call(stream.commit_handled)

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Yield records as they arrive, until finished.

        After a loop that ended early, another loop continues with the next record.
        """
        consumer = await self._resume()
        stream = consumer.stream
        while not self._finished(stream):
            records = await self._next(stream, BATCH_RECORDS)
            self._batch = batch = _Batch(records, stream.polled)
            if consumer.commits_first:
                await self._commit_batch(consumer, batch)
            for record in records:
                if self._batch is not batch:
                    return  # another loop has the rest
                batch.taken += 1
                if not consumer.commits_first:
                    stream.mark_handed_out((record,))
                yield record
            self._batch = None
            if not consumer.commits_first:
                await self._commit_batch(consumer, batch)

    async def _commit_batch(self, consumer: Consumer, batch: _Batch) -> None:
        consumer.stream.mark_handed_out(batch.polled)
        if consumer.auto_commit:
            await self._thread.call(consumer.stream.commit_handled)

    async def close(self) -> None:
        if self._pending is not None:
            await asyncio.wait([self._pending])  # its poll ends soon
        if self._consumer is not None:
            await self._thread.call(self._consumer.close)
        self._thread.end()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
