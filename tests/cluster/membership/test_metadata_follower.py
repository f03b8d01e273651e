"""The broker's side of the feed: what it must not accept, and what it must not lose."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence

import pytest

from millstream.cluster.controller import feed
from millstream.cluster.controller.feed import ControllerFeed
from millstream.cluster.membership import metadata_follower
from millstream.cluster.membership.metadata_follower import MetadataFollower
from millstream.control import znodes
from millstream.control.image import Change, ClusterImage, NodeData
from millstream.control.topics import state_write
from millstream.control.znodes import PartitionState
from millstream.wire.messages.controller_feed import (
    ControllerFeedRequest,
    ControllerFeedResponse,
    FeedNode,
)

TOPICS = [f"topic-{number}" for number in range(5)]
PATIENCE_S = 120.0
CLUSTER = "cluster"


def topic(name: str) -> NodeData:
    data = znodes.encode_topic(name.encode().ljust(16, b"-"), {0: (1, 2)})
    return NodeData(znodes.topic_path(name), data)


def everything(cluster: str = CLUSTER) -> Iterator[NodeData]:
    return iter(
        [
            NodeData(znodes.CLUSTER_ID, znodes.encode_cluster_id(cluster)),
            *(topic(name) for name in TOPICS),
        ]
    )


class Source:
    """A controller whose responses may get lost: ``loses(number)`` decides for each."""

    def __init__(
        self,
        epoch: int,
        loses: Callable[[int], bool] = lambda number: False,
        cluster: str = CLUSTER,
    ) -> None:
        self.feed = ControllerFeed(epoch, lambda: everything(cluster))
        self.answers = 0
        self._loses = loses

    async def ask(self, request: ControllerFeedRequest) -> ControllerFeedResponse:
        page = await self.feed.read(
            1,
            request.controller_epoch,
            request.position,
            more_of_snapshot=request.more_of_snapshot,
            wait_s=0,
        )
        self.answers += 1
        if self._loses(self.answers):
            raise ConnectionResetError
        return ControllerFeedResponse(
            controller_epoch=self.feed.epoch,
            position=page.position,
            begins_snapshot=page.begins_snapshot,
            more_follows=page.more_follows,
            nodes=[
                FeedNode(path=node.path, data=node.data, version=node.version)
                for node in page.nodes
            ],
        )


class World:
    """A follower, the changes that it followed, and the controller that it finds."""

    def __init__(
        self, source: Source, on_changes: Callable[[Sequence[Change]], Awaitable[None]]
    ) -> None:
        self.source = source
        self.image = ClusterImage()

        async def find() -> Source:
            return self.source

        self.follower = MetadataFollower(
            self.image,
            CLUSTER,
            find_controller=find,
            request=lambda: ControllerFeedRequest(broker_id=1),
            on_changes=on_changes,
        )

    def replace(self, source: Source) -> Source:
        """Let the follower find another controller from now on."""
        self.source, self.follower._source = source, None
        return source

    async def until(self, condition: Callable[[], bool]) -> None:
        running = asyncio.create_task(self.follower.run())
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - no event to wait for
                await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def ignore(changes: Sequence[Change]) -> None:
    pass


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "PAGE_NODES", 2)
    monkeypatch.setattr(metadata_follower, "_RETRY_S", 0)


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_snapshot_page_whose_response_was_lost_is_sent_again(lost: int):
    """A topic that is missing in a snapshot was deleted, and so are its replicas."""

    async def story() -> None:
        world = World(Source(7, lambda number: number == lost), ignore)
        await world.until(world.follower.ready.is_set)
        assert list(world.image.topics) == TOPICS

    asyncio.run(story())


def test_a_snapshot_dropped_by_the_controller_starts_over():
    """The position from an earlier controller means nothing to the next one."""

    async def story() -> None:
        before = Source(7)
        before.feed.publish([topic(TOPICS[0])])
        world = World(before, ignore)
        await world.until(world.follower.ready.is_set)

        def forgets(number: int) -> bool:
            if number == 1:
                after.feed.forget_broker(1)  # its session has expired
            return False

        after = world.replace(Source(8, forgets))
        for name in TOPICS[:2]:
            after.feed.publish([topic(name)])
        await world.until(lambda: after.answers >= 6)
        assert list(world.image.topics) == TOPICS

    asyncio.run(story())


def test_a_controller_of_an_earlier_epoch_is_not_followed():
    """It was frozen, say, and has not noticed that it was deposed.

    Its changes would bring old leaders back.
    """

    async def story() -> None:
        world = World(Source(8), ignore)
        await world.until(world.follower.ready.is_set)
        path, data = state_write(TOPICS[0], 0, PartitionState(2, 6, (2,)))
        world.source.feed.publish([NodeData(path, data, 1)])
        await world.until(lambda: 0 in world.image.topics[TOPICS[0]].states)
        zombie = world.replace(Source(7))
        await world.until(lambda: zombie.answers == 3)
        assert world.image.topics[TOPICS[0]].states[0].leader == 2
        assert world.follower.controller_epoch == 8

    asyncio.run(story())


def test_the_snapshot_of_another_cluster_is_not_applied(caplog: pytest.LogCaptureFixture):
    """Topics that are not in it would be deleted. Its epoch must not outdate our controller's."""

    async def story() -> None:
        world = World(Source(8), ignore)
        await world.until(world.follower.ready.is_set)
        foreign = world.replace(Source(9, cluster="another"))
        await world.until(lambda: foreign.answers == 3)
        assert list(world.image.topics) == TOPICS
        assert world.follower.controller_epoch == 8
        assert caplog.text.count("it is the controller of cluster another") == 1

    asyncio.run(story())


def test_changes_that_could_not_be_followed_are_retried():
    """The image has them already, so the next snapshot shows no difference."""
    followed: list[Change] = []
    failures = [OSError("the disk"), None]

    async def on_changes(changes: Sequence[Change]) -> None:
        if not world.follower.ready.is_set():
            return
        if failures and (error := failures.pop(0)) is not None:
            raise error
        followed.extend(changes)

    async def story() -> None:
        nonlocal world
        world = World(Source(7), on_changes)
        await world.until(world.follower.ready.is_set)
        path, data = state_write(TOPICS[0], 0, PartitionState(2, 6, (2,)))
        after = world.replace(Source(8))
        after.feed = ControllerFeed(8, lambda: iter([*everything(), NodeData(path, data, 1)]))
        await world.until(lambda: bool(followed))
        assert followed == [Change(TOPICS[0])]

    world: World
    asyncio.run(story())
