"""Producer ids are allocated ahead of need, and concurrent requests share an allocation."""

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
    """Allocates blocks while ``there`` is set, and counts the requests."""

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


def test_ids_are_available_without_a_controller() -> None:
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


def test_without_keep_ahead_ids_are_fetched_on_demand() -> None:
    async def test() -> None:
        controller = Controller()
        ids = ProducerIds(controller.allocate)
        given = await asyncio.gather(*(ids.next_id() for _ in range(BLOCK)))
        await settle()
        assert (sorted(given), controller.asked) == (list(range(BLOCK)), 1)

    asyncio.run(test())


def test_concurrent_requests_share_an_allocation_and_its_failure() -> None:
    async def test() -> None:
        controller = Controller()
        controller.there = False
        ids = ProducerIds(controller.allocate)
        results = await asyncio.gather(*(ids.next_id() for _ in range(5)), return_exceptions=True)
        assert all(isinstance(result, ApiError) for result in results)
        assert controller.asked == 1

        controller.there = True
        hasty, patient = (asyncio.create_task(ids.next_id()) for _ in range(2))
        await asyncio.sleep(0)
        hasty.cancel()
        assert await patient == BLOCK
        assert (hasty.cancelled(), controller.asked) == (True, 2)

    asyncio.run(test())


def test_ids_in_use_are_not_allocated_again() -> None:
    """The metadata was restored from a backup, and does not know that they are in use."""

    async def test() -> None:
        controller = Controller()
        ids = ProducerIds(controller.allocate)
        ids.stay_above(2 * BLOCK + 4)
        assert await ids.next_id() == 2 * BLOCK + 5
        controller.asked = 0
        given = [await ids.next_id() for _ in range(BLOCK)]
        assert given == list(range(2 * BLOCK + 6, 3 * BLOCK + 6))

    asyncio.run(test())


def test_a_client_gets_a_retriable_error_without_a_controller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
