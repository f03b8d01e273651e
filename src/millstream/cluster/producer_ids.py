"""Producer ids, handed out from durable blocks; concurrent requests share one allocation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator


class ProducerIds:
    """``next_id`` never returns an id twice, whatever crashes."""

    def __init__(self, allocate: Callable[[], Awaitable[range]]) -> None:
        self._allocate = allocate
        self._block: Iterator[int] = iter(())
        self._lock = asyncio.Lock()

    async def next_id(self) -> int:
        async with self._lock:
            found = next(self._block, None)
            if found is None:
                self._block = iter(await self._allocate())
                found = next(self._block)
            return found
