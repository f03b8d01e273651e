"""A session with ZooKeeper: kazoo and its threads on one side, the event loop on the other.

Only this module and its threads touch kazoo. Events reach the loop in order, by
``call_soon_threadsafe``, and the loop never waits for a thread. kazoo leaves three things to its
user:

* A request submitted without a connection stays in kazoo's queue. Waiters get ConnectionLost as
  soon as the connection is lost. Requests still in the queue may be executed later, but before any
  request that is submitted after them.
* Submitting may block when hundreds of requests are queued. So the number in flight is limited, and
  the rest wait here.
* kazoo's thread keeps the session alive even if the loop is stuck. A broker with a stuck loop
  serves no requests, so its session must expire: ``watch_loop`` suppresses the pings.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry

from millstream.ports.coordination import (
    BadVersion,
    ConnectionLost,
    CoordinationError,
    NodeExists,
    NoNode,
    SessionExpired,
    SessionState,
)
from millstream.ports.loop_watch import LoopWatch
from millstream.ports.zookeeper.multi import NotEmpty, Rejected
from millstream.ports.zookeeper.requests import Multi, ReadMany

log = logging.getLogger("millstream.zookeeper")

# kazoo wakes its thread through a socket that holds about 270 bytes, one for each request.
_MAX_IN_FLIGHT = 100
_RETRY_S, _MAX_RETRY_S = 0.05, 1.0
# A session outlives this many attempts to connect that get no answer, even with a single server.
_MIN_ATTEMPTS = 3
# Maximum time to end a session. If the servers do not learn of it, the session expires.
_CLOSE_TIMEOUT_S = 5.0

# Submits one request to kazoo and returns its AsyncResult.
Request = Callable[[KazooClient], Any]


class KazooSession:
    """A session with ZooKeeper. ``on_state`` is called on the loop at every change of the state."""

    def __init__(
        self, hosts: str, timeout_ms: int, on_state: Callable[[SessionState], None]
    ) -> None:
        self._hosts = hosts
        self._timeout_ms = timeout_ms
        self._on_state = on_state
        self._loop = asyncio.get_running_loop()
        self._client = self._new_client()
        self._closed = False
        self._waiting: set[asyncio.Future[Any]] = set()
        self._backlog: deque[tuple[Request, asyncio.Future[Any]]] = deque()
        self._in_flight = 0
        self._posted: deque[Callable[[], None]] = deque()
        self._woken = False
        self._loop_watch: LoopWatch | None = None
        self._stuck = False

    def _new_client(self) -> KazooClient:
        servers = self._hosts.count(",") + 1
        attempt_timeout_s = self._timeout_ms / 1000 / max(servers, _MIN_ATTEMPTS)
        handler = _Handler(attempt_timeout_s)
        client = KazooClient(
            hosts=self._hosts,
            timeout=self._timeout_ms / 1000,
            handler=handler,
            connection_retry=KazooRetry(
                max_tries=-1, delay=_RETRY_S, max_delay=_MAX_RETRY_S, sleep_func=handler.sleep_func
            ),
            logger=_kazoo_log(),
        )
        client.add_listener(lambda state: self.post(lambda: self._changed(client, state)))
        ping = client._connection._send_ping

        def ping_unless_stuck(connect_timeout: float) -> None:
            if not self._is_stuck():
                ping(connect_timeout)

        client._connection._send_ping = ping_unless_stuck
        invoke = client._connection._invoke

        def invoke_within_attempt(timeout: float, *args: Any, **more: Any) -> Any:
            return invoke(min(timeout, attempt_timeout_s), *args, **more)

        client._connection._invoke = invoke_within_attempt
        return client

    def watch_loop(self) -> None:
        """Let the session expire if the loop is stuck for a whole session timeout from now on."""
        self._loop_watch = LoopWatch(self._loop, self._timeout_ms / 1000)

    def _is_stuck(self) -> bool:
        """Called in kazoo's thread, about twice per session timeout."""
        watch = self._loop_watch
        was_stuck, self._stuck = self._stuck, watch is not None and watch.is_stuck()
        if self._stuck and not was_stuck and watch is not None:
            log.error(
                "the event loop has been stuck for %.0f s; letting the ZooKeeper session expire, "
                "so that other brokers take over. The loop is here:\n%s",
                self._timeout_ms / 1000,
                watch.where(),
            )
        return self._stuck

    def start(self) -> None:
        """Connect in the background, without a time limit."""
        self._client.start_async()

    # ---- from kazoo's threads to the loop ----

    def post(self, callback: Callable[[], None]) -> None:
        """Run a callback on the loop, from kazoo's threads. Pending callbacks share one wake-up."""
        self._posted.append(callback)
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._run_posted)
            except RuntimeError:
                pass  # the loop is closed, so there are no waiters

    def _run_posted(self) -> None:
        self._woken = False
        while self._posted:
            callback = self._posted.popleft()
            try:
                callback()
            except Exception:
                log.exception("a callback of the ZooKeeper session failed")

    def _changed(self, client: KazooClient, state: str) -> None:
        if self._closed or client is not self._client:
            return
        if state == KazooState.CONNECTED:
            self._on_state(SessionState.CONNECTED)
        elif state == KazooState.SUSPENDED:
            self._fail_all(ConnectionLost("the connection to ZooKeeper was lost"))
            self._on_state(SessionState.SUSPENDED)
        else:
            # Waiters exist here only after an error of kazoo: expiry is reported after a reconnect,
            # and the lost connection has already failed all waiters.
            self._fail_all(ConnectionLost("the session with ZooKeeper has ended"))
            self._on_state(SessionState.EXPIRED)
            if client.client_state == KeeperState.CLOSED:
                self._replace(client)

    def _replace(self, client: KazooClient) -> None:
        """Start over with a new client: kazoo's thread ended with an error."""
        log.error("the ZooKeeper client ended unexpectedly; starting a new one")
        threading.Thread(target=_end, args=(client,), daemon=True).start()
        self._client = self._new_client()
        self._loop.call_later(_RETRY_S, self._start_unless_closed)

    def _start_unless_closed(self) -> None:
        if not self._closed:
            self.start()

    def _fail_all(self, error: CoordinationError) -> None:
        self._backlog.clear()
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_exception(type(error)(*error.args))
                # Mark the exception as retrieved, even if the waiter was cancelled.
                future.exception()

    # ---- requests ----

    def submit(self, request: Request) -> asyncio.Future[Any]:
        """Send a request, in call order. The future gets its result or a CoordinationError."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._closed:
            future.set_exception(ConnectionLost("closed"))
            return future
        self._waiting.add(future)
        self._backlog.append((request, future))
        self._submit_queued()
        return future

    def _submit_queued(self) -> None:
        while self._backlog and self._in_flight < _MAX_IN_FLIGHT:
            request, future = self._backlog.popleft()
            if future.done():
                self._waiting.discard(future)
                continue
            self._in_flight += 1
            result = request(self._client)
            result.rawlink(
                lambda result, future=future: self.post(lambda: self._on_result(future, result))
            )

    def _on_result(self, future: asyncio.Future[Any], result: Any) -> None:
        self._in_flight -= 1
        self._waiting.discard(future)
        if not future.done():
            if result.exception is None:
                future.set_result(result.value)
            else:
                future.set_exception(translated(result.exception))
                future.exception()
        self._submit_queued()

    def send(self, request: ReadMany | Multi) -> asyncio.Future[Any]:
        """Send a request that kazoo does not have."""

        def submit(client: KazooClient) -> Any:
            result = client.handler.async_result()
            # kazoo's methods submit their requests in the same way.
            client._call(request, result)
            return result

        return self.submit(submit)

    async def transact(self, request: Multi) -> None:
        """Execute all operations or none; Rejected has the operation that failed and its error."""
        for index, code in enumerate(await self.send(request)):
            if code not in _NOT_FAILED:
                raise Rejected(index, translated(kazoo_errors.EXCEPTIONS[code]()))

    # ---- closing ----

    async def close(self) -> None:
        """End the session on the servers if they are reachable. Does not wait for hung threads."""
        if self._closed:
            return
        self._closed = True
        self._fail_all(ConnectionLost("closed"))
        ended = asyncio.Event()

        def end(client: KazooClient) -> None:
            _end(client)
            self.post(ended.set)

        threading.Thread(target=end, args=(self._client,), daemon=True).start()
        try:
            await asyncio.wait_for(ended.wait(), _CLOSE_TIMEOUT_S)
        except TimeoutError:
            log.warning("could not end the session with ZooKeeper in time; it will expire")


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """A handler with a shorter connect timeout.

    kazoo gives one server the whole session timeout to accept a connection. If that server is
    partitioned rather than down, the session would expire before the next server is tried.
    kazoo also waits for the answer to the handshake, for the whole session timeout if there is one
    server; ``_new_client`` shortens that wait too. A server that is starting may accept the
    handshake and never answer: ZooKeeper fails to close such a connection while it has no database.
    """

    def __init__(self, connect_timeout_s: float) -> None:
        super().__init__()
        self._connect_timeout_s = connect_timeout_s

    def create_connection(self, *args: Any, **more: Any) -> Any:
        return super().create_connection(*args, **(more | {"timeout": self._connect_timeout_s}))


def _kazoo_log() -> logging.Logger:
    """Return a logger for errors of kazoo only: this package logs dropped connections itself."""
    logger = logging.getLogger("millstream.zookeeper.kazoo")
    logger.setLevel(logging.ERROR)
    return logger


def _end(client: KazooClient) -> None:
    try:
        client.stop()
        client.close()
    except Exception as error:
        log.debug("while ending the ZooKeeper client: %r", error)


# The codes of the operations before and after the rejected one.
_NOT_FAILED = (0, kazoo_errors.RuntimeInconsistency.code)


def translated(error: BaseException) -> CoordinationError:
    """Translate an error of kazoo into one of the port."""
    if isinstance(error, CoordinationError):
        return error
    text = str(error) or type(error).__name__
    if isinstance(error, kazoo_errors.ConnectionClosedError):
        # kazoo treats this as an expiry, but the session may still be alive.
        return ConnectionLost(text)
    for theirs, ours in _TRANSLATIONS:
        if isinstance(error, theirs):
            return ours(text)
    # If the error does not come from a server, the outcome of the request is unknown.
    return (
        CoordinationError(text)
        if isinstance(error, kazoo_errors.ZookeeperError)
        else ConnectionLost(text)
    )


_TRANSLATIONS: tuple[tuple[type[Exception], type[CoordinationError]], ...] = (
    (kazoo_errors.NoNodeError, NoNode),
    (kazoo_errors.NodeExistsError, NodeExists),
    (kazoo_errors.BadVersionError, BadVersion),
    (kazoo_errors.NotEmptyError, NotEmpty),
    (kazoo_errors.SessionExpiredError, SessionExpired),
    (kazoo_errors.ConnectionLoss, ConnectionLost),
    (kazoo_errors.OperationTimeoutError, ConnectionLost),
    (kazoo_errors.RequestTimeoutError, ConnectionLost),
    # Another server has taken over the session.
    (kazoo_errors.SessionMovedError, ConnectionLost),
)
