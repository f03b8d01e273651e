"""The order of the requests of one connection: which requests wait for which."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.broker.net.responses import (
    Encoded,
    FinishedResponse,
    NoResponse,
    Outcome,
    Pipelined,
)
from millstream.wire.apis import APIS, BY_KEY, Pipelining
from support.broker.connections import Pair, frame, run

PRODUCE, FETCH, METADATA, CREATE_TOPICS = 0, 1, 3, 19


@dataclass(frozen=True)
class Kind:
    """A request as the connection sees it.

    ``decided``: the handler has decided it when it returns. ``answered``: its answer is there then.
    """

    key: int
    decided: bool = True
    answered: bool = False
    response: bool = True

    @property
    def pipelining(self) -> Pipelining:
        return BY_KEY[self.key].pipelining

    def outcome(self, request: Request) -> Outcome:
        if self.answered:
            return request.response()
        if self.pipelining is Pipelining.NONE:
            return request.answer()
        return self.pipelined(request) if self.decided else request.decide()

    def pipelined(self, request: Request) -> Pipelined:
        only_same = self.pipelining is Pipelining.SAME_API
        return Pipelined(request.answer(), self.key if only_same else None)


KINDS = {
    "metadata": Kind(METADATA, answered=True),
    "create topics": Kind(CREATE_TOPICS),
    "produce": Kind(PRODUCE, answered=True),
    "produce acks=0": Kind(PRODUCE, answered=True, response=False),
    "delayed produce": Kind(PRODUCE),
    "delayed produce acks=0": Kind(PRODUCE, response=False),
    "rebuilt produce": Kind(PRODUCE, decided=False),
    "fetch": Kind(FETCH, answered=True),
    "waiting fetch": Kind(FETCH),
    "cold fetch": Kind(FETCH, decided=False),
}


@dataclass
class Request:
    """One request of a sequence, with the gates that its handler waits at."""

    number: int
    kind: Kind
    decided: asyncio.Event = field(default_factory=asyncio.Event)
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def body(self) -> bytes:
        return self.kind.key.to_bytes(2, "big") + b"request %d" % self.number

    def response(self) -> FinishedResponse:
        return Encoded([frame(self.body)]) if self.kind.response else NoResponse()

    async def answer(self) -> FinishedResponse:
        await self.answered.wait()
        return self.response()

    async def decide(self) -> FinishedResponse | Pipelined:
        await self.decided.wait()
        return self.kind.pipelined(self)

    # ---- the rules ----

    @property
    def is_decided(self) -> bool:
        return self.kind.decided or self.decided.is_set()

    @property
    def is_answered(self) -> bool:
        return self.kind.answered or (self.is_decided and self.answered.is_set())

    def lets_pass(self, later: Request) -> bool:
        if self.is_answered:
            return True
        if not self.is_decided or self.kind.pipelining is Pipelining.NONE:
            return False
        return self.kind.pipelining is Pipelining.ANY or later.kind.key == self.kind.key

    @property
    def gates(self) -> list[asyncio.Event]:
        """The gate that the request waits at; at most one."""
        if not self.is_decided:
            return [self.decided]
        return [] if self.is_answered else [self.answered]


class Pipeline:
    """A pipelined sequence, and the requests that must be handled."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self.requests = [Request(number, KINDS[kind]) for number, kind in enumerate(kinds)]
        self.by_body = {request.body: request for request in self.requests}

    def handle(self, body: bytes) -> Outcome:
        request = self.by_body[body]
        return request.kind.outcome(request)

    @property
    def handled(self) -> list[Request]:
        """Exactly the requests that the rules let the broker handle by now."""
        for number, request in enumerate(self.requests):
            if not all(earlier.lets_pass(request) for earlier in self.requests[:number]):
                return self.requests[:number]
        return self.requests

    def bodies(self) -> list[bytes]:
        return [request.body for request in self.handled]


async def expect(pair: Pair, sequence: Pipeline) -> None:
    expected = sequence.bodies()
    await pair.until(lambda: len(pair.seen) >= len(expected))
    await pair.settle()
    assert pair.seen == expected


