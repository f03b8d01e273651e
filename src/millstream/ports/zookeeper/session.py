"""A session with ZooKeeper: kazoo and its threads on one side, the event loop on the other.

Only this module and its threads touch kazoo. What happens there reaches the loop in order, by ``call_soon_threadsafe``, and the
loop never waits for a thread. Two things kazoo leaves to its user:

* A request handed over while there is no connection stays in its queue. Whoever waits is told ConnectionLost as soon as the
  connection is lost; what is still queued then may yet be carried out, but before anything that is asked later.
* Handing over a request may block when hundreds are queued, so only a few are at a time, and the rest wait here.
* Its thread keeps the session alive whatever the loop does. A loop that is stuck serves no one, so that its session has
  to end: ``watch_loop`` lets no ping through while it is.
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
from millstream.ports.zookeeper.multi import NotEmpty, Refused
from millstream.ports.zookeeper.requests import Multi, ReadMany

log = logging.getLogger("millstream.zookeeper")

# kazoo wakes its thread through a socket that takes some 270 bytes, one for each request.
_AT_A_TIME = 100
_RETRY_S, _MAX_RETRY_S = 0.05, 1.0
# What ending a session may take; the servers end it by themselves when they do not hear of it.
_CLOSE_TIMEOUT_S = 5.0

Request = Callable[[KazooClient], Any]  # hands one request to kazoo and returns its AsyncResult


class KazooSession:
    """``submit`` asks; ``on_state`` hears CONNECTED, SUSPENDED and EXPIRED as they happen, on the loop."""

    def __init__(self, hosts: str, timeout_ms: int, on_state: Callable[[SessionState], None]) -> None:
        self._hosts = hosts
        self._timeout_ms = timeout_ms
        self._on_state = on_state
        self._loop = asyncio.get_running_loop()
        self._client = self._new_client()
        self._closed = False
        self._waiting: set[asyncio.Future[Any]] = set()
        self._backlog: deque[tuple[Request, asyncio.Future[Any]]] = deque()
        self._under_way = 0
        self._news: deque[Callable[[], None]] = deque()
        self._woken = False
        self._loop_watch: LoopWatch | None = None
        self._stuck = False

    def _new_client(self) -> KazooClient:
        count = self._hosts.count(",") + 1
        handler = _Handler(self._timeout_ms / 1000 / count)
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
        return client

    def watch_loop(self) -> None:
        """From now on the session ends when the loop has not turned for a whole session timeout."""
        self._loop_watch = LoopWatch(self._loop, self._timeout_ms / 1000)

    def _is_stuck(self) -> bool:
        """In kazoo's thread, about twice in a session timeout."""
        watch = self._loop_watch
        was, self._stuck = self._stuck, watch is not None and watch.is_stuck()
        if self._stuck and not was and watch is not None:
            log.error(
                "the event loop has not turned for %.0f s; the ZooKeeper session is left to expire, so that others take over. "
                "It is here:\n%s",
                self._timeout_ms / 1000,
                watch.where(),
            )
        return self._stuck

    def start(self) -> None:
        """Connects, for as long as it takes, in the background."""
        self._client.start_async()

    # ---- from kazoo's threads to the loop -------------------------------------------------------------------

    def post(self, news: Callable[[], None]) -> None:
        """Has the loop call it; for kazoo's threads. One wake-up of the loop for all that has come until it wakes."""
        self._news.append(news)
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._take_news)
            except RuntimeError:
                pass  # the loop is closed, and nobody waits any more

    def _take_news(self) -> None:
        self._woken = False
        while self._news:
            news = self._news.popleft()
            try:
                news()
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
            # Nobody waits here but after an error of kazoo: expiry is told when a lost connection is back.
            self._fail_all(ConnectionLost("the session with ZooKeeper has ended"))
            self._on_state(SessionState.EXPIRED)
            if client.client_state == KeeperState.CLOSED:
                self._replace(client)

    def _replace(self, client: KazooClient) -> None:
        """kazoo's thread ended by an error of its own: begin anew."""
        log.error("the ZooKeeper client ended unexpectedly and is started again")
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
                future.exception()  # seen, also where nobody waits any more

    # ---- asking ---------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> asyncio.Future[Any]:
        """The answer, or a CoordinationError. In the order of the calls."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._closed:
            future.set_exception(ConnectionLost("closed"))
            return future
        self._waiting.add(future)
        self._backlog.append((request, future))
        self._hand_over()
        return future

    def _hand_over(self) -> None:
        while self._backlog and self._under_way < _AT_A_TIME:
            request, future = self._backlog.popleft()
            if future.done():
                self._waiting.discard(future)
                continue
            self._under_way += 1
            result = request(self._client)
            result.rawlink(lambda result, future=future: self.post(lambda: self._answered(future, result)))

    def _answered(self, future: asyncio.Future[Any], result: Any) -> None:
        self._under_way -= 1
        self._waiting.discard(future)
        if not future.done():
            if result.exception is None:
                future.set_result(result.value)
            else:
                future.set_exception(translated(result.exception))
                future.exception()
        self._hand_over()

    def send(self, request: ReadMany | Multi) -> asyncio.Future[Any]:
        """A request of our own."""

        def hand_over(client: KazooClient) -> Any:
            result = client.handler.async_result()
            client._call(request, result)  # as its own methods do with their requests
            return result

        return self.submit(hand_over)

    async def transact(self, request: Multi) -> None:
        """All of it or nothing: then Refused says which operation was refused and why."""
        for index, code in enumerate(await self.send(request)):
            if code not in _NOT_TO_BLAME:
                raise Refused(index, translated(kazoo_errors.EXCEPTIONS[code]()))

    # ---- closing --------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Ends the session on the servers, if they can be told; threads that hang are left to end by themselves."""
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
            log.warning("ZooKeeper could not be told that this session is over; it will expire")


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo gives one server the whole session timeout to accept a connection: when it is cut off and not down, the
    session would be over before another one is tried."""

    def __init__(self, connect_timeout_s: float) -> None:
        super().__init__()
        self._connect_timeout_s = connect_timeout_s

    def create_connection(self, *args: Any, **more: Any) -> Any:
        return super().create_connection(*args, **(more | {"timeout": self._connect_timeout_s}))


def _kazoo_log() -> logging.Logger:
    """Every dropped connection is told by us, in our words; of kazoo's own only what is an error."""
    logger = logging.getLogger("millstream.zookeeper.kazoo")
    logger.setLevel(logging.ERROR)
    return logger


