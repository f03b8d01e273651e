"""A broker for asyncio tests: ``async with millstream.testing.async_broker() as kafka:``.

The broker has a separate thread and event loop. Calls that would block the test's loop are awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.testing.kafka import Kafka
from millstream.testing.start import broker

if TYPE_CHECKING:
    from millstream.client import Record
    from millstream.client.producer import Payload
    from millstream.testing.faults import Faults

T = TypeVar("T")


class AsyncKafka:
    """The awaitable form of ``Kafka``, which is available as ``sync``."""

    def __init__(self, kafka: Kafka) -> None:
        self.sync = kafka

    @property
    def bootstrap(self) -> str:
        return self.sync.bootstrap

    @property
    def faults(self) -> Faults:
        return self.sync.faults

    async def topic(self, name: str, partitions: int = 1, **more: Any) -> str:
        return await asyncio.to_thread(self.sync.topic, name, partitions, **more)

    async def produce(
        self, topic: str, values: Iterable[Payload | tuple[Payload, Payload]], **options: Any
    ) -> int:
        return await asyncio.to_thread(self.sync.produce, topic, values, **options)

    async def consume(self, topic: str, n: int | None = None, **options: Any) -> list[Record]:
        return await asyncio.to_thread(self.sync.consume, topic, n, **options)

    async def call(self, method: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Call any method of ``sync``: ``await kafka.call(kafka.sync.restart, kill=True)``."""
        return await asyncio.to_thread(method, *arguments, **named)

    async def kill(self) -> None:
        await asyncio.to_thread(self.sync.kill)

    async def restart(self, *, kill: bool = False) -> None:
        await asyncio.to_thread(self.sync.restart, kill=kill)

    async def advance(self, **duration: float) -> None:
        await asyncio.to_thread(self.sync.advance, **duration)


@asynccontextmanager
async def async_broker(*arguments: Any, **named: Any) -> AsyncIterator[AsyncKafka]:
    """Start a broker like ``broker``, with the same arguments."""
    with ExitStack() as stack:
        kafka = await asyncio.to_thread(stack.enter_context, broker(*arguments, **named))
        rest = stack.pop_all()
    try:
        yield AsyncKafka(kafka)
    finally:
        await asyncio.to_thread(rest.close)
