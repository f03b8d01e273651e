"""One connection: frames in any pieces, responses in order, and limits on pending work."""

from __future__ import annotations

import asyncio
import errno
import gc
import random
import time
import warnings

import pytest

from millstream.broker.net.buffers import SMALL
from millstream.broker.net.connection import Connection
from millstream.broker.net.responses import CloseConnection, Encoded, NoResponse, Pipelined
from millstream.ports.files import FileSlice
from millstream.sim.world.disk import SimDisk, io_error
from support.broker.connections import Pair, frame, run

MIB = 1 << 20


class DelayingHandler:
    """A handler that delays requests that begin with ``wait``, pipelined, until
    they are released.
    """

    def __init__(self) -> None:
        self.waiting: dict[bytes, asyncio.Future[Encoded | NoResponse]] = {}
        self.cancelled: list[bytes] = []

    def __call__(self, body: bytes):
        if not body.startswith(b"wait"):
            return Encoded([frame(body)])
        self.waiting[body] = asyncio.get_running_loop().create_future()
        return Pipelined(self._wait(body))

    async def _wait(self, body: bytes) -> Encoded | NoResponse:
        try:
            return await self.waiting[body]
        except asyncio.CancelledError:
            self.cancelled.append(body)
            raise

    def release(self, body: bytes, answer: Encoded | NoResponse | None = None) -> None:
        self.waiting[body].set_result(answer or Encoded([frame(body)]))


# ---- receiving ----


@pytest.mark.parametrize("seed", range(10))
def test_frames_are_decoded_however_the_bytes_arrive(seed: int) -> None:
    async def test() -> None:
        dice = random.Random(seed)
        bodies = [dice.randbytes(dice.choice([8, 20, 500, 70_000, 300_000])) for _ in range(30)]
        data = b"".join(map(frame, bodies))
        pair = Pair()

        async def write() -> None:
            position = 0
            while position < len(data):
                size = dice.choice([1, 3, 4, 5, 100, 65_536, 200_000])
                await pair.write(data[position : position + size])
                position += size
                if dice.random() < 0.3:
                    await asyncio.sleep(0)

        writing = asyncio.ensure_future(write())
        answers = [await pair.receive() for _ in bodies]
        await writing
        assert answers == bodies == pair.seen
        pair.close()

    run(test)


@pytest.mark.parametrize("size", [-1, 0, 7, MIB + 1, 2**31 - 1])
def test_invalid_frame_size_closes_the_connection(size: int) -> None:
    async def test() -> None:
        pair = Pair()
        await pair.write(size.to_bytes(4, "big", signed=True) + b"x" * 100)
        assert await pair.receive() == b""
        assert (pair.closed, pair.seen) == (1, [])
        pair.client.close()

    run(test)


def test_buffer_grows_with_received_bytes_not_with_announced_size() -> None:
    async def test() -> None:
        pair = Pair(max_request_bytes=100 * MIB)
        await pair.write((90 * MIB).to_bytes(4, "big") + b"x" * 1000)
        await pair.until(lambda: pair.connection.receiving.filled == 1004)
        assert len(pair.connection.receiving.data or b"") == SMALL
        pair.client.close()
        await pair.until(lambda: pair.closed)
        assert pair.connection.receiving.data is None

    run(test)


def test_large_frames_reuse_a_buffer_of_their_size() -> None:
    async def test() -> None:
        pair = Pair(lambda body: NoResponse())
        sizes = [300_000, 300_000, 20, 300_000, 7_000, 700_000, 65_532, 65_533, 300_000, 9]
        bodies = [bytes([index]) * size for index, size in enumerate(sizes)]
        await pair.send(bodies[0])
        await pair.until(lambda: len(pair.seen) == 1)
        taken = _count_growth(pair)
        await pair.send(bodies[1])
        await pair.until(lambda: len(pair.seen) == 2)
        assert taken == []
        await pair.send(*bodies[2:])
        await pair.until(lambda: len(pair.seen) == len(bodies))
        assert pair.seen == bodies
        pair.close()

    run(test)


