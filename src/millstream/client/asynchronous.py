"""``AsyncProducer`` and ``AsyncConsumer``: the same clients under asyncio.

    async with AsyncProducer("localhost:9092") as producer:
        delivery = await producer.send("orders", b"...")  # when it is written

    async for batch in AsyncConsumer("localhost:9092", "orders", group="billing").batches():
        await handle(batch)  # committed when the block ends well

The library waits on threads of its own; each client here has one thread, on which it is called, so the loop never blocks.
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
from millstream.client.consumer import Consumer
from millstream.client.errors import ClientError, DeliveryFailed
from millstream.client.producer import Delivery, Producer
from millstream.client.producing.transaction import ProducerTransaction
from millstream.client.record import Record

T = TypeVar("T")
POLL_S = 0.1
MAX_WAITING = 10_000


class _Thread:
    """One thread on which everything that blocks is called."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, name)

    async def call(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: function(*arguments, **named))

    def end(self) -> None:
        self._executor.shutdown(wait=False)


class _Sent(asyncio.Future[Delivery]):
    """What becomes of one record. A failure that its sender is told is no matter for ``flush`` any more."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_heard: Callable[[DeliveryFailed], None]) -> None:
        super().__init__(loop=loop)
        self.heard = False
        self._on_heard = on_heard

    def _hear(self) -> None:
        if not self.heard:
            self.heard = True
            if self.done() and not self.cancelled() and (failure := super().exception()) is not None:
                assert isinstance(failure, DeliveryFailed)
                self._on_heard(failure)

    def __await__(self) -> Generator[Any, None, Delivery]:
        self._hear()
        return (yield from super().__await__())

    def result(self) -> Delivery:  # as does asyncio.gather, instead of awaiting
        self._hear()
        return super().result()

    def exception(self) -> BaseException | None:
        self._hear()
        return super().exception()


class _Failures:
    """What nobody was told yet: how often, by what was said, for many records fail for one reason."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, DeliveryFailed]] = {}

    def add(self, failure: DeliveryFailed) -> None:
        count, first = self._found.get(failure.message, (0, failure))
        self._found[failure.message] = count + 1, first

    def discount(self, failure: DeliveryFailed) -> None:
        count, first = self._found.pop(failure.message, (0, failure))
        if count > 1:
            self._found[failure.message] = count - 1, first

    def raise_all(self) -> None:
        found, self._found = self._found, {}
        for _count, first in found.values():
            raise DeliveryFailed.of(first, failed=sum(count for count, _first in found.values()))


class _Awaited(Producer):
    """A producer that leaves it to who awaits a record to hear of its failure; of a transaction every failure counts."""

    def _count_failure(self, failure: ClientError, told: bool) -> None:
        if not told or self.transactional_id is not None:
            super()._count_failure(failure, told)


