"""queued.max.request.bytes: large requests wait for memory, small ones do not,
without deadlocks.
"""

from __future__ import annotations

import asyncio
import gc
import mmap
import sys
import tracemalloc
import weakref

import pytest

from millstream.broker.handlers import produce
from millstream.broker.net import buffers, request_memory
from millstream.broker.net.buffers import SMALL, BufferPool
from millstream.broker.net.request_memory import RequestMemory, limit_of, machine_memory
from millstream.broker.net.responses import NoResponse
from millstream.core.config import BrokerConfig
from millstream.core.errors import ErrorCode
from millstream.core.settings import SettingError
from millstream.sim.world.disk import SimDisk
from millstream.wire.records.batch import Record, build_batch
from support.broker.connections import Pair, run
from support.in_process import InProcessBroker
from support.processes import memory_mib
from support.raw import RawClient, create_topic, produce_request

MIB = 1 << 20


def pair_of(memory: RequestMemory) -> Pair:
    return Pair(lambda body: NoResponse(), max_request_bytes=64 * MIB, memory=memory)


def head(size: int) -> bytes:
    return size.to_bytes(4, "big")


async def begin(pair: Pair, size: int, arrived: int) -> None:
    """Send the first bytes of a frame, and wait until they are received or reading stops."""
    await pair.write(head(size) + bytes(arrived - 4))
    await pair.until(
        lambda: (
            pair.connection.receiving.received_bytes == arrived or pair.connection.receiving.starved
        )
    )


def test_incomplete_frames_count_with_their_received_bytes() -> None:
    async def test() -> None:
        memory = RequestMemory(limit=64 * MIB)
        pair = pair_of(memory)
        await begin(pair, 20 * MIB, 100_000)
        assert memory.used == 100_000
        await pair.write(bytes(20 * MIB - 100_000 + 4))
        await pair.until(lambda: pair.seen)
        assert len(pair.seen[0]) == 20 * MIB and memory.used == 0
        await begin(pair, MIB, 200_000)
        pair.close()
        assert memory.used == 0

    run(test)


def test_large_frames_wait_while_a_held_request_fills_the_memory() -> None:
    async def test() -> None:
        memory = RequestMemory(limit=MIB)
        waiting, small = pair_of(memory), pair_of(memory)
        with memory.holding(2 * MIB):
            await waiting.write(head(3 * SMALL) + bytes(SMALL))
            await waiting.until(lambda: waiting.connection.receiving.starved)
            await waiting.write(bytes(2 * SMALL))
            await small.send(b"heartbeat")  # a small frame is handled all the same
            await small.until(lambda: small.seen)
            assert waiting.seen == []
        await waiting.until(lambda: waiting.seen)
        assert memory.used == 0 and not memory.crowded
        waiting.close()
        small.close()

    run(test)


def test_frame_larger_than_the_limit_passes_alone() -> None:
    async def test() -> None:
        memory = RequestMemory(limit=MIB)
        pair = pair_of(memory)
        for _ in range(2):
            await pair.send(bytes(5 * MIB))
        await pair.until(lambda: len(pair.seen) == 2)
        assert memory.used == 0 and not memory.crowded
        pair.close()

    run(test)


def test_incomplete_frames_that_fill_the_memory_are_completed_in_turn() -> None:
    async def test() -> None:
        memory = RequestMemory(limit=MIB)
        pairs = [pair_of(memory) for _ in range(8)]
        size, arrived = 4 * SMALL, 3 * SMALL
        for pair in pairs:
            await begin(pair, size, arrived)
        assert memory.used > memory.limit
        for pair in pairs:
            await pair.write(bytes(size + 4 - arrived))
        for pair in pairs:
            await pair.until(lambda pair=pair: pair.seen)
        assert memory.used == 0 and not memory.crowded
        for pair in pairs:
            pair.close()

    run(test)


def test_stalled_favoured_client_is_replaced_by_the_next() -> None:
    """The favoured connection sends nothing more: the others are served, and later it is too."""

    async def test() -> None:
        memory = RequestMemory(limit=MIB)
        stalled, other = pair_of(memory), pair_of(memory)
        await begin(stalled, 4 * MIB, 2 * MIB)
        assert (
            not stalled.connection.receiving.starved
        )  # above the limit and alone: the favoured one
        await other.send(bytes(MIB))
        await other.until(lambda: other.seen)
        await stalled.write(bytes(2 * MIB + 4))
        await stalled.until(lambda: stalled.seen)
        assert memory.used == 0 and not memory.crowded
        stalled.close()
        other.close()

    run(test)