def _count_growth(pair: Pair) -> list[int]:
    taken: list[int] = []
    take = pair.pool.take

    def counting(size: int) -> bytearray:
        taken.append(size)
        return take(size)

    pair.pool.take = counting  # type: ignore[method-assign]
    return taken


def test_idle_connection_holds_no_buffer() -> None:
    async def test() -> None:
        pair = Pair()
        await pair.send(b"a request")
        await pair.receive()
        assert pair.connection.receiving.data is None and pair.connection.idle
        pair.close()

    run(test)


def test_network_errors_close_the_connection_quietly(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        for number in (errno.ECONNRESET, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ETIMEDOUT):
            pair = Pair()

            def fail(buffer: memoryview, number: int = number) -> int:
                raise OSError(number, "as the kernel would say")

            pair.connection.stream = _Failing(pair.stream, fail)
            await pair.write(b"x")
            await pair.until(lambda pair=pair: pair.closed)
            pair.client.close()

    run(test)
    assert "Traceback" not in caplog.text


class _Failing:
    """A stream whose reads fail."""

    def __init__(self, stream: object, receive_into: object) -> None:
        self._stream = stream
        self.receive_into = receive_into

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


# ---- order ----


def test_responses_are_sent_in_order_of_their_requests() -> None:
    async def test() -> None:
        delaying = DelayingHandler()
        pair = Pair(delaying)
        await pair.send(b"wait for 1", b"answer 2", b"wait for 3", b"answer 4")
        await pair.until(lambda: len(pair.seen) == 4)
        delaying.release(b"wait for 3")
        await pair.settle()
        with pytest.raises(BlockingIOError):
            pair.client.recv(1)
        delaying.release(b"wait for 1")
        assert [await pair.receive() for _ in range(4)] == pair.seen
        pair.close()

    run(test)


def test_request_without_response_does_not_block_the_next() -> None:
    async def test() -> None:
        delaying = DelayingHandler()
        pair = Pair(delaying)
        await pair.send(b"wait for nothing", b"answer 2")
        await pair.until(lambda: len(pair.seen) == 2)
        delaying.release(b"wait for nothing", NoResponse())
        assert await pair.receive() == b"answer 2"
        pair.close()

    run(test)


def test_requests_behind_a_held_produce_wait_for_its_append() -> None:
    async def test() -> None:
        log: list[bytes] = []
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def append_later(body: bytes):
            await gate
            log.append(body)

            async def acknowledge() -> Encoded:
                await acknowledged
                return Encoded([frame(body)])

            return Pipelined(acknowledge())

        def handle(body: bytes):
            if body.startswith(b"large"):
                return append_later(body)
            log.append(body)
            return Encoded([frame(body)])

        pair = Pair(handle)
        await pair.send(b"large batch", b"small batch", b"another one")
        await pair.settle()
        assert (pair.seen, log) == ([b"large batch"], [])
        gate.set_result(None)
        await pair.until(lambda: len(log) == 3)
        assert log == [b"large batch", b"small batch", b"another one"]
        # Only the append holds others back, not the wait for the acknowledgement; but its answer
        # comes first.
        acknowledged.set_result(None)
        assert [await pair.receive() for _ in range(3)] == log
        pair.close()

    run(test)


# ---- back-pressure ----


def test_pending_responses_are_bounded_in_number() -> None:
    async def test() -> None:
        delaying = DelayingHandler()
        pair = Pair(delaying, max_in_flight=3)
        await pair.send(*(b"wait for %d" % n for n in range(10)))
        await pair.settle()
        assert len(pair.seen) == 3
        delaying.release(b"wait for 0")
        assert await pair.receive() == b"wait for 0"
        await pair.until(lambda: len(pair.seen) == 4)
        for n in range(1, 10):
            await pair.until(lambda n=n: b"wait for %d" % n in delaying.waiting)
            delaying.release(b"wait for %d" % n)
            assert await pair.receive() == b"wait for %d" % n
        pair.close()

    run(test)


def test_finished_responses_in_slots_are_bounded_in_bytes() -> None:
    """Large responses behind a delayed fetch are produced only up to the limit."""

    async def test() -> None:
        delaying = DelayingHandler()
        pair = Pair(
            lambda body: delaying(body) if body[:4] == b"wait" else Encoded([frame(bytes(400_000))])
        )
        await pair.send(b"wait for it", *(b"large %02d" % n for n in range(50)))
        await pair.settle()
        assert 2 <= len(pair.seen) <= 5
        delaying.release(b"wait for it")
        assert await pair.receive() == b"wait for it"
        for _ in range(50):
            assert len(await pair.receive()) == 400_000
        assert len(pair.seen) == 51
        pair.close()

    run(test)


def test_slow_pipelined_requests_yield_to_other_work() -> None:
    async def test() -> None:
        turns = 0

        def work(body: bytes) -> Encoded:
            time.sleep(0.001)
            return Encoded([frame(body)])

        def count() -> None:
            nonlocal turns
            turns += 1
            if len(pair.seen) < 60:
                asyncio.get_running_loop().call_soon(count)

        pair = Pair(work)
        await pair.send(*(b"request %02d" % n for n in range(60)))
        count()
        assert [await pair.receive() for _ in range(60)] == pair.seen
        assert turns > 10
        pair.close()

    run(test)


def test_client_that_does_not_read_pauses_its_requests() -> None:
    async def test() -> None:
        pair = Pair(lambda body: Encoded([frame(bytes(300_000))]), send_buffer=8192)
        await pair.send(*(b"request %02d" % n for n in range(60)))
        await pair.settle()
        seen = len(pair.seen)
        assert seen < 10
        await pair.settle()
        assert len(pair.seen) == seen
        for _ in range(60):
            assert len(await pair.receive()) == 300_000
        pair.close()

    run(test)


def test_file_data_is_read_only_as_the_socket_drains() -> None:
    async def test() -> None:
        disk = SimDisk()
        file = disk.open("/log", create=True)
        file.append([random.Random(1).randbytes(8 * MIB)])
        read = 0
        pread = file.pread

        def counted(position: int, n: int) -> bytes:
            nonlocal read
            read += n
            return pread(position, n)

        file.pread = counted  # type: ignore[method-assign]
        head = (8 * MIB).to_bytes(4, "big")
        pair = Pair(lambda body: Encoded([head, FileSlice(file, 0, 8 * MIB)]), send_buffer=8192)
        await pair.send(b"fetch all")
        await pair.settle()
        assert 0 < read <= 2 * MIB
        assert await pair.receive() == pread(0, 8 * MIB)
        pair.close()

    run(test)


def test_cold_file_data_is_read_in_a_thread_and_sent_in_order() -> None:
    async def test() -> None:
        disk = SimDisk()
        file = disk.open("/log", create=True)
        file.append([bytes(range(256)) * 10_000])
        disk.cold = True
        size = 2_560_000
        pair = Pair(
            lambda body: (
                Encoded([size.to_bytes(4, "big"), FileSlice(file, 0, size)])
                if body == b"fetch it"
                else Encoded([frame(body)])
            )
        )
        await pair.send(b"fetch it", b"the next")
        assert await pair.receive() == bytes(range(256)) * 10_000
        assert await pair.receive() == b"the next"
        pair.close()

    run(test)


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("fault", ["short", "error"])
def test_unreadable_log_file_closes_only_the_connection(
    cold: bool, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def test() -> None:
        disk = SimDisk()
        file = disk.open("/log", create=True)
        file.append([bytes(1000)])
        disk.cold = cold
        length = 5000 if fault == "short" else 1000
        if fault == "error":
            disk.fault = lambda op, path: io_error(path) if op == "read" else None
        pair = Pair(lambda body: Encoded([length.to_bytes(4, "big"), FileSlice(file, 0, length)]))
        await pair.send(b"fetch it")
        assert await pair.receive() == b""
        assert pair.closed == 1
        pair.client.close()

    run(test)
    assert "Traceback" not in caplog.text and "closing connection" in caplog.text


# ---- the end ----


def test_pending_requests_are_cancelled_on_disconnect() -> None:
    async def test() -> None:
        delaying = DelayingHandler()
        pair = Pair(delaying)
        await pair.send(b"wait for 1", b"wait for 2")
        await pair.until(lambda: len(delaying.waiting) == 2)
        await pair.settle()
        pair.client.close()
        await pair.until(lambda: pair.closed)
        await pair.until(lambda: len(delaying.cancelled) == 2)
        assert not pair.connection.responses.tasks

    run(test)


def test_immediate_disconnect_leaves_no_coroutine_unawaited() -> None:
    async def inner(body: bytes) -> Encoded:
        await asyncio.sleep(60)
        return Encoded([frame(body)])

    async def outer(work) -> Encoded:
        return await work

    async def test() -> None:
        for pipelined in (None, 0):
            pair = Pair(lambda body, key=pipelined: Pipelined(outer(inner(body)), key))
            await _leave_at_once(pair)
        await _leave_at_once(Pair(lambda body: outer(inner(body))))

    with warnings.catch_warnings():
        # A coroutine never awaited is a RuntimeWarning. Other kinds may stem from whatever ran here
        # before.
        warnings.simplefilter("error", RuntimeWarning)
        run(test)
        gc.collect()


async def _leave_at_once(pair: Pair) -> None:
    await pair.send(b"request 1")
    pair.client.close()
    await pair.until(lambda: pair.seen)
    pair.connection.close()
    await pair.settle()


def test_failed_request_closes_its_connection_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(body: bytes) -> Encoded:
        raise KeyError("a bug")

    async def test() -> None:
        pair = Pair(fail)
        await pair.send(b"request 1")
        assert await pair.receive() == b""
        pair.client.close()

    run(test)
    assert "failed unexpectedly" in caplog.text


def test_close_connection_error_closes_at_once() -> None:
    def refuse(body: bytes) -> Encoded:
        raise CloseConnection("no")

    async def test() -> None:
        pair = Pair(refuse)
        await pair.send(b"request 1", b"request 2")
        assert await pair.receive() == b""
        assert pair.seen == [b"request 1"]
        pair.client.close()

    run(test)


@pytest.mark.parametrize("answer", ["answer", "nothing"])
def test_finish_sends_pending_responses_and_closes(answer: str) -> None:
    async def test() -> None:
        delaying = DelayingHandler()
        pair = Pair(delaying)
        await pair.send(b"wait for 1")
        await pair.until(lambda: pair.seen)
        pair.connection.finish()
        await pair.send(b"request 2")
        await pair.settle()
        assert pair.seen == [b"wait for 1"] and not pair.closed
        delaying.release(b"wait for 1", NoResponse() if answer == "nothing" else None)
        await pair.until(lambda: pair.closed)
        pair.client.close()

    run(test)


def test_finish_closes_an_idle_connection_at_once() -> None:
    async def test() -> None:
        pair = Pair()
        pair.connection.finish()
        assert pair.closed == 1
        pair.connection.close()
        assert pair.closed == 1
        pair.client.close()

    run(test)


def test_connection_owes_response_until_it_is_ready() -> None:
    async def test() -> None:
        delaying = DelayingHandler()
        pair = Pair(
            lambda body: (
                delaying(body) if body[:4] == b"wait" else Encoded([frame(bytes(3 * MIB))])
            ),
            send_buffer=8192,
        )
        connection: Connection = pair.connection
        assert not connection.owes_response
        await pair.send(b"wait for 1")
        await pair.until(lambda: pair.seen)
        assert connection.owes_response
        delaying.release(b"wait for 1")
        await pair.receive()
        await pair.send(b"something large")
        await pair.until(lambda: len(pair.seen) == 2)
        await pair.settle()
        assert not connection.owes_response  # it has its answer and does not take it
        pair.close()

    run(test)
