"""The writes of a controller's term: fenced by its epoch, run to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from millstream.control import znodes
from millstream.control.znodes import PartitionState
from millstream.core.errors import ApiError, ErrorCode
from millstream.ports.coordination import Delete, Put, TooLarge, Write
from support.cluster.controller_world import T0, World, on


def test_a_deposed_controller_changes_nothing():
    async def test(world: World) -> None:
        await world.store.multi([Put(znodes.CONTROLLER_EPOCH, b"4")])
        doubts: list[bool] = []
        world.state.on_doubt = lambda: doubts.append(True)
        with pytest.raises(ApiError) as refused:
            await world.propose((1, 10), (2, 20))
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        assert not world.state.active and doubts == [True]
        assert await world.durable() == PartitionState(1, 5, (1, 2, 3), 1, 0)

    async def run() -> None:
        await test(await World().open())

    asyncio.run(run())


def test_a_change_that_is_too_large_is_rejected_and_the_term_continues():
    async def too_large(writes: Sequence[Write]) -> None:
        raise TooLarge("1 operation")

    async def test(world: World) -> None:
        world.store.multi = too_large  # type: ignore[method-assign]
        with pytest.raises(ApiError) as refused:
            await world.state.commit([(znodes.topic_config_path("t"), znodes.encode_config({}))])
        assert refused.value.code is ErrorCode.INVALID_REQUEST
        assert world.state.active

    on(test)


def test_a_store_without_the_epoch_ends_the_term_not_the_broker():
    async def run() -> None:
        world = await World().open()
        await world.store.multi([Delete(znodes.CONTROLLER_EPOCH)])
        with pytest.raises(ApiError) as refused:
            await world.propose((1, 10), (2, 20))
        assert refused.value.code is ErrorCode.NOT_CONTROLLER and not world.state.active

    asyncio.run(run())


@pytest.mark.parametrize("what", ["a proposal", "a failed directory", "a stop"])
def test_a_change_finishes_when_its_caller_is_cancelled(what: str):
    """Otherwise the change is in the store and not in the image.

    The next controller would then read another state, and a broker's report would seem handled.
    """

    async def test(world: World) -> None:
        asks = {
            "a proposal": lambda: world.propose((1, 10), (2, 20)),
            "a failed directory": lambda: world.partitions.brokers.replicas_offline(
                1, 10, frozenset({T0})
            ),
            "a stop": lambda: world.partitions.brokers.stop_broker(1, 10),
        }
        written, write = asyncio.Event(), world.store.multi

        async def slow(writes: Sequence[Write]) -> None:
            await write(writes)
            written.set()
            await asyncio.sleep(0)

        world.store.multi = slow  # type: ignore[method-assign]
        request = asyncio.ensure_future(asks[what]())
        await written.wait()
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await world.state.close()
        assert await world.durable() == world.now
        assert world.now.partition_epoch == 1

    on(test)
