"""The controller's changes, in order, for every broker to follow: one feed per controller epoch.

A broker asks for what came after the position it has. One that has none, or one from another epoch, or one too old to be
remembered, gets a snapshot: the nodes of the whole image in pages, and then the changes since its first page. What a broker asks
for also tells how far it is, so that a change can be answered when those it concerns have taken it in.

Many brokers ask for the same: pages are made once, also those of a snapshot, which all brokers want when a new controller begins.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from millstream.control.image import NodeData

# A page of a snapshot, and of changes: so many nodes, or fewer where they are large. The node of a topic has the replicas of all its partitions.
PAGE_NODES = 2_000
_PAGE_BYTES = 2 << 20
# Changes that are remembered; a broker further behind gets a snapshot, which is then the cheaper way too.
_REMEMBERED_NODES = 50_000
_REMEMBERED_BYTES = 32 << 20
# Of the changes that every broker has taken in, the latest are remembered for brokers that lose their session for a moment.
_KEPT_NODES = 2_000
NOTHING_TAKEN_IN = -1


def page_position(page: int) -> int:
    """How a broker names the page of a snapshot that it wants next. One that names none gets the one after the last it was sent."""
    return NOTHING_TAKEN_IN - page


# How long a snapshot is there for others too, and how many changes may have come since.
_SHARED_S = 10.0
_SHARED_CHANGES = 1_000


@dataclass(slots=True)
class FeedPage:
    """What one answer carries. ``position`` counts once everything up to ``more_follows`` = False is taken in."""

    position: int
    nodes: Sequence[NodeData]
    begins_snapshot: bool = False
    more_follows: bool = False
    # The answer, once somebody has made it.
    encoded: bytes | None = field(default=None, compare=False, repr=False)


class FeedClosed(Exception):
    """This controller is no longer the active one."""


class _Change(NamedTuple):
    position: int
    nodes: Sequence[NodeData]
    bytes: int


class _Snapshot:
    """The image as it is from ``position`` on: whoever takes it in takes in the changes since as well."""

    def __init__(self, position: int, nodes: Iterator[NodeData]) -> None:
        self.position = position
        self._nodes = nodes
        self._pages: list[FeedPage] = []

    def page(self, number: int) -> FeedPage:
        if number == len(self._pages):
            nodes, ended = self._take_page()
            self._pages.append(FeedPage(self.position, nodes, number == 0, not ended))
        return self._pages[number]

    def _take_page(self) -> tuple[list[NodeData], bool]:
        """The next nodes, and whether these were the last."""
        nodes: list[NodeData] = []
        size = 0
        for node in self._nodes:
            nodes.append(node)
            size += _size(node)
            if len(nodes) >= PAGE_NODES or size >= _PAGE_BYTES:
                return nodes, False
        return nodes, True


class _Reading(NamedTuple):
    snapshot: _Snapshot
    page: int


class ControllerFeed:
    """The changes of one controller epoch."""

    def __init__(self, epoch: int, image_nodes: Callable[[], Iterator[NodeData]]) -> None:
        self.epoch = epoch
        self.position = 0
        self._image_nodes = image_nodes
        self._changes: deque[_Change] = deque()
        self._remembered_nodes = self._remembered_bytes = 0
        self._pages: dict[int, FeedPage] = {}
        self._shared: _Snapshot | None = None
        self._snapshots: dict[int, _Reading] = {}
        self._taken_in: dict[int, int] = {}
        # Brokers that were sent a snapshot and have not asked since: where the changes begin that they need.
        self._begins_at: dict[int, int] = {}
        self._closed = False
        self._news = asyncio.Event()
        self._progress = asyncio.Event()

    # ---- the controller's side ------------------------------------------------------------------------------

    def publish(self, nodes: Sequence[NodeData]) -> int:
        """A change that is durable. Returns its position."""
        self.position += 1
        change = _Change(self.position, nodes, sum(map(_size, nodes)))
        self._changes.append(change)
        self._remembered_nodes += len(nodes)
        self._remembered_bytes += change.bytes
        while self._remembers_too_much and len(self._changes) > 1:
            self._forget_oldest()
        self._pages.clear()
        self._news = _tell(self._news)
        return self.position

    def _forget_oldest(self) -> None:
        oldest = self._changes.popleft()
        self._remembered_nodes -= len(oldest.nodes)
        self._remembered_bytes -= oldest.bytes

    def _forget_taken_in(self) -> None:
        """Forget changes that no broker needs: each node that was created and deleted again would stay in memory."""
        slowest = min((*self._taken_in.values(), *self._begins_at.values()), default=NOTHING_TAKEN_IN)
        while self._remembered_nodes > _KEPT_NODES and self._changes[0].position <= slowest:
            self._forget_oldest()

    @property
    def _remembers_too_much(self) -> bool:
        return self._remembered_nodes > _REMEMBERED_NODES or self._remembered_bytes > _REMEMBERED_BYTES

    async def wait_taken_in(self, position: int, brokers: Callable[[], Collection[int]]) -> None:
        """Until these brokers, of which some may go meanwhile, are as far as that. One is looked at after the other: with many, looking at
        all whenever one has moved would take longer than they need."""
        for broker in list(brokers()):
            while not self._closed and self._taken_in.get(broker, 0) < position and broker in brokers():
                await self._progress.wait()

    def taken_in(self, broker: int) -> int:
        return self._taken_in.get(broker, NOTHING_TAKEN_IN)

    def forget(self, broker: int) -> None:
        """It is gone; when it comes back it begins anew."""
        self._taken_in.pop(broker, None)
        self._begins_at.pop(broker, None)
        self._snapshots.pop(broker, None)
        self._progress = _tell(self._progress)

    def close(self) -> None:
        self._closed = True
        self._shared = None
        self._news = _tell(self._news)
        self._progress = _tell(self._progress)

    # ---- the brokers' side ----------------------------------------------------------------------------------

    async def read(
        self,
        broker: int,
        epoch: int,
        position: int,
        *,
        more_of_snapshot: bool,
        wait_s: float,
        registered: bool = True,
    ) -> FeedPage:
        """What comes next for this broker, after waiting so long for something to come; raises FeedClosed. One that is not ``registered`` may
        not have loaded its logs yet: what it knows, it has not done."""
        if epoch != self.epoch or (more_of_snapshot and not self._is_next_page(broker, position)):
            return self._begin_snapshot(broker)
        if more_of_snapshot:
            return self._snapshot_page(broker)
        if not self._remembers(position):
            return self._begin_snapshot(broker)
        if registered:
            self._note(broker, position)
        if position == self.position and not self._closed:
            await _wait(self._news, wait_s)
        if self._closed:
            raise FeedClosed
        return self._changes_after(position)

    def _is_next_page(self, broker: int, position: int) -> bool:
        """A page whose answer was lost must not be missing: what is not in a snapshot the broker deletes."""
        reading = self._snapshots.get(broker)
        return reading is not None and (
            position >= NOTHING_TAKEN_IN or position == page_position(reading.page)
        )

    def _remembers(self, position: int) -> bool:
        oldest = self._changes[0].position if self._changes else self.position + 1
        return oldest - 1 <= position <= self.position

    def _note(self, broker: int, position: int) -> None:
        self._begins_at.pop(broker, None)
        if position > self._taken_in.get(broker, NOTHING_TAKEN_IN):
            self._taken_in[broker] = position
            if self._remembered_nodes > _KEPT_NODES:
                self._forget_taken_in()
            self._progress = _tell(self._progress)

    def _changes_after(self, position: int) -> FeedPage:
        if position == self.position:
            return FeedPage(position, ())
        page = self._pages.get(position)
        if page is None:
            page = self._pages[position] = self._page_after(position)
        return page

    def _page_after(self, position: int) -> FeedPage:
        nodes: list[NodeData] = []
        size = 0
        first = position + 1 - self._changes[0].position
        for change in islice(self._changes, first, None):
            nodes += change.nodes
            size += change.bytes
            position = change.position
            if len(nodes) >= PAGE_NODES or size >= _PAGE_BYTES:
                break
        return FeedPage(position, nodes)

    def _begin_snapshot(self, broker: int) -> FeedPage:
        if self._closed:
            raise FeedClosed
        self._taken_in.pop(broker, None)
        snapshot = self._recent_snapshot()
        self._begins_at[broker] = snapshot.position
        self._snapshots[broker] = _Reading(snapshot, 0)
        return self._snapshot_page(broker)

    def _recent_snapshot(self) -> _Snapshot:
        shared = self._shared
        if (
            shared is None
            or not self._remembers(shared.position)
            or self.position - shared.position > _SHARED_CHANGES
        ):
            shared = self._shared = _Snapshot(self.position, self._image_nodes())
            asyncio.get_running_loop().call_later(_SHARED_S, self._let_go, shared)
        return shared

    def _let_go(self, snapshot: _Snapshot) -> None:
        if self._shared is snapshot:
            self._shared = None

    def _snapshot_page(self, broker: int) -> FeedPage:
        snapshot, number = self._snapshots.pop(broker)
        page = snapshot.page(number)
        if page.more_follows:
            self._snapshots[broker] = _Reading(snapshot, number + 1)
        return page


def _size(node: NodeData) -> int:
    return len(node.path) + len(node.data or b"")


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