def _end(client: KazooClient) -> None:
    try:
        client.stop()
        client.close()
    except Exception as error:
        log.debug("while ending the ZooKeeper client: %r", error)


# What the operations before and after the refused one are given.
_NOT_TO_BLAME = (0, kazoo_errors.RuntimeInconsistency.code)


def translated(error: BaseException) -> CoordinationError:
    """kazoo's error in the words of the port."""
    if isinstance(error, CoordinationError):
        return error
    text = str(error) or type(error).__name__
    if isinstance(error, kazoo_errors.ConnectionClosedError):
        return ConnectionLost(text)  # to kazoo a kind of expiry, but it says nothing of the session
    for theirs, ours in _TRANSLATIONS:
        if isinstance(error, theirs):
            return ours(text)
    # What no server has said leaves open what became of the request.
    return CoordinationError(text) if isinstance(error, kazoo_errors.ZookeeperError) else ConnectionLost(text)


_TRANSLATIONS: tuple[tuple[type[Exception], type[CoordinationError]], ...] = (
    (kazoo_errors.NoNodeError, NoNode),
    (kazoo_errors.NodeExistsError, NodeExists),
    (kazoo_errors.BadVersionError, BadVersion),
    (kazoo_errors.NotEmptyError, NotEmpty),
    (kazoo_errors.SessionExpiredError, SessionExpired),
    (kazoo_errors.ConnectionLoss, ConnectionLost),
    (kazoo_errors.OperationTimeoutError, ConnectionLost),
    (kazoo_errors.RequestTimeoutError, ConnectionLost),
    # Refused by a server that another one has taken the session over from.
    (kazoo_errors.SessionMovedError, ConnectionLost),
)
