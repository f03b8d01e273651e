"""Requests to one broker are batched while the last one is in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from millstream.cluster.request_batching import Batches
from millstream.core.errors import ApiError, ErrorCode

Item = tuple[str, int]


class Other:
    """The other side: records what it gets, and responds when released."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, list[Item]]] = []
        self.answers: list[asyncio.Future[Exception | None]] = []
        self.batches: Batches[int, Item, str] = Batches(self._send, name=lambda item: item[0])

    async def _send(self, to: int, items: Sequence[Item]) -> Mapping[object, str]:
        self.sent.append((to, list(items)))
        self.answers.append(asyncio.get_running_loop().create_future())
        error = await self.answers[-1]
        if error is not None:
            raise error
        return {name: f"{name}{number}" for name, number in items if name != "untold"}

    def ask(self, to: int, item: Item) -> asyncio.Task[str]:
        return asyncio.get_running_loop().create_task(self.batches.ask(to, item))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_items_are_batched_while_a_request_is_in_flight() -> None:
    async def story() -> None:
        other = Other()
        first = other.ask(1, ("a", 1))
        await settle()
        later = [other.ask(1, ("b", 2)), other.ask(1, ("c", 3))]
        elsewhere = other.ask(2, ("d", 4))
        await settle()
        assert other.sent == [(1, [("a", 1)]), (2, [("d", 4)])]
        other.answers[0].set_result(None)
        await settle()
        assert other.sent[2:] == [(1, [("b", 2), ("c", 3)])]
        other.answers[1].set_result(None)
        other.answers[2].set_result(None)
        assert await asyncio.gather(first, *later, elsewhere) == ["a1", "b2", "c3", "d4"]

    asyncio.run(story())


def test_a_request_has_each_name_once() -> None:
    async def story() -> None:
        other = Other()
        asked = [other.ask(1, ("a", 1)), other.ask(1, ("a", 2)), other.ask(1, ("b", 3))]
        await settle()
        assert other.sent == [(1, [("a", 1), ("b", 3)])]
        other.answers[0].set_result(None)
        await settle()
        assert other.sent[1:] == [(1, [("a", 2)])]
        other.answers[1].set_result(None)
        assert await asyncio.gather(*asked) == ["a1", "a2", "b3"]

    asyncio.run(story())


@pytest.mark.parametrize("error", [ConnectionError("gone"), ApiError(ErrorCode.NOT_COORDINATOR)])
def test_a_failed_request_fails_its_items_only(error: Exception) -> None:
    async def story() -> None:
        other = Other()
        failing = [other.ask(1, ("a", 1)), other.ask(1, ("b", 2))]
        await settle()
        after = other.ask(1, ("c", 3))
        other.answers[0].set_result(error)
        assert await asyncio.gather(*failing, return_exceptions=True) == [error, error]
        await settle()
        other.answers[1].set_result(None)
        assert await after == "c3"

    asyncio.run(story())


def test_an_item_without_a_result_fails() -> None:
    async def story() -> None:
        other = Other()
        asked = other.ask(1, ("untold", 1))
        await settle()
        other.answers[0].set_result(None)
        with pytest.raises(ConnectionError):
            await asked

    asyncio.run(story())


def test_a_cancelled_item_is_not_sent() -> None:
    async def story() -> None:
        other = Other()
        first = other.ask(1, ("a", 1))
        await settle()
        given_up = other.ask(1, ("b", 2))
        await settle()
        given_up.cancel()
        await settle()
        other.answers[0].set_result(None)
        assert await first == "a1"
        await settle()
        assert other.sent == [(1, [("a", 1)])]

    asyncio.run(story())


def test_close_cancels_waiting_items() -> None:
    async def story() -> None:
        other = Other()
        asked = [other.ask(1, ("a", 1)), other.ask(1, ("a", 2))]
        await settle()
        other.batches.close()
        done = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(result) for result in done] == [asyncio.CancelledError] * 2

    asyncio.run(story())
