"""Producer ids, handed out from durable blocks.

In a cluster a block is kept ahead of need, as by Apache Kafka's brokers: a producer can begin while there is no controller, or no ZooKeeper, to
ask for one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from millstream.core.errors import ApiError

# With a block of a thousand, the next one is fetched when a tenth is left.
_LOW = 100
_RETRY_S = 1.0


class ProducerIds:
    """``next_id`` never returns an id twice, whatever crashes. Requests that come together share one allocation, and its failure."""

    def __init__(self, allocate: Callable[[], Awaitable[range]]) -> None:
        self._allocate = allocate
        self._blocks: deque[range] = deque()
        self._allocation: asyncio.Task[None] | None = None
        self._taken = asyncio.Event()
        self._highest = -1

    def stay_above(self, highest: int) -> None:
        """Ids up to this one are in use. Those who hand out blocks know that, unless their metadata was put back from a copy: then a new producer
        would be taken for an old one, and its first records for repeated ones."""
        self._highest = max(self._highest, highest)

    async def next_id(self) -> int:
        while not self._blocks:
            await self._share_allocation()
        block = self._blocks.popleft()
        if len(block) > 1:
            self._blocks.appendleft(block[1:])
        self._taken.set()
        return block[0]

    async def keep_ahead(self) -> None:
        """Runs until it is cancelled. Without it ids are asked for when they are needed."""
        try:
            while True:
                self._taken.clear()
                if sum(map(len, self._blocks)) >= _LOW:
                    await self._taken.wait()
                    continue
                try:
                    await self._share_allocation()
                except ApiError:
                    await asyncio.sleep(_RETRY_S)
        finally:
            if self._allocation is not None:
                self._allocation.cancel()

    async def _share_allocation(self) -> None:
        if self._allocation is None:
            self._allocation = asyncio.get_running_loop().create_task(self._fetch(), name="producer ids")
            self._allocation.add_done_callback(self._fetched)
        await asyncio.shield(self._allocation)  # who asked may go away, others wait for the same one

    async def _fetch(self) -> None:
        while True:
            block = await self._allocate()
            unused = range(max(block.start, self._highest + 1), block.stop)
            if unused:
                self._highest = unused[-1]
                self._blocks.append(unused)
                return

    def _fetched(self, allocation: asyncio.Task[None]) -> None:
        self._allocation = None
        if not allocation.cancelled():
            allocation.exception()  # nobody may be left to hear of it