@settings(max_examples=150)
@given(
    kinds=st.lists(st.sampled_from(list(KINDS)), min_size=2, max_size=12),
    choices=st.lists(st.integers(0, 100), min_size=24, max_size=24),
    cut=st.integers(1, 400),
)
def test_request_waits_for_exactly_those_it_may_not_overtake(
    kinds: list[str], choices: list[int], cut: int
) -> None:
    """Whichever gate opens next, the requests handled are those that the rules allow."""

    async def test() -> None:
        sequence = Pipeline(kinds)
        pair = Pair(sequence.handle)
        data = b"".join(frame(request.body) for request in sequence.requests)
        for start in range(0, len(data), cut):
            await pair.write(data[start : start + cut])
            await asyncio.sleep(0)
        await expect(pair, sequence)
        for choice in choices:
            gates = [gate for request in sequence.handled for gate in request.gates]
            if not gates:
                break
            gates[choice % len(gates)].set()
            await expect(pair, sequence)
        assert sequence.handled == sequence.requests
        expected = [request.body for request in sequence.requests if request.kind.response]
        assert [await pair.receive() for _ in expected] == expected
        assert pair.connection.idle and not pair.connection.responses.tasks
        pair.close()

    run(test)


def test_only_these_apis_may_be_overtaken() -> None:
    exempt = {api.name: api.pipelining for api in APIS if api.pipelining is not Pipelining.NONE}
    between_brokers = ("AlterPartition", "Envelope", "AllocateProducerIds", "ControllerFeed")
    assert exempt == {
        "Produce": Pipelining.SAME_API,
        **dict.fromkeys(("Fetch", "JoinGroup", "SyncGroup", "WriteTxnMarkers"), Pipelining.ANY),
        **dict.fromkeys(between_brokers, Pipelining.ANY),
    }


# ---- the end ----


class Holding:
    """A handler whose requests never end, unless a test makes them fail."""

    def __init__(self) -> None:
        self.gate: asyncio.Future[FinishedResponse] = asyncio.get_running_loop().create_future()
        self.ended: list[bytes] = []

    async def __call__(self, body: bytes) -> FinishedResponse:
        try:
            return await self.gate
        finally:
            self.ended.append(body)


def test_request_is_cancelled_when_its_client_disconnects() -> None:
    async def test() -> None:
        holding = Holding()
        pair = Pair(holding)
        await pair.send(b"request 1")
        await pair.until(lambda: pair.seen)
        pair.client.close()
        await pair.until(lambda: holding.ended)
        assert pair.closed == 1

    run(test)


def test_disconnect_behind_pipelined_requests_is_noticed_by_the_sweep() -> None:
    async def test() -> None:
        holding = Holding()
        pair = Pair(holding)
        await pair.send(b"request 1", b"request 2")
        await pair.until(lambda: pair.connection.paused)
        assert not pair.connection.has_unnoticed_disconnect
        pair.client.close()
        await pair.until(lambda: pair.connection.has_unnoticed_disconnect)
        pair.connection.close()
        await pair.until(lambda: holding.ended)
        assert pair.seen == holding.ended == [b"request 1"]

    run(test)


@pytest.mark.parametrize("how", ["error", "cancelled"])
def test_requests_behind_a_failed_one_are_not_handled(how: str) -> None:
    async def test() -> None:
        holding = Holding()
        pair = Pair(holding)
        await pair.send(b"request 1", b"request 2")
        await pair.until(lambda: pair.seen)
        if how == "cancelled":
            holding.gate.cancel()
        else:
            holding.gate.set_exception(KeyError("a bug"))
        assert await pair.receive() == b""
        assert (pair.seen, pair.closed) == ([b"request 1"], 1)
        pair.client.close()

    run(test)


@pytest.mark.parametrize("kind", ["create topics", "delayed produce"])
def test_finish_drops_requests_that_are_not_handled_yet(kind: str) -> None:
    async def test() -> None:
        sequence = Pipeline([kind, "metadata"])
        pair = Pair(sequence.handle)
        first, second = sequence.requests
        await pair.send(first.body, second.body)
        await pair.until(lambda: pair.seen)
        pair.connection.finish()
        await pair.settle()
        first.answered.set()
        assert [await pair.receive(), await pair.receive()] == [first.body, b""]
        assert pair.seen == [first.body]
        pair.client.close()

    run(test)


def test_large_requests_behind_a_held_one_arrive_complete() -> None:
    """The receive buffer is full while the connection is held: no bytes may be lost."""

    async def test() -> None:
        gate = asyncio.Event()

        def handle(body: bytes) -> Outcome:
            async def later() -> FinishedResponse:
                await gate.wait()
                return Encoded([frame(body)])

            return later() if body.startswith(b"held") else Encoded([frame(body)])

        pair = Pair(handle)
        bodies = [
            b"held" + bytes(60_000),
            bytes(300_000),
            b"held again" * 40_000,
            bytes(70_000),
            b"the last one",
        ]
        writing = asyncio.ensure_future(pair.send(*bodies))
        await pair.until(lambda: pair.seen)
        await pair.settle()
        assert pair.seen == bodies[:1]
        gate.set()
        assert [await pair.receive() for _ in bodies] == bodies
        await writing
        pair.close()

    run(test)