def test_silent_clients_take_at_most_one_request_above_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is favoured in turn. Without memory for another one, the silent ones are closed."""
    monkeypatch.setattr(request_memory, "_STALLED_S", 0.01)
    monkeypatch.setattr(request_memory, "_GIVE_UP_S", 0.05)

    async def test() -> None:
        memory = RequestMemory(limit=MIB, largest_request=2 * MIB)
        silent, sender = [pair_of(memory) for _ in range(10)], pair_of(memory)
        for pair in silent:
            await begin(
                pair, 2 * MIB, 2 * SMALL
            )  # then each has more to read than it is favoured for
        writing = [asyncio.ensure_future(pair.write(bytes(MIB))) for pair in silent]
        writing.append(asyncio.ensure_future(sender.send(bytes(2 * MIB))))
        most = 0

        def served() -> bool:
            nonlocal most
            most = max(most, memory.used)
            return bool(sender.seen)

        await sender.until(served)
        # The last one that was favoured below that mark may have read all it was sent.
        assert most <= memory.hard_limit + 2 * MIB
        assert any(pair.closed for pair in silent)
        for task in writing:
            task.cancel()
        await asyncio.gather(*writing, return_exceptions=True)
        for pair in (*silent, sender):
            pair.close()
        assert memory.used == 0 and not memory.crowded

    run(test)


def test_closed_connections_leave_their_place() -> None:
    async def test() -> None:
        memory = RequestMemory(limit=MIB)
        pairs = [pair_of(memory) for _ in range(3)]
        for pair in pairs:
            await begin(pair, 4 * MIB, MIB)
        pairs[0].close()
        pairs[1].close()
        await pairs[2].write(bytes(3 * MIB + 4))
        await pairs[2].until(lambda: pairs[2].seen)
        pairs[2].close()
        assert memory.used == 0 and not memory.crowded

    run(test)


def test_large_buffer_takes_memory_only_as_it_fills() -> None:
    import os

    pool = BufferPool()
    before = memory_mib(os.getpid())
    buffers = [pool.take(64 * MIB) for _ in range(8)]
    assert [len(buffer) for buffer in buffers] == [64 * MIB] * 8
    assert memory_mib(os.getpid()) - before < 64


@pytest.mark.parametrize(
    ("text", "limit"),
    [(None, None), ("-1", sys.maxsize), ("0", sys.maxsize), ("209715200", 209_715_200)],
)
def test_limit_is_a_share_of_memory_unless_it_is_set(text: str | None, limit: int | None) -> None:
    config = BrokerConfig.from_texts({"queued.max.request.bytes": text} if text is not None else {})
    largest = config.integer("socket.request.max.bytes")
    expected = max(machine_memory() // 4, largest) if limit is None else limit
    assert limit_of(config.get("queued.max.request.bytes"), largest) == expected


def test_limit_below_the_largest_request_is_rejected() -> None:
    with pytest.raises(SettingError, match=r"socket\.request\.max\.bytes"):
        BrokerConfig.from_texts({"queued.max.request.bytes": "1000"})


@pytest.mark.parametrize("count", [4, 20])
def test_rejected_conversions_release_their_memory(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the garbage collector, which runs rarely in a broker.

    Large copies are memory maps, which tracemalloc does not see.
    """
    # Records without keys are refused by a compacted topic, and only the child process finds that
    # out.
    batch = build_batch([Record(n, 0, None, bytes(100_000), ()) for n in range(count)])
    maps: list[weakref.ref[mmap.mmap]] = []

    def copy_of(data: memoryview) -> memoryview:
        copy = buffers.copy_of(data)
        if isinstance(copy.obj, mmap.mmap):
            maps.append(weakref.ref(copy.obj))
        return copy

    monkeypatch.setattr(produce, "copy_of", copy_of)
    with (
        InProcessBroker({"log.dirs": "/data"}, files=SimDisk()) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        create_topic(client, "compacted", cleanup_policy="compact", max_message_bytes=10 * MIB)

        def refuse() -> None:
            answer = client.call(produce_request("compacted", 0, batch), 9)
            assert answer.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_RECORD

        refuse()
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(10):
                refuse()
            after, _ = tracemalloc.get_traced_memory()
            assert len(maps) == (11 if count == 20 else 0)
            assert [reference for reference in maps if reference() is not None] == []
        finally:
            tracemalloc.stop()
            gc.enable()
        assert after - before < len(batch)
        assert broker.run(lambda: broker.broker.parts.request_memory.used) == 0
