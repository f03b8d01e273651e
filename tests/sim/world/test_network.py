"""The simulated network: bytes arrive in order, and partitions, crashes and resets look as they do
to TCP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millstream.ports.network import Stream
from millstream.sim.world.isolation import isolated
from millstream.sim.world.machines import World
from millstream.sim.world.network import HostNetwork


class Pair:
    """Two hosts, a listener on one of them, and a connection once ``connect`` has been called."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.network = self.world.network
        self.client = self.world.process("client")
        self.server = HostNetwork(self.network, "server", self.client.loop)
        self.accepted: list[Stream] = []
        self.listener = self.server.listen("server", 9092, self.accepted.append)

    async def connect(self) -> tuple[Stream, Stream]:
        self.listener.start()
        mine = await self.client.network.connect("server", 9092, 5.0)
        await asyncio.sleep(1)
        return mine, self.accepted[-1]

    def run(self, story: Callable[[Pair], Awaitable[None]]) -> None:
        scheduler = self.world.scheduler
        with isolated(scheduler, 1):
            task = self.client.start(story(self))  # type: ignore[arg-type]
            scheduler.run_until(task.done, 1000)
            task.result()
            assert not scheduler.errors


def read(stream: Stream) -> bytes:
    """Return the bytes that have arrived; raise the error of the stream."""
    buffer, data = bytearray(65536), b""
    while count := stream.receive_into(memoryview(buffer)):
        data += buffer[:count]
    return data


def told(stream: Stream) -> list[str]:
    calls: list[str] = []

    def readable() -> None:
        calls.append("readable")
        stream.watch_readable(None)

    stream.watch_readable(readable)
    return calls


def test_bytes_arrive_later_and_in_order() -> None:
    async def story(pair: Pair) -> None:
        mine, theirs = await pair.connect()
        calls = told(theirs)
        sent = b"".join(b"%06d" % n for n in range(500))
        for start in range(0, len(sent), 100):
            assert mine.send([sent[start : start + 40], sent[start + 40 : start + 100]]) == 100
        assert read(theirs) == b""
        await asyncio.sleep(5)
        assert calls == ["readable"] and read(theirs) == sent

    Pair().run(story)


def test_sender_waits_for_a_receiver_that_does_not_read() -> None:
    async def story(pair: Pair) -> None:
        mine, theirs = await pair.connect()
        sent = 0
        while count := mine.send([bytes(50_000)]):
            sent += count
        writable: list[str] = []
        mine.watch_writable(lambda: (writable.append("now"), mine.watch_writable(None)))  # type: ignore[func-returns-value]
        await asyncio.sleep(1)
        assert writable == []
        assert len(read(theirs)) == sent
        await asyncio.sleep(1)
        assert writable == ["now"] and mine.send([b"more"]) == 4

    Pair().run(story)


def test_close_arrives_after_the_bytes_sent_before() -> None:
    async def story(pair: Pair) -> None:
        mine, theirs = await pair.connect()
        mine.send([b"last words"])
        mine.close()
        await asyncio.sleep(1)
        assert theirs.peer_is_gone()
        assert read(theirs) == b"last words"
        assert theirs.receive_into(memoryview(bytearray(10))) == 0
        with pytest.raises(BrokenPipeError):
            mine.send([b"x"])

    Pair().run(story)


def test_connection_without_a_listener_is_refused() -> None:
    async def story(pair: Pair) -> None:
        with pytest.raises(ConnectionRefusedError):
            await pair.client.network.connect("server", 9092, 5.0)
        pair.listener.start()
        pair.network.cut("client", "server")
        with pytest.raises(TimeoutError):
            await pair.client.network.connect("server", 9092, 5.0)
        pair.network.heal()
        pair.network.machine_died("server")
        with pytest.raises(TimeoutError):
            await pair.client.network.connect("server", 9092, 5.0)

    Pair().run(story)


def test_bytes_on_a_partitioned_link_arrive_after_it_heals() -> None:
    async def story(pair: Pair) -> None:
        mine, theirs = await pair.connect()
        pair.network.cut("client", "server")
        mine.send([b"a"])
        theirs.send([b"the other way"])
        mine.send([b"b"])
        await asyncio.sleep(5)
        assert read(theirs) == b"" and read(mine) == b"the other way"
        pair.network.heal("client", "server")
        mine.send([b"c"])
        await asyncio.sleep(5)
        assert read(theirs) == b"abc"

    Pair().run(story)


def test_sender_on_a_partitioned_link_gives_up_alone() -> None:
    async def story(pair: Pair) -> None:
        mine, theirs = await pair.connect()
        calls = told(mine)
        pair.network.cut("client", "server")
        mine.send([b"lost"])
        await asyncio.sleep(30)
        assert calls == ["readable"] and mine.peer_is_gone()
        with pytest.raises(TimeoutError):
            read(mine)
        assert not theirs.peer_is_gone() and read(theirs) == b""

    Pair().run(story)


def test_kernel_closes_the_connections_of_a_killed_process() -> None:
    for seed in range(5):

        async def story(pair: Pair) -> None:
            mine, _theirs = await pair.connect()
            pair.network.process_died("server")
            await asyncio.sleep(1)
            assert mine.peer_is_gone()
            with pytest.raises(ConnectionRefusedError):
                await pair.client.network.connect("server", 9092, 5.0)

        Pair(seed).run(story)


def test_crashed_machine_is_silent_and_resets_after_its_return() -> None:
    async def story(pair: Pair) -> None:
        mine, _theirs = await pair.connect()
        pair.network.machine_died("server")
        await asyncio.sleep(60)
        assert not mine.peer_is_gone()
        pair.network.machine_started("server")
        mine.send([b"are you there?"])
        await asyncio.sleep(1)
        with pytest.raises(ConnectionResetError):
            read(mine)

    Pair().run(story)


def test_resets_reach_both_ends() -> None:
    async def story(pair: Pair) -> None:
        mine, theirs = await pair.connect()
        assert pair.network.reset_some(1.0) == 1
        for stream in (mine, theirs):
            with pytest.raises(ConnectionResetError):
                read(stream)

    Pair().run(story)


def test_a_slow_link_is_slow_in_one_direction() -> None:
    async def story(pair: Pair) -> None:
        mine, theirs = await pair.connect()
        pair.network.slow_down("client", "server", 10.0)
        mine.send([b"slow"])
        theirs.send([b"quick"])
        await asyncio.sleep(5)
        assert read(theirs) == b"" and read(mine) == b"quick"
        await asyncio.sleep(6)
        assert read(theirs) == b"slow"

    Pair().run(story)
