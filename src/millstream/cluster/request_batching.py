"""Gathers what is meant for the same broker: while one request is on its way, the next one fills.

An item waits for no timer: the first of a quiet moment goes at once, and those that come meanwhile go together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

from millstream.core.errors import ApiError

_K = TypeVar("_K", bound=Hashable)
_I = TypeVar("_I")
_A = TypeVar("_A")

MOST_ITEMS = 1000


class Batches(Generic[_K, _I, _A]):
    """``send(to, items)`` returns the answers by ``name(item)``, which is unique within a request: an item whose name is in it
    already waits for the next one."""

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
        """Raises ApiError or OSError where the whole request fails. An item that is no longer waited for is not sent."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_A] = loop.create_future()
        self._queued.setdefault(to, []).append((item, answer))
        if to not in self._senders:
            self._senders[to] = loop.create_task(self._send_all(to))
        return await answer

    async def _send_all(self, to: _K) -> None:
        try:
            while batch := self._take(to):
                await self._send_one(to, batch)
        finally:
            del self._senders[to]
            for _item, answer in self._queued.pop(to, ()):  # closed in the middle
                answer.cancel()

    async def _send_one(self, to: _K, batch: Mapping[Hashable, tuple[_I, asyncio.Future[_A]]]) -> None:
        try:
            answers = await self._send(to, [item for item, _ in batch.values()])
        except (ApiError, OSError) as error:
            for _, answer in batch.values():
                if not answer.done():
                    answer.set_exception(error)
            return
        except BaseException:
            for _, answer in batch.values():
                answer.cancel()
            raise
        for name, (_, answer) in batch.items():
            if answer.done():
                continue
            if name in answers:
                answer.set_result(answers[name])
            else:
                answer.set_exception(ConnectionError("the answer says nothing of it"))

    def _take(self, to: _K) -> dict[Hashable, tuple[_I, asyncio.Future[_A]]]:
        """The next request: one item of each name."""
        batch: dict[Hashable, tuple[_I, asyncio.Future[_A]]] = {}
        later: list[tuple[_I, asyncio.Future[_A]]] = []
        for item, answer in self._queued.pop(to, ()):
            if answer.done():
                continue
            name = self._name(item)
            if name in batch or len(batch) >= MOST_ITEMS:
                later.append((item, answer))
            else:
                batch[name] = item, answer
        if later:
            self._queued[to] = later
        return batch

    def close(self) -> None:
        for task in list(self._senders.values()):
            task.cancel()
