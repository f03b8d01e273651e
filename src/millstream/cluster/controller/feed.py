"""The controller's changes, in order, for every broker to follow: one feed per controller epoch.

A broker requests the changes after its position. It gets a snapshot if it has no position, or one
of another epoch, or one that is too old. A snapshot is the nodes of the whole image in pages,
followed by the changes since its first page. A request also shows how far the broker has got, so a
change can be answered when the brokers concerned have applied it.

Many brokers request the same. So a page is built once, including those of a snapshot, which all
brokers need when a new controller starts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from millstream.control.image import NodeData

# Maximum number of nodes in a page of a snapshot or of changes, and of their bytes: the node of a
# topic has the replicas of all its partitions.
PAGE_NODES = 2_000
_PAGE_BYTES = 2 << 20
# Maximum of retained changes. A broker that is further behind gets a snapshot, which is then
# cheaper anyway.
_RETAINED_NODES = 50_000
_RETAINED_BYTES = 32 << 20
# Number of nodes of applied changes that are kept, for brokers that lose their session for a
# moment.
_KEPT_NODES = 2_000
NOTHING_APPLIED = -1


def page_position(page: int) -> int:
    """Return the position by which a broker requests a page of a snapshot.

    A broker that names none gets the page after the last one that it was sent.
    """
    return NOTHING_APPLIED - page


# How long a snapshot is shared with other brokers, and up to how many later changes.
_SHARED_S = 10.0
_SHARED_CHANGES = 1_000


@dataclass(slots=True)
class FeedPage:
    """The content of one response.

    ``position`` is valid once all pages up to the one without ``more_follows`` are applied.
    """

    position: int
    nodes: Sequence[NodeData]
    begins_snapshot: bool = False
    more_follows: bool = False
    # The encoded response, after its first use.
    encoded: bytes | None = field(default=None, compare=False, repr=False)


class FeedClosed(Exception):
    """This controller is no longer the active one."""


class _Change(NamedTuple):
    position: int
    nodes: Sequence[NodeData]
    bytes: int


class _Snapshot:
    """The image at ``position``: brokers apply the later changes after it."""

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
        """Return the next nodes, and whether they are the last."""
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
        self._retained_nodes = self._retained_bytes = 0
        self._pages: dict[int, FeedPage] = {}
        self._shared: _Snapshot | None = None
        self._snapshots: dict[int, _Reading] = {}
        self._applied: dict[int, int] = {}
        # The position after which brokers need changes that were sent a snapshot and have not sent
        # a request since.
        self._snapshot_position: dict[int, int] = {}
        self._closed = False
        self._news = asyncio.Event()
        self._progress = asyncio.Event()

    # ---- the controller's side ----

    def publish(self, nodes: Sequence[NodeData]) -> int:
        """Add a durable change; return its position."""
        self.position += 1
        change = _Change(self.position, nodes, sum(map(_size, nodes)))
        self._changes.append(change)
        self._retained_nodes += len(nodes)
        self._retained_bytes += change.bytes
        while self._retains_too_much and len(self._changes) > 1:
            self._drop_oldest()
        self._pages.clear()
        self._news = _wake(self._news)
        return self.position

    def _drop_oldest(self) -> None:
        oldest = self._changes.popleft()
        self._retained_nodes -= len(oldest.nodes)
        self._retained_bytes -= oldest.bytes

    def _drop_applied(self) -> None:
        """Drop changes that no broker needs.

        Otherwise every node that was created and deleted again would stay in memory.
        """
        slowest = min(
            (*self._applied.values(), *self._snapshot_position.values()), default=NOTHING_APPLIED
        )
        while self._retained_nodes > _KEPT_NODES and self._changes[0].position <= slowest:
            self._drop_oldest()

    @property
    def _retains_too_much(self) -> bool:
        return self._retained_nodes > _RETAINED_NODES or self._retained_bytes > _RETAINED_BYTES

    async def wait_applied(self, position: int, brokers: Callable[[], Collection[int]]) -> None:
        """Wait until these brokers have applied a position; some may fail in the meantime.

        They are examined one after the other. With many brokers, examining all of them after each
        progress would take longer than they need.
        """
        for broker in list(brokers()):
            while (
                not self._closed and self._applied.get(broker, 0) < position and broker in brokers()
            ):
                await self._progress.wait()

    def applied_position(self, broker: int) -> int:
        """Return the position that a broker has applied, or NOTHING_APPLIED."""
        return self._applied.get(broker, NOTHING_APPLIED)

    def forget_broker(self, broker: int) -> None:
        """Drop the state of a broker that has failed. After its restart it needs a snapshot."""
        self._applied.pop(broker, None)
        self._snapshot_position.pop(broker, None)
        self._snapshots.pop(broker, None)
        self._progress = _wake(self._progress)

    def close(self) -> None:
        self._closed = True
        self._shared = None
        self._news = _wake(self._news)
        self._progress = _wake(self._progress)

    # ---- the brokers' side ----

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
        """Return the next page for a broker, after at most ``wait_s``; raise FeedClosed.

        A broker that is not ``registered`` may not have loaded its logs yet: it knows the changes,
        but has not applied them.
        """
        if epoch != self.epoch or (more_of_snapshot and not self._is_next_page(broker, position)):
            return self._begin_snapshot(broker)
        if more_of_snapshot:
            return self._snapshot_page(broker)
        if not self._retains(position):
            return self._begin_snapshot(broker)
        if registered:
            self._record_applied(broker, position)
        if position == self.position and not self._closed:
            await _wait(self._news, wait_s)
        if self._closed:
            raise FeedClosed
        return self._changes_after(position)

    def _is_next_page(self, broker: int, position: int) -> bool:
        """Return whether the broker requests the page that comes next.

        A page whose response was lost must not be skipped: the broker deletes everything that is
        missing in a snapshot.
        """
        reading = self._snapshots.get(broker)
        return reading is not None and (
            position >= NOTHING_APPLIED or position == page_position(reading.page)
        )

    def _retains(self, position: int) -> bool:
        oldest = self._changes[0].position if self._changes else self.position + 1
        return oldest - 1 <= position <= self.position

    def _record_applied(self, broker: int, position: int) -> None:
        self._snapshot_position.pop(broker, None)
        if position > self._applied.get(broker, NOTHING_APPLIED):
            self._applied[broker] = position
            if self._retained_nodes > _KEPT_NODES:
                self._drop_applied()
            self._progress = _wake(self._progress)

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
        self._applied.pop(broker, None)
        snapshot = self._recent_snapshot()
        self._snapshot_position[broker] = snapshot.position
        self._snapshots[broker] = _Reading(snapshot, 0)
        return self._snapshot_page(broker)

    def _recent_snapshot(self) -> _Snapshot:
        shared = self._shared
        if (
            shared is None
            or not self._retains(shared.position)
            or self.position - shared.position > _SHARED_CHANGES
        ):
            shared = self._shared = _Snapshot(self.position, self._image_nodes())
            asyncio.get_running_loop().call_later(_SHARED_S, self._stop_sharing, shared)
        return shared

    def _stop_sharing(self, snapshot: _Snapshot) -> None:
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


def _wake(event: asyncio.Event) -> asyncio.Event:
    """Wake all waiters; return the event for the next ones."""
    event.set()
    return asyncio.Event()


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(max(timeout_s, 0)):
            await event.wait()
    except TimeoutError:
        pass
