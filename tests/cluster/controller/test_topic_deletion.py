"""Deletions of topics: many and large ones, interrupted ones, and the life of their records."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

import pytest

from millstream.cluster.controller import topic_deletion
from millstream.cluster.controller.changes import Controller
from millstream.control import znodes
from millstream.control.image import ClusterImage
from millstream.control.topics import NewTopic
from millstream.core.config import BrokerConfig
from millstream.core.errors import ApiError, ErrorCode
from millstream.ports.coordination import Delete, Write
from support.cluster.controller_world import World, broker, on


def controller_of(world: World) -> Controller:
    world.term.feed.close()  # no broker follows in this test: do not wait
    return Controller(world.state, BrokerConfig({}), new_id=lambda: os.urandom(16))


def ids_of(world: World, *names: str) -> dict[str, bytes]:
    return {name: world.state.image.topics[name].topic_id for name in names}


async def read_again(world: World) -> ClusterImage:
    """Return the image that the next controller reads."""
    image = ClusterImage()
    for path, node in sorted((await world.store.load()).items()):
        image.apply(path, node.data, node.version)
    return image


def test_topics_are_deleted_together_up_to_the_size_of_a_write() -> None:
    async def test(world: World) -> None:
        controller = controller_of(world)
        await controller.create_topics([NewTopic(name, 3, 3) for name in "abcd"])
        batches = topic_deletion.batches(world.state.image, "abcd", 6)
        assert list(batches) == [["a", "b"], ["c", "d"]]
        assert list(topic_deletion.batches(world.state.image, "abc", 2)) == [["a"], ["b"], ["c"]]

    on(test)


def test_a_large_topic_is_deleted_in_slices_and_published_once() -> None:
    async def test(world: World) -> None:
        controller = controller_of(world)
        await controller.create_topics([NewTopic("large", 10, 3)])
        topic_id = world.state.image.topics["large"].topic_id
        before = world.term.feed.position
        await topic_deletion.delete_batch(world.state, ["large"], partitions_at_once=4)
        assert "large" not in world.state.image.topics
        assert world.state.image.being_deleted == {"large": [topic_id]}
        assert world.term.feed.position == before + 2, "the note, and that it is gone"
        found = await read_again(world)
        assert "large" not in found.topics and found.being_deleted == {"large": [topic_id]}

    on(test)


@pytest.mark.parametrize("writes_before", [1, 2])
def test_an_interrupted_deletion_is_finished_by_the_next_controller(writes_before: int) -> None:
    """This happens before its partitions get a state: they would start over with an old epoch."""

    async def test(world: World) -> None:
        controller = controller_of(world)
        await controller.create_topics([NewTopic("large", 10, 3)])
        topic_id = world.state.image.topics["large"].topic_id
        write, count = world.store.multi, 0

        async def fall(writes: Sequence[Write]) -> None:
            nonlocal count
            count += 1
            if count > writes_before:
                raise OSError("the controller fell here")
            await write(writes)

        world.store.multi = fall  # type: ignore[method-assign]
        with pytest.raises(ApiError):
            await topic_deletion.delete_batch(world.state, ["large"], partitions_at_once=4)
        world.store.multi = write  # type: ignore[method-assign]
        world.state.image.become(await read_again(world))
        for node in (1, 2, 3):
            data = znodes.encode_broker(broker(node), now_ms=0)
            world.state.image.apply(znodes.broker_path(node), data, node * 10)
        assert "large" in world.state.image.topics
        await world.partitions.brokers.reconcile()
        assert "large" not in world.state.image.topics
        assert world.state.image.being_deleted == {"large": [topic_id]}
        assert not [
            path for path in await world.store.load() if path.startswith(znodes.topic_path("large"))
        ]

    on(test)


def test_a_slice_of_a_deletion_is_not_published() -> None:
    """The image would take the deletion of a partition's node for that of its topic."""

    async def test(world: World) -> None:
        controller = controller_of(world)
        await controller.create_topics([NewTopic("large", 10, 3)])
        write, seen = world.store.multi, []

        async def look(writes: Sequence[Write]) -> None:
            await write(writes)
            if any(isinstance(write, Delete) and "/partitions/" in write.path for write in writes):
                seen.append("large" in world.state.image.topics)

        world.store.multi = look  # type: ignore[method-assign]
        await topic_deletion.delete_batch(world.state, ["large"], partitions_at_once=4)
        assert seen == [True]

    on(test)


def test_the_record_of_a_concurrent_deletion_is_kept() -> None:
    """The second topic of a name is deleted while the record of the first is being dropped."""

    async def test(world: World) -> None:
        controller = controller_of(world)
        await controller.create_topics([NewTopic("x", 1, 3)])
        await controller.delete_topics(ids_of(world, "x"))
        await controller.create_topics([NewTopic("x", 1, 3)])
        second = ids_of(world, "x")["x"]
        gone = {name: list(ids) for name, ids in world.state.image.being_deleted.items()}
        async with world.state.lock:  # some other change
            deleting = asyncio.ensure_future(controller.delete_topics({"x": second}))
            await asyncio.sleep(0)
            forgetting = asyncio.ensure_future(controller.forget_deleted(gone))
            await asyncio.sleep(0)
        await asyncio.gather(deleting, forgetting)
        assert second in world.state.image.being_deleted["x"]
        await controller.forget_deleted(dict(world.state.image.being_deleted))
        assert not world.state.image.being_deleted

    on(test)


def test_colliding_names_are_rejected_even_in_one_request() -> None:
    async def test(world: World) -> None:
        made = await controller_of(world).create_topics(
            [NewTopic("a.b", 1, 1), NewTopic("a_b", 1, 1)]
        )
        assert [outcome.code for outcome in made.values()] == [
            ErrorCode.NONE,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        ]

    on(test)
