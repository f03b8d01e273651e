"""A broker inside the test's own process, on a thread of its own: for faults that cannot be had from outside.

It listens on a real socket; its disk may be a simulated one. ``run`` looks at it, or does something to it, on its loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

from millstream.broker.app import Broker
from millstream.core.config import BrokerConfig
from millstream.ports.coordination import Coordination
from millstream.ports.files import Files

T = TypeVar("T")
PATIENCE_S = 30.0


class InProcessBroker:
    """A context manager; ``broker`` is the Broker itself, to be touched through ``run`` alone."""

    def __init__(
        self,
        settings: Mapping[str, object],
        *,
        files: Files | None = None,
        coordination: Callable[[], Awaitable[Coordination]] | None = None,
    ) -> None:
        """``coordination`` opens what the broker shares with others, on its loop; without it the broker is alone."""
        texts = {"listeners": "PLAINTEXT://127.0.0.1:0"} | {
            name: str(value) for name, value in settings.items()
        }
        self._config = BrokerConfig.from_texts(texts)
        self._files = files
        self._coordination = coordination
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="broker", daemon=True)
        self.broker: Broker
        self.bootstrap = ""
        self._dead = False
        self._entered = False

    @property
    def alive(self) -> bool:
        return self._entered and not self._dead

    def __enter__(self) -> InProcessBroker:
        self._thread.start()
        try:
            self.wait(self._start())
        except BaseException:
            self._end_loop()
            raise
        self._entered = True
        return self

    async def _start(self) -> None:
        coordination = await self._coordination() if self._coordination is not None else None
        self.broker = Broker(self._config, files=self._files, coordination=coordination)
        try:
            await self.broker.start()
        except BaseException:
            await self.broker.stop()
            raise
        endpoint = self.broker.bound[0]
        self.bootstrap = f"{endpoint.host}:{endpoint.port}"

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that runs on the broker's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def run(self, look: Callable[[], T]) -> T:
        """The result of a function that is called on the broker's loop."""
        result: Future[T] = Future()

        def call() -> None:
            try:
                result.set_result(look())
            except BaseException as error:
                result.set_exception(error)

        self._loop.call_soon_threadsafe(call)
        return result.result(PATIENCE_S)

    def die(self) -> None:
        """Ends it without a shutdown. Make its disk fail first, so that nothing of the end reaches the disk."""
        self._dead = True

        async def cancel_everything() -> None:
            mine = asyncio.current_task()
            tasks = [task for task in asyncio.all_tasks() if task is not mine]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for listener in self.broker.server._listeners:
                listener.close()
            for connection in list(self.broker.server._connections):
                connection.close()

        self.wait(cancel_everything())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._dead:
                self.wait(self.broker.stop())
        finally:
            self._entered = False
            self._end_loop()

    def _end_loop(self) -> None:
        self.wait(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()
