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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from millstream.client.consumer import Consumer
from millstream.client.producer import Delivery, Producer
from millstream.client.producer_transaction import ProducerTransaction
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


class AsyncProducer:
    """Made as Producer, with the same arguments; it connects when its block begins, or at the first ``send``."""

    def __init__(
        self, bootstrap: str = "localhost:9092", *, max_waiting: int = MAX_WAITING, **options: Any
    ) -> None:
        """``max_waiting``: so many records wait for delivery at most; then ``send`` waits before it queues another."""
        self._make = lambda: Producer(bootstrap, acknowledge=True, **options)
        self._thread = _Thread("async-producer")
        self._producer: Producer | None = None
        self._opening: asyncio.Lock = asyncio.Lock()
        self._room = asyncio.Semaphore(max_waiting)
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
        """Send one record and return when it is written; DeliveryFailed, or what refused it, is raised."""
        return await (await self.queue(topic, value, **more))

    async def queue(self, topic: str, value: Any = None, **more: Any) -> Awaitable[Delivery]:
        """Queue one record; what is returned can be awaited later, or gathered with others."""
        producer = self._producer or await self.open()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Delivery] = loop.create_future()
        await self._room.acquire()

        def told(delivery: Delivery) -> None:
            loop.call_soon_threadsafe(self._settle, done, delivery)

        try:
            if topic in producer._known:
                producer.send(topic, value, on_delivery=told, **more)
            else:  # the first record of a topic asks the cluster about it
                await self._thread.call(producer.send, topic, value, on_delivery=told, **more)
        except BaseException:
            self._room.release()
            raise
        return done

    def _settle(self, done: asyncio.Future[Delivery], delivery: Delivery) -> None:
        self._room.release()
        if done.done():
            return
        if delivery.error is None:
            done.set_result(delivery)
        else:
            done.set_exception(delivery.error)

    def _report(self) -> None:
        assert self._producer is not None
        while not self._ending.is_set():
            self._producer.poll(POLL_S)

    async def flush(self) -> None:
        """Return when everything queued is delivered; DeliveryFailed if some was not (since the last flush)."""
        await self._thread.call((await self.open()).flush)

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


class AsyncConsumer:
    """Made as Consumer, with the same arguments. Iterate over it for records, or over ``batches()``."""

    def __init__(self, bootstrap: str, topics: str | Iterable[str], **options: Any) -> None:
        self._make = lambda: Consumer(bootstrap, topics, **options)
        self._thread = _Thread("async-consumer")
        self._consumer: Consumer | None = None
        self._pending: asyncio.Future[list[Record]] | None = None

    async def open(self) -> Consumer:
        if self._consumer is None:
            self._consumer = await self._thread.call(self._make)
        return self._consumer

    async def poll(self, max_records: int = 500, timeout_s: float = POLL_S) -> list[Record]:
        """The next records. A call that is cancelled loses none of them: the next call gets them."""
        consumer = await self.open()
        records = await self._next(consumer, max_records, timeout_s)
        consumer._note(consumer._polled)
        consumer._note_ends()
        return records

    async def _next(self, consumer: Consumer, max_records: int, timeout_s: float = POLL_S) -> list[Record]:
        if self._pending is None:
            self._pending = asyncio.ensure_future(self._thread.call(consumer._poll, max_records, timeout_s))
        try:
            return await asyncio.shield(self._pending)
        finally:
            if self._pending.done():
                self._pending = None

    async def commit(self, *, wait: bool = True) -> None:
        await self._thread.call((await self.open()).commit, wait=wait)

    async def metrics(self) -> dict[str, float]:
        return await self._thread.call((await self.open()).metrics)

    async def batches(self, max_records: int = 500) -> AsyncIterator[list[Record]]:
        """Lists of records as they come, until finished. In a group a list is committed when the next is asked for."""
        consumer = await self.open()
        while not consumer.finished:
            records = await self._next(consumer, max_records)
            consumer._note(consumer._polled)
            if consumer._commits_first:
                await self._thread.call(consumer._batch_is_handled)
            if records:
                yield records
            if not consumer._commits_first:
                await self._thread.call(consumer._batch_is_handled)

    async def __aiter__(self) -> AsyncIterator[Record]:
        consumer = await self.open()
        if consumer._commits_first:
            async for batch in self.batches():
                for record in batch:
                    yield record
        while not consumer.finished:
            records = await self._next(consumer, 500)
            for record in consumer._hand_out(records, consumer._polled):
                yield record
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
