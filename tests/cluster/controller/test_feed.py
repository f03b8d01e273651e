"""The feed: changes in order, snapshots in pages, and the position of each broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millstream.cluster.controller import feed as controller_feed
from millstream.cluster.controller.feed import ControllerFeed, FeedClosed, FeedPage
from millstream.control.image import NodeData

NOW = NodeData("/now", b"0")


def nodes(*names: str) -> list[NodeData]:
    return [NodeData(f"/{name}", b"x") for name in names]


def feed_test(
    test: Callable[[ControllerFeed], Awaitable[None]], whole: list[NodeData] | None = None
) -> None:
    async def run() -> None:
        await test(ControllerFeed(7, lambda: iter(whole if whole is not None else [NOW])))

    asyncio.run(run())


async def read(
    feed: ControllerFeed, position: int, *, epoch: int = 7, more: bool = False
) -> FeedPage:
    return await feed.read(1, epoch, position, more_of_snapshot=more, wait_s=0)


def test_new_broker_gets_a_snapshot_and_then_the_changes():
    async def test(feed: ControllerFeed) -> None:
        feed.publish(nodes("a"))
        assert await read(feed, -1) == FeedPage(1, [NOW], begins_snapshot=True)
        feed.publish(nodes("b", "c"))
        feed.publish(nodes("d"))
        assert await read(feed, 1) == FeedPage(3, nodes("b", "c", "d"))
        assert await read(feed, 3) == FeedPage(3, ())

    feed_test(test)


def test_a_position_of_another_epoch_is_ignored():
    async def test(feed: ControllerFeed) -> None:
        feed.publish(nodes("a"))
        assert (await read(feed, 1, epoch=6)).begins_snapshot
        assert (await read(feed, 99)).begins_snapshot  # nor does one that this feed has not reached

    feed_test(test)


def test_a_snapshot_comes_in_pages_followed_by_later_changes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(controller_feed, "PAGE_NODES", 2)

    async def test(feed: ControllerFeed) -> None:
        feed.publish(nodes("old"))
        assert await read(feed, -1) == FeedPage(
            1, nodes("a", "b"), begins_snapshot=True, more_follows=True
        )
        feed.publish(nodes("new"))
        assert await read(feed, -1, more=True) == FeedPage(1, nodes("c"))
        assert await read(feed, 1) == FeedPage(2, nodes("new"))

    feed_test(test, nodes("a", "b", "c"))


def test_large_nodes_make_smaller_pages_and_fewer_retained_changes(monkeypatch: pytest.MonkeyPatch):
    """The node of a topic has the replicas of all its partitions, and is often written."""
    monkeypatch.setattr(controller_feed, "_PAGE_BYTES", 8)
    monkeypatch.setattr(controller_feed, "_RETAINED_BYTES", 15)

    async def test(feed: ControllerFeed) -> None:
        begin = await read(feed, -1)
        assert (begin.nodes, begin.more_follows) == (nodes("a", "b", "c"), True)  # three bytes each
        assert await read(feed, -1, more=True) == FeedPage(0, nodes("d"))
        for name in "efghi":
            feed.publish(nodes(name))
        assert await read(feed, 0) == FeedPage(3, nodes("e", "f", "g"))
        feed.publish(nodes("j"))
        assert (await read(feed, 0)).begins_snapshot
        assert await read(feed, 1) == FeedPage(4, nodes("f", "g", "h"))

    feed_test(test, nodes("a", "b", "c", "d"))


def test_broker_that_is_too_far_behind_gets_a_snapshot(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(controller_feed, "_RETAINED_NODES", 3)

    async def test(feed: ControllerFeed) -> None:
        for name in "abcdef":
            feed.publish(nodes(name))
        assert (await read(feed, 2)).begins_snapshot
        assert await read(feed, 3) == FeedPage(6, nodes("d", "e", "f"))

    feed_test(test)


def test_a_reader_waits_for_the_next_change():
    async def test(feed: ControllerFeed) -> None:
        await read(feed, -1)
        waiting = asyncio.ensure_future(feed.read(1, 7, 0, more_of_snapshot=False, wait_s=60))
        await asyncio.sleep(0)
        assert not waiting.done()
        feed.publish(nodes("a"))
        assert await waiting == FeedPage(1, nodes("a"))

    feed_test(test)


def test_a_change_is_applied_when_all_brokers_request_the_next_one():
    async def test(feed: ControllerFeed) -> None:
        present = {1, 2}
        for broker in present:
            await feed.read(broker, 7, -1, more_of_snapshot=False, wait_s=0)
        position = feed.publish(nodes("a"))
        taken = asyncio.ensure_future(feed.wait_applied(position, lambda: present))
        await feed.read(1, 7, position, more_of_snapshot=False, wait_s=0)
        await asyncio.sleep(0)
        assert not taken.done()
        present.remove(2)  # it has failed and is not awaited
        feed.forget_broker(2)
        await taken

    feed_test(test)


def test_the_end_of_a_term_ends_all_waits():
    async def test(feed: ControllerFeed) -> None:
        await read(feed, -1)
        waiting = asyncio.ensure_future(feed.read(1, 7, 0, more_of_snapshot=False, wait_s=60))
        taken = asyncio.ensure_future(feed.wait_applied(1, lambda: [1]))
        await asyncio.sleep(0)
        feed.close()
        with pytest.raises(FeedClosed):
            await waiting
        await taken
        with pytest.raises(FeedClosed):
            await read(feed, -1)

    feed_test(test)


def test_brokers_at_the_same_position_share_a_page():
    async def test(feed: ControllerFeed) -> None:
        for broker in (1, 2):
            await feed.read(broker, 7, -1, more_of_snapshot=False, wait_s=0)
        feed.publish(nodes("a"))
        pages = [
            await feed.read(broker, 7, 0, more_of_snapshot=False, wait_s=0) for broker in (1, 2)
        ]
        assert pages[0] is pages[1]
        feed.publish(nodes("b"))
        assert await read(feed, 0) == FeedPage(2, nodes("a", "b"))

    feed_test(test)


def test_brokers_that_start_together_share_a_snapshot(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(controller_feed, "PAGE_NODES", 2)

    async def test(feed: ControllerFeed) -> None:
        first = await feed.read(1, 7, -1, more_of_snapshot=False, wait_s=0)
        feed.publish(nodes("new"))
        again = await feed.read(2, 7, -1, more_of_snapshot=False, wait_s=0)
        assert first is again
        rest = [
            await feed.read(broker, 7, -1, more_of_snapshot=True, wait_s=0) for broker in (2, 1)
        ]
        assert rest[0] is rest[1] and rest[0] == FeedPage(0, nodes("c"))
        # A broker that has applied the snapshot gets the changes since its start.
        assert await feed.read(2, 7, 0, more_of_snapshot=False, wait_s=0) == FeedPage(
            1, nodes("new")
        )

    feed_test(test, nodes("a", "b", "c"))


def test_a_snapshot_older_than_the_retained_changes_is_rebuilt(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(controller_feed, "_RETAINED_NODES", 3)

    async def test(feed: ControllerFeed) -> None:
        assert (await read(feed, -1)).position == 0
        for name in "abcdef":
            feed.publish(nodes(name))
        assert await feed.read(2, 7, -1, more_of_snapshot=False, wait_s=0) == FeedPage(
            6, [NOW], begins_snapshot=True
        )

    feed_test(test)


def test_changes_that_every_broker_has_applied_are_dropped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(controller_feed, "_KEPT_NODES", 3)

    async def test(feed: ControllerFeed) -> None:
        async def ask(broker: int, position: int) -> FeedPage:
            return await feed.read(broker, 7, position, more_of_snapshot=False, wait_s=0)

        for broker in (1, 2):
            await ask(broker, -1)  # a snapshot
        for index in range(10):
            feed.publish(nodes(f"n{index}"))
        await ask(1, 10)
        assert len(feed._changes) == 10, "broker 2 has its snapshot, and needs all that came since"
        assert (await ask(2, 0)).nodes == nodes(*(f"n{index}" for index in range(10)))
        await ask(2, 6)
        assert len(feed._changes) == 4
        await ask(2, 10)
        assert len(feed._changes) == 3, (
            "the latest stay, for a broker that loses its session for a moment"
        )
        feed.forget_broker(1)
        assert (await ask(1, 7)).nodes == nodes("n7", "n8", "n9")
        assert (await ask(3, 2)).begins_snapshot
        for index in range(10):
            feed.publish(nodes(f"m{index}"))
        for broker in (1, 2):
            await ask(broker, 20)
        assert len(feed._changes) == 10, "broker 3 has not asked since its snapshot"
        feed.forget_broker(3)
        feed.publish(nodes("last"))
        for broker in (1, 2):
            await ask(broker, 21)
        assert len(feed._changes) == feed._retained_nodes == 3

    feed_test(test)
