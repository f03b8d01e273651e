"""Producer ids, allocated in durable blocks.

In a cluster the next block is fetched ahead of need, as by Apache Kafka's brokers: a producer can
start while there is no controller, or no ZooKeeper.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from millstream.core.errors import ApiError

# With blocks of a thousand, the next one is fetched when a tenth is left.
_MIN_LEFT = 100
_RETRY_S = 1.0


class ProducerIds:
    """Allocates ids; none is returned twice, not even after a crash.

    Concurrent requests share one allocation, and its failure.
    """

    def __init__(self, allocate: Callable[[], Awaitable[range]]) -> None:
        self._allocate = allocate
        self._blocks: deque[range] = deque()
        self._allocation: asyncio.Task[None] | None = None
        self._taken = asyncio.Event()
        self._highest = -1

    def stay_above(self, highest: int) -> None:
        """Skip ids up to this one, which are in use.

        The controller knows that, unless its metadata was restored from a backup. A new producer
        with a used id would be taken for the old one, and its first records for duplicates.
        """
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
        """Fetch blocks ahead of need, until cancelled. Without this, ids are fetched on demand."""
        try:
            while True:
                self._taken.clear()
                if sum(map(len, self._blocks)) >= _MIN_LEFT:
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
            self._allocation = asyncio.get_running_loop().create_task(
                self._fetch(), name="producer ids"
            )
            self._allocation.add_done_callback(self._fetched)
        await asyncio.shield(
            self._allocation
        )  # the caller may be cancelled; others wait for it too

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
            allocation.exception()  # retrieved, even if no caller is left
