"""Producer ids are at hand before they are needed, and whoever has to wait for them waits with the others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from millstream.cluster.controller import client
from millstream.cluster.controller.client import ControllerClient
from millstream.cluster.coordinators.producer_ids import ProducerIds
from millstream.cluster.membership.member import ClusterMember
from millstream.core.errors import ApiError, ErrorCode

BLOCK = 1000


class Controller:
    """Gives blocks while ``there`` is set, and counts how often it was asked."""

    def __init__(self) -> None:
        self.there = True
        self.asked = 0

    async def allocate(self) -> range:
        self.asked += 1
        start = (self.asked - 1) * BLOCK
        await asyncio.sleep(0)
        if not self.there:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return range(start, start + BLOCK)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_ids_are_there_when_the_controller_is_not() -> None:
    async def test() -> None:
        controller = Controller()
        ids = ProducerIds(controller.allocate)
        keeper = asyncio.create_task(ids.keep_ahead())
        await settle()
        assert controller.asked == 1
        given = [await ids.next_id() for _ in range(BLOCK - 200)]
        await settle()
        assert controller.asked == 1, "enough is left"
        given += [await ids.next_id() for _ in range(150)]
        await settle()
        assert controller.asked == 2
        controller.there = False
        given += [await ids.next_id() for _ in range(BLOCK)]
        assert given == list(range(len(given)))
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)

    asyncio.run(test())


def test_nothing_is_asked_for_ahead_where_nobody_keeps_it() -> None:
    async def test() -> None:
        controller = Controller()
        ids = ProducerIds(controller.allocate)
        given = await asyncio.gather(*(ids.next_id() for _ in range(BLOCK)))
        await settle()
        assert (sorted(given), controller.asked) == (list(range(BLOCK)), 1)

    asyncio.run(test())


def test_those_who_wait_share_one_allocation_and_its_failure() -> None:
    async def test() -> None:
        controller = Controller()
        controller.there = False
        ids = ProducerIds(controller.allocate)
        results = await asyncio.gather(*(ids.next_id() for _ in range(5)), return_exceptions=True)
        assert all(isinstance(one, ApiError) for one in results)
        assert controller.asked == 1

        controller.there = True
        hasty, patient = (asyncio.create_task(ids.next_id()) for _ in range(2))
        await asyncio.sleep(0)
        hasty.cancel()
        assert await patient == BLOCK
        assert (hasty.cancelled(), controller.asked) == (True, 2)

    asyncio.run(test())


def test_ids_that_are_in_use_are_not_handed_out_again() -> None:
    """The metadata was put back from a copy: it says that they were not handed out."""

    async def test() -> None:
        controller = Controller()
        ids = ProducerIds(controller.allocate)
        ids.stay_above(2 * BLOCK + 4)
        assert await ids.next_id() == 2 * BLOCK + 5
        controller.asked = 0
        given = [await ids.next_id() for _ in range(BLOCK)]
        assert given == list(range(2 * BLOCK + 6, 3 * BLOCK + 6))

    asyncio.run(test())


def test_a_client_is_told_that_it_will_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older Java producers end when InitProducerId is answered with NOT_CONTROLLER."""
    monkeypatch.setattr(client, "_PRODUCER_IDS_TIMEOUT_S", 0.0)

    async def nowhere() -> tuple[str, int]:
        raise ApiError(ErrorCode.NOT_CONTROLLER, "there is no connection to ZooKeeper")

    alone = SimpleNamespace(
        node_id=1,
        broker_epoch=1,
        state=SimpleNamespace(active=False),
        controller_address=nowhere,
        request_timeout_s=1.0,
    )
    with pytest.raises(ApiError) as caught:
        asyncio.run(ControllerClient(cast(ClusterMember, alone)).allocate_producer_ids())
    assert caught.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
