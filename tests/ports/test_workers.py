"""Worker processes: results and errors come back, order holds, a dead child is replaced, the loop
stays free.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
import pytest
import uvloop

from millstream.core.errors import ApiError, ErrorCode
from millstream.ports.workers import (
    InlineWorker,
    JobFailed,
    Worker,
    WorkerBusy,
    WorkerClosed,
    WorkerDied,
)

Scenario = Callable[[], Awaitable[Any]]

JOBS = "support.ports.worker_jobs"


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Scenario], Any]:
    factory = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop

    def run_scenario(scenario: Scenario) -> Any:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(scenario())

    return run_scenario


def with_worker(**options: Any) -> Callable[[Callable[[Worker], Awaitable[Any]]], Scenario]:
    def decorate(body: Callable[[Worker], Awaitable[Any]]) -> Scenario:
        async def scenario() -> Any:
            worker = Worker("test-worker", **options)
            try:
                return await body(worker)
            finally:
                await worker.close()

        return scenario

    return decorate


async def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - another process makes it true
        await asyncio.sleep(0.01)


async def wait_for_file(path: str) -> None:
    await wait_until(lambda: os.path.exists(path))


def test_result_comes_back_and_the_child_is_kept(run):
    @with_worker()
    async def scenario(worker: Worker):
        assert worker.pid is None, "no process before the first job"
        assert await worker.run(f"{JOBS}:add", 2, 3) == 5
        pid = await worker.run(f"{JOBS}:own_pid")
        assert pid == worker.pid == await worker.run(f"{JOBS}:own_pid")

    run(scenario)


def test_large_bytes_travel_both_ways_and_come_back_writable(run):
    @with_worker()
    async def scenario(worker: Worker):
        data = os.urandom(5_000_001)
        result = await worker.run(f"{JOBS}:reverse", data)
        assert bytes(result) == data[::-1]
        result[0] = 7
        assert bytes(await worker.run(f"{JOBS}:reverse", b"")) == b""

    run(scenario)


def test_raw_and_pickled_arguments_keep_their_places(run):
    @with_worker()
    async def scenario(worker: Worker):
        args = (b"x", 1, bytearray(b"y"), None, memoryview(b"z")[:1], "s")
        assert (
            await worker.run(f"{JOBS}:describe", *args)
            == "memoryview,int,memoryview,NoneType,memoryview,str"
        )

    run(scenario)


def test_loop_runs_on_while_a_large_frame_is_sent(run):
    @with_worker()
    async def scenario(worker: Worker):
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        ticker = asyncio.ensure_future(count_turns())
        await worker.run(f"{JOBS}:reverse", bytes(20_000_000))
        ticker.cancel()
        assert turns > 20, "20 MB go in chunks, with other callbacks between"

    run(scenario)


def test_error_of_a_job_is_raised_with_its_code_and_the_childs_traceback(run):
    @with_worker()
    async def scenario(worker: Worker):
        with pytest.raises(ApiError) as caught:
            await worker.run(f"{JOBS}:refuse")
        assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
        assert "a lie in the length" in str(caught.value)
        assert "in refuse" in "".join(caught.value.__notes__)
        with pytest.raises(JobFailed, match="Local: only here"):
            await worker.run(f"{JOBS}:raise_unpicklable")
        with pytest.raises(Exception, match="pickle"):
            await worker.run(f"{JOBS}:return_unpicklable")
        with pytest.raises(ModuleNotFoundError):
            await worker.run("millstream.no_such:thing")
        assert await worker.run(f"{JOBS}:add", 1, 1) == 2

    run(scenario)


class Buffer(bytearray):
    """Bytes that can be referred to weakly."""


def test_refused_job_releases_the_bytes_of_its_caller(run):
    """Without the garbage collector: it runs rarely in a broker."""

    @with_worker()
    async def scenario(worker: Worker) -> None:
        buffers: list[weakref.ref[Buffer]] = []

        async def convert() -> ErrorCode:
            buffer = Buffer(1000)
            buffers.append(weakref.ref(buffer))
            try:
                await worker.run(f"{JOBS}:refuse_bytes", buffer)
            except ApiError as error:
                return error.code
            raise AssertionError("the job was not refused")

        gc.collect()
        gc.disable()
        try:
            for _ in range(5):
                assert await convert() is ErrorCode.CORRUPT_MESSAGE
            assert [buffer() for buffer in buffers] == [None] * 5
        finally:
            gc.enable()

    run(scenario)


def test_jobs_run_in_the_order_they_came(run, tmp_path):
    @with_worker()
    async def scenario(worker: Worker):
        path = str(tmp_path / "lines")
        await asyncio.gather(*(worker.run(f"{JOBS}:append_line", path, str(i)) for i in range(50)))
        assert (tmp_path / "lines").read_text().split() == [str(i) for i in range(50)]

    run(scenario)


def test_printing_job_does_not_break_the_frames(run):
    @with_worker()
    async def scenario(worker: Worker):
        assert await worker.run(f"{JOBS}:print_and_return") == "clean"

    run(scenario)


def test_killed_child_fails_its_job_and_the_next_job_gets_a_new_one(run, tmp_path):
    @with_worker()
    async def scenario(worker: Worker):
        touched = str(tmp_path / "touched")
        first = asyncio.ensure_future(worker.run(f"{JOBS}:sleep_forever", touched))
        second = asyncio.ensure_future(worker.run(f"{JOBS}:add", 1, 2))
        await wait_for_file(touched)
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerDied, match="-9"):
            await first
        assert await second == 3

    run(scenario)


def test_child_killed_while_idle_is_replaced(run):
    @with_worker()
    async def scenario(worker: Worker):
        pid = await worker.run(f"{JOBS}:own_pid")
        os.kill(pid, signal.SIGKILL)
        psutil.Process(pid).wait()
        assert await worker.run(f"{JOBS}:own_pid") != pid

    run(scenario)


def test_interrupt_of_the_terminal_does_not_reach_jobs(run):
    @with_worker()
    async def scenario(worker: Worker):
        pid = await worker.run(f"{JOBS}:own_pid")
        os.kill(pid, signal.SIGINT)
        assert await worker.run(f"{JOBS}:own_pid") == pid

    run(scenario)


def test_full_queue_refuses_and_frees_a_place_for_each_job_done(run, tmp_path):
    @with_worker(queue_limit=1)
    async def scenario(worker: Worker):
        touched = str(tmp_path / "touched")
        running = asyncio.ensure_future(worker.run(f"{JOBS}:sleep_forever", touched))
        await wait_for_file(touched)
        waiting = asyncio.ensure_future(worker.run(f"{JOBS}:add", 1, 2))
        await asyncio.sleep(0)
        with pytest.raises(WorkerBusy):
            await worker.run(f"{JOBS}:add", 3, 4)
        os.kill(worker.pid, signal.SIGKILL)
        assert await waiting == 3
        assert await worker.run(f"{JOBS}:add", 3, 4) == 7
        with pytest.raises(WorkerDied):
            await running

    run(scenario)


def test_cancelled_caller_leaves_the_job_and_the_next_gets_its_own_result(run):
    @with_worker()
    async def scenario(worker: Worker):
        await worker.run(f"{JOBS}:add", 0, 0)
        pid = worker.pid
        cancelled = asyncio.ensure_future(worker.run(f"{JOBS}:reverse", bytes(3_000_000)))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert await worker.run(f"{JOBS}:add", 20, 22) == 42
        assert worker.pid == pid

    run(scenario)


def test_kill_on_cancel_ends_the_child_before_the_caller_goes_on(run, tmp_path):
    @with_worker(kill_on_cancel=True)
    async def scenario(worker: Worker):
        touched = str(tmp_path / "touched")
        job = asyncio.ensure_future(worker.run(f"{JOBS}:sleep_forever", touched))
        await wait_for_file(touched)
        pid = worker.pid
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        assert not psutil.pid_exists(pid)
        assert await worker.run(f"{JOBS}:add", 1, 2) == 3

    run(scenario)


def test_idle_child_ends_and_a_later_job_starts_one_again(run):
    @with_worker(idle_exit_s=0.01)
    async def scenario(worker: Worker):
        pid = await worker.run(f"{JOBS}:own_pid")
        await wait_until(lambda: not psutil.pid_exists(pid))
        assert worker.pid is None
        assert await worker.run(f"{JOBS}:own_pid") != pid

    run(scenario)


def test_closing_fails_the_running_and_the_waiting_jobs(run, tmp_path):
    async def scenario():
        worker = Worker()
        touched = str(tmp_path / "touched")
        jobs = [
            asyncio.ensure_future(worker.run(f"{JOBS}:sleep_forever", touched)) for _ in range(2)
        ]
        await wait_for_file(touched)
        pid = worker.pid
        await worker.close()
        assert [type(r) for r in await asyncio.gather(*jobs, return_exceptions=True)] == [
            WorkerClosed,
            WorkerClosed,
        ]
        assert not psutil.pid_exists(pid)
        with pytest.raises(WorkerClosed):
            await worker.run(f"{JOBS}:add", 1, 2)
        await worker.close()

    run(scenario)


def test_child_has_a_lower_priority(run):
    @with_worker(nice=3)
    async def scenario(worker: Worker):
        assert await worker.run(f"{JOBS}:own_niceness") == min(19, os.nice(0) + 3)

    run(scenario)


def test_killed_parent_leaves_no_child_behind_even_in_a_job(tmp_path):
    script = textwrap.dedent(f"""
        import asyncio
        from millstream.ports.workers import Worker
        asyncio.run(Worker().run("{JOBS}:sleep_forever", {str(tmp_path / "touched")!r}))
    """)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    parent = subprocess.Popen([sys.executable, "-c", script], env=env)
    try:
        asyncio.run(wait_for_file(str(tmp_path / "touched")))
        (child,) = psutil.Process(parent.pid).children()
    finally:
        parent.kill()
        parent.wait()
    psutil.wait_procs([child])
    assert not child.is_running()


def test_inline_worker_answers_as_a_child_does():
    worker = InlineWorker()
    assert asyncio.run(worker.run(f"{JOBS}:add", 2, 3)) == 5
    result = asyncio.run(worker.run(f"{JOBS}:reverse", b"abc"))
    result[0] = ord("C")
    assert bytes(result) == b"Cba"