class AsyncProducer:
    """Made as Producer, with the same arguments; it connects when its block begins, or at the first ``send``."""

    def __init__(
        self, bootstrap: Bootstrap = "localhost:9092", *, max_waiting: int = MAX_WAITING, **options: Any
    ) -> None:
        """``max_waiting``: so many records wait for delivery at most; then ``send`` waits before it queues another."""
        if not options.setdefault("acknowledge", True):
            raise ClientError(
                "an AsyncProducer hears of every record",
                hint="leave out acknowledge=False; Producer has it",
            )
        self._make = lambda: _Awaited(bootstrap, **options)
        self._thread = _Thread("async-producer")
        self._producer: Producer | None = None
        self._opening: asyncio.Lock = asyncio.Lock()
        self._room = asyncio.Semaphore(max_waiting)
        self._waiting: set[_Sent] = set()
        self._failures = _Failures()
        self._transactional = options.get("transactional_id") is not None
        self._asking = 0  # records that are given to the producer on the thread
        self._ending = threading.Event()
        self._reporter: threading.Thread | None = None

    async def open(self) -> Producer:
        async with self._opening:
            if self._producer is None:
                self._producer = await self._thread.call(self._make)
                self._reporter = threading.Thread(target=self._report, name="delivery-reports", daemon=True)
                self._reporter.start()
        return self._producer

    async def send(self, topic: str, value: Any = None, **more: Any) -> Delivery:
        """Send one record, with what Producer.send takes, and return when it is written.

        DeliveryFailed if it is not; a ClientError of another kind where it was not even sent (a topic that does not exist, a value
        that cannot be serialised).
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
        """Queue one record; what is returned can be awaited later, or gathered with others. ``on_delivery`` is called on the loop."""
        producer = self._producer or await self.open()
        loop = asyncio.get_running_loop()
        sent = _Sent(loop, self._failures.discount)
        await self._room.acquire()

        def told(delivery: Delivery) -> None:
            loop.call_soon_threadsafe(self._settle, sent, delivery, on_delivery)

        self._waiting.add(sent)
        try:
            await self._give(producer, topic, value, on_delivery=told, **more)
        except BaseException:
            self._leave(sent)
            raise
        return sent

    async def _give(self, producer: Producer, topic: str, value: Any, **more: Any) -> None:
        """On the thread when the producer may have to ask the cluster; then also what comes behind, which must not overtake."""
        if not self._asking and not producer.may_ask(topic):
            producer.send(topic, value, **more)
            return
        self._asking += 1
        try:
            await self._thread.call(producer.send, topic, value, **more)
        finally:
            self._asking -= 1

    def _leave(self, sent: _Sent) -> None:
        if sent in self._waiting:
            self._waiting.remove(sent)
            self._room.release()

    def _settle(
        self, sent: _Sent, delivery: Delivery, on_delivery: Callable[[Delivery], None] | None
    ) -> None:
        self._leave(sent)
        if delivery.error is None:
            if not sent.done():
                sent.set_result(delivery)
        else:
            failure = DeliveryFailed.of(delivery.error)
            if (not sent.heard or sent.cancelled()) and not self._transactional:
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
        """Return when everything queued is delivered; DeliveryFailed if some was not (since the last flush) and nobody was told."""
        await self._thread.call((await self.open()).flush)
        await self._settled()

    async def _settled(self) -> None:
        if self._waiting:
            await asyncio.wait(set(self._waiting))
        self._failures.raise_all()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncTransaction]:
        """All of the block, or nothing."""
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
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(abandon=error is not None)


class AsyncTransaction:
    """What is sent in it counts when its block ends well."""

    def __init__(self, producer: AsyncProducer, transaction: ProducerTransaction, thread: _Thread) -> None:
        self._producer = producer
        self._transaction = transaction
        self._thread = thread

    async def send(self, topic: str, value: Any = None, **more: Any) -> None:
        """Queue a record; the end of the block waits for it."""
        await self._thread.call(self._transaction.send, topic, value, **more)

    async def commit_offsets(self, consumer: AsyncConsumer) -> None:
        await self._thread.call(self._transaction.commit_offsets, await consumer.open())


@dataclass
class _Handing:
    """Records of which some have been handed out."""

    records: list[Record]
    polled: Sequence[Record]  # what they were made of
    taken: int = 0


class AsyncConsumer:
    """Made as Consumer, with the same arguments. Iterate over it for records, or over ``batches()``."""

    def __init__(self, bootstrap: Bootstrap, topics: str | Iterable[str], **options: Any) -> None:
        self._make = lambda: Consumer(bootstrap, topics, **options)
        self._thread = _Thread("async-consumer")
        self._consumer: Consumer | None = None
        self._pending: asyncio.Future[list[Record]] | None = None
        self._handing: _Handing | None = None

    async def open(self) -> Consumer:
        if self._consumer is None:
            self._consumer = await self._thread.call(self._make)
        return self._consumer

    async def poll(self, max_records: int = 500, timeout_s: float = POLL_S) -> list[Record]:
        """The next records. A call that is cancelled loses none of them: the next call gets them."""
        consumer = await self._take_up()
        records = await self._next(consumer, max_records, timeout_s)
        consumer._note(consumer._polled)
        consumer._note_ends()
        return records

    async def _take_up(self) -> Consumer:
        """The consumer, with what a loop before left. Not when that loop's generator ends: that may be much later."""
        consumer = await self.open()
        if (left := self._handing) is not None:
            self._handing = None
            if left.taken < len(left.records):
                consumer._put_back(left.records[left.taken], left.polled)
        return consumer

    async def _next(self, consumer: Consumer, max_records: int, timeout_s: float = POLL_S) -> list[Record]:
        if self._pending is None:
            self._pending = asyncio.ensure_future(self._thread.call(consumer._poll, max_records, timeout_s))
        try:
            records = await asyncio.shield(self._pending)
        except asyncio.CancelledError:
            if self._pending.cancelled():
                self._pending = None
            raise  # what it brings is for the next call, also when it has come just now
        except BaseException:
            self._pending = None
            raise
        self._pending = None
        return records

    def _finished(self, consumer: Consumer) -> bool:
        return self._pending is None and consumer.finished

    async def commit(self, *, wait: bool = True) -> None:
        await self._thread.call((await self.open()).commit, wait=wait)

    async def metrics(self) -> dict[str, float]:
        return await self._thread.call((await self.open()).metrics)

    async def batches(self, max_records: int = 500) -> AsyncIterator[list[Record]]:
        """Lists of records as they come, until finished. In a group a list is committed when the next is asked for."""
        consumer = await self._take_up()
        while not self._finished(consumer):
            records = await self._next(consumer, max_records)
            consumer._note(consumer._polled)
            if consumer._commits_first:
                await self._thread.call(consumer._batch_is_handled)
            if records:
                yield records
            if not consumer._commits_first:
                await self._thread.call(consumer._batch_is_handled)

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Records as they come, until finished. A loop that is left may be taken up by another."""
        consumer = await self._take_up()
        while not self._finished(consumer):
            records = await self._next(consumer, 500)
            self._handing = handing = _Handing(records, consumer._polled)
            if consumer._commits_first:
                await self._commit_batch(consumer, handing)
            for record in records:
                if self._handing is not handing:
                    return  # another loop has taken up the rest
                handing.taken += 1
                if not consumer._commits_first:
                    consumer._note((record,))
                yield record
            self._handing = None
            if not consumer._commits_first:
                await self._commit_batch(consumer, handing)

    async def _commit_batch(self, consumer: Consumer, batch: _Handing) -> None:
        consumer._note(batch.polled)
        await self._thread.call(consumer._batch_is_handled)

    async def close(self) -> None:
        if self._pending is not None:
            await asyncio.wait([self._pending])  # it ends by itself, soon
        if self._consumer is not None:
            await self._thread.call(self._consumer.close)
        self._thread.end()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
