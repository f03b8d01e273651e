"""The controller's changes, in order, for every broker to follow: one feed per controller epoch.

A broker asks for what came after the position it has. One that has none, or one from another epoch, or one too old to be
remembered, gets a snapshot: the nodes of the whole image in pages, and then the changes since its first page. What a broker asks
for also tells how far it is, so that a change can be answered when those it concerns have taken it in.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from millstream.control.image import NodeData

# A page of a snapshot, and of changes.
PAGE_NODES = 2_000
# Changes that are remembered; a broker further behind gets a snapshot, which is then the cheaper way too.
_REMEMBERED_NODES = 50_000
NOTHING_TAKEN_IN = -1


class FeedPage(NamedTuple):
    """What one answer carries. ``position`` counts once everything up to ``more_follows`` = False is taken in."""

    position: int
    nodes: Sequence[NodeData]
    begins_snapshot: bool = False
    more_follows: bool = False


class FeedClosed(Exception):
    """This controller is no longer the active one."""


class _Change(NamedTuple):
    position: int
    nodes: Sequence[NodeData]


class _Snapshot(NamedTuple):
    position: int
    nodes: Iterator[NodeData]


class ControllerFeed:
    """The changes of one controller epoch."""

    def __init__(self, epoch: int, image_nodes: Callable[[], Iterator[NodeData]]) -> None:
        self.epoch = epoch
        self.position = 0
        self._image_nodes = image_nodes
        self._changes: deque[_Change] = deque()
        self._remembered = 0
        self._snapshots: dict[int, _Snapshot] = {}
        self._taken_in: dict[int, int] = {}
        self._closed = False
        self._news = asyncio.Event()
        self._progress = asyncio.Event()

    # ---- the controller's side ------------------------------------------------------------------------------

    def publish(self, nodes: Sequence[NodeData]) -> int:
        """A change that is durable. Returns its position."""
        self.position += 1
        self._changes.append(_Change(self.position, nodes))
        self._remembered += len(nodes)
        while self._remembered > _REMEMBERED_NODES and len(self._changes) > 1:
            self._remembered -= len(self._changes.popleft().nodes)
        self._news = _tell(self._news)
        return self.position

    async def wait_taken_in(self, position: int, brokers: Callable[[], Collection[int]]) -> None:
        """Until these brokers, of which some may go meanwhile, are as far as that."""
        while not self._closed and any(self._taken_in.get(broker, 0) < position for broker in brokers()):
            await self._progress.wait()

    def taken_in(self, broker: int) -> int:
        return self._taken_in.get(broker, NOTHING_TAKEN_IN)

    def forget(self, broker: int) -> None:
        """It is gone; when it comes back it begins anew."""
        self._taken_in.pop(broker, None)
        self._snapshots.pop(broker, None)
        self._progress = _tell(self._progress)

    def close(self) -> None:
        self._closed = True
        self._news = _tell(self._news)
        self._progress = _tell(self._progress)

    # ---- the brokers' side ----------------------------------------------------------------------------------

    async def read(
        self, broker: int, epoch: int, position: int, *, more_of_snapshot: bool, wait_s: float
    ) -> FeedPage:
        """What comes next for this broker, after waiting so long for something to come; raises FeedClosed."""
        if more_of_snapshot and epoch == self.epoch and broker in self._snapshots:
            return self._snapshot_page(broker, begins=False)
        if epoch != self.epoch or not self._remembers(position):
            return self._begin_snapshot(broker)
        self._note(broker, position)
        if position == self.position and not self._closed:
            await _wait(self._news, wait_s)
        if self._closed:
            raise FeedClosed
        return self._changes_after(position)

    def _remembers(self, position: int) -> bool:
        oldest = self._changes[0].position if self._changes else self.position + 1
        return oldest - 1 <= position <= self.position

    def _note(self, broker: int, position: int) -> None:
        if position > self._taken_in.get(broker, NOTHING_TAKEN_IN):
            self._taken_in[broker] = position
            self._progress = _tell(self._progress)

    def _changes_after(self, position: int) -> FeedPage:
        if position == self.position:
            return FeedPage(position, ())
        nodes: list[NodeData] = []
        first = position + 1 - self._changes[0].position
        for change in islice(self._changes, first, None):
            nodes += change.nodes
            position = change.position
            if len(nodes) >= PAGE_NODES:
                break
        return FeedPage(position, nodes)

    def _begin_snapshot(self, broker: int) -> FeedPage:
        if self._closed:
            raise FeedClosed
        self._taken_in.pop(broker, None)
        self._snapshots[broker] = _Snapshot(self.position, self._image_nodes())
        return self._snapshot_page(broker, begins=True)

    def _snapshot_page(self, broker: int, *, begins: bool) -> FeedPage:
        snapshot = self._snapshots[broker]
        nodes = list(islice(snapshot.nodes, PAGE_NODES))
        more = len(nodes) == PAGE_NODES
        if not more:
            del self._snapshots[broker]
        return FeedPage(snapshot.position, nodes, begins, more)


def _tell(event: asyncio.Event) -> asyncio.Event:
    """Wakes all who wait, and returns what the next ones wait for."""
    event.set()
    return asyncio.Event()


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(max(timeout_s, 0)):
            await event.wait()
    except TimeoutError:
        pass
