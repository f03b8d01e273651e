"""A broker on a separate thread of this process: ready in milliseconds, and open to faults.

It listens on a real socket and writes real files, unless ``files`` is given. ``run`` and ``wait``
call functions on its event loop. It can be stopped, killed, and restarted with the same port and
data.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from millstream.broker.app import Broker
from millstream.broker.ephemeral import end_like_kill
from millstream.core.config import BrokerConfig
from millstream.ports.coordination import Coordination
from millstream.ports.files import Files
from millstream.testing.clock import TravellingClock
from millstream.testing.faults import Faults

T = TypeVar("T")
PATIENCE_S = 30.0
HOST = "127.0.0.1"


class ThreadBroker:
    """A context manager. Access the Broker in ``broker`` only through ``run`` and ``wait``."""

    def __init__(
        self,
        settings: Mapping[str, object],
        *,
        files: Files | None = None,
        coordination: Callable[[], Awaitable[Coordination]] | None = None,
    ) -> None:
        """Prepare a broker. It is alone unless ``coordination`` opens a session on its loop."""
        self.settings = {name: str(value) for name, value in settings.items()}
        self.clock = TravellingClock()
        self.faults = Faults()
        self.broker: Broker
        self.bootstrap = ""
        self._files = files
        self._coordination = coordination
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._port = 0
        self._dead = False
        BrokerConfig.from_texts(self._texts())  # report invalid settings to the caller

    def _texts(self) -> dict[str, str]:
        return {"listeners": f"PLAINTEXT://{HOST}:{self._port}"} | self.settings

    @property
    def alive(self) -> bool:
        return self._loop is not None and not self._dead

    # ---- starting ----

    def start(self) -> Self:
        """Start the broker, with the same port after a stop, and return when it serves clients."""
        if self.alive:
            return self
        self._end_loop()
        self._dead = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="broker", daemon=True)
        self._thread.start()
        try:
            self.wait(self._start())
        except BaseException:
            self._dead = True
            self._end_loop()
            raise
        return self

    async def _start(self) -> None:
        config = BrokerConfig.from_texts(self._texts())
        coordination = await self._coordination() if self._coordination is not None else None
        self.broker = Broker(
            config,
            files=self._files,
            coordination=coordination,
            clock=self.clock,
            intercept=self.faults.wrap,
        )
        try:
            await self.broker.start()
        except BaseException:
            await self.broker.stop()
            raise
        assert self.broker.parts is not None
        self.faults.note_refusal = self.broker.parts.replicas.record_rejection
        endpoint = self.broker.bound[0]
        self._port = endpoint.port
        self.bootstrap = f"{endpoint.host}:{endpoint.port}"

    # ---- looking inside ----

    def wait(self, work: Coroutine[Any, Any, T], timeout_s: float = PATIENCE_S) -> T:
        """Run a coroutine on the broker's loop and return its result."""
        assert self._loop is not None, "the broker is not running"
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def run(self, function: Callable[[], T]) -> T:
        """Call a function on the broker's loop and return its result."""
        assert self._loop is not None, "the broker is not running"
        result: Future[T] = Future()

        def call() -> None:
            try:
                result.set_result(function())
            except BaseException as error:
                result.set_exception(error)

        self._loop.call_soon_threadsafe(call)
        return result.result(PATIENCE_S)

    def advance(self, milliseconds: int) -> None:
        """Set the broker's clock forward, and apply retention."""
        self.clock.ahead_ms += milliseconds
        self.wait(self._apply_retention())

    async def _apply_retention(self) -> None:
        parts = self.broker.parts
        assert parts is not None
        await parts.housekeeping.apply_retention()
        parts.logs.wake()
        if parts.maintenance.cleaner is not None:
            parts.maintenance.cleaner.wake()

    def drop_connections(self) -> None:
        """Close every client connection without a response; new ones are accepted."""
        self.run(self.broker.server.drop_connections)

    # ---- the end ----

    def die(self) -> None:
        """End the broker like kill -9: no responses, no flush, no hand-over. Written files stay."""
        if not self.alive:
            return
        self._dead = True
        self.wait(end_like_kill(self.broker))

    def stop(self) -> None:
        """Shut the broker down cleanly."""
        try:
            if self.alive:
                self.wait(self.broker.stop())
        finally:
            self._dead = True
            self._end_loop()

    def _end_loop(self) -> None:
        if self._loop is None or self._thread is None:
            return
        self.wait(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()
        self._loop = self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
