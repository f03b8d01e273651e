"""Batches requests to the same broker: while one is in flight, the next one fills.

No item waits for a timer. The first one is sent at once, and those that arrive while it is in
flight are sent together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

from millstream.core.errors import ApiError

_K = TypeVar("_K", bound=Hashable)
_I = TypeVar("_I")
_A = TypeVar("_A")

MAX_ITEMS = 1000


class Batches(Generic[_K, _I, _A]):
    """Collects items by destination.

    ``send(to, items)`` returns the results by ``name(item)``. Names are unique within a request: an
    item with the same name waits for the next request.
    """

    def __init__(
        self,
        send: Callable[[_K, Sequence[_I]], Awaitable[Mapping[Hashable, _A]]],
        *,
        name: Callable[[_I], Hashable],
    ) -> None:
        self._send = send
        self._name = name
        self._queued: dict[_K, list[tuple[_I, asyncio.Future[_A]]]] = {}
        self._senders: dict[_K, asyncio.Task[None]] = {}

    async def ask(self, to: _K, item: _I) -> _A:
        """Send an item, and return its result; raise ApiError or OSError if the request fails.

        An item whose caller was cancelled is not sent.
        """
        loop = asyncio.get_running_loop()
        result: asyncio.Future[_A] = loop.create_future()
        self._queued.setdefault(to, []).append((item, result))
        if to not in self._senders:
            self._senders[to] = loop.create_task(self._send_all(to))
        return await result

    async def _send_all(self, to: _K) -> None:
        try:
            while batch := self._take(to):
                await self._send_batch(to, batch)
        finally:
            del self._senders[to]
            for _item, result in self._queued.pop(to, ()):  # closed while items were queued
                result.cancel()

    async def _send_batch(
        self, to: _K, batch: Mapping[Hashable, tuple[_I, asyncio.Future[_A]]]
    ) -> None:
        try:
            results = await self._send(to, [item for item, _ in batch.values()])
        except (ApiError, OSError) as error:
            for _, result in batch.values():
                if not result.done():
                    result.set_exception(error)
            return
        except BaseException:
            for _, result in batch.values():
                result.cancel()
            raise
        for name, (_, result) in batch.items():
            if result.done():
                continue
            if name in results:
                result.set_result(results[name])
            else:
                result.set_exception(ConnectionError("the response has no result for this item"))

    def _take(self, to: _K) -> dict[Hashable, tuple[_I, asyncio.Future[_A]]]:
        """Return the items of the next request, one of each name."""
        batch: dict[Hashable, tuple[_I, asyncio.Future[_A]]] = {}
        later: list[tuple[_I, asyncio.Future[_A]]] = []
        for item, result in self._queued.pop(to, ()):
            if result.done():
                continue
            name = self._name(item)
            if name in batch or len(batch) >= MAX_ITEMS:
                later.append((item, result))
            else:
                batch[name] = item, result
        if later:
            self._queued[to] = later
        return batch

    def close(self) -> None:
        for task in list(self._senders.values()):
            task.cancel()
