"""One broker's time as controller: the image that it alone changes, the feed that tells the others, and how a change is made.

Durable first, then in the image, then in the feed. Every write carries a check of the controller epoch, so that a controller that was
replaced without knowing it changes nothing. Where it stays unknown whether a write was applied, the term ends: the next one, of whichever
broker, begins by reading what is there.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from millstream.cluster.controller.feed import ControllerFeed
from millstream.control import znodes
from millstream.control.image import ClusterImage, NodeData
from millstream.core.errors import ApiError, ErrorCode
from millstream.log.rate_limited_logging import RateLimitedLog
from millstream.ports.coordination import (
    Check,
    Coordination,
    CoordinationError,
    Delete,
    Put,
    TooLarge,
    Write,
    sliced,
)

log = logging.getLogger("millstream.controller")

# How long an answer waits for the other brokers to hear of the change; this broker is waited for without end.
_OTHERS_S = 1.0


class Term:
    """A controller epoch, as its owner has it."""

    def __init__(
        self, node_id: int, epoch: int, epoch_version: int, image: ClusterImage, *, now_ms: Callable[[], int]
    ) -> None:
        self.node_id = node_id
        self.epoch = epoch
        self.epoch_version = epoch_version
        self.image = image
        self.feed = ControllerFeed(epoch, lambda: image.nodes(now_ms=now_ms()))

    def versioned(self, path: str, data: bytes | None) -> NodeData:
        """A state says its version, because a snapshot may have carried it already."""
        parts = path.split("/")
        if data is not None and path.startswith(znodes.TOPICS + "/") and len(parts) == 7:
            topic = self.image.topics.get(parts[3])
            known = topic.states.get(int(parts[5])) if topic is not None else None
            return NodeData(path, data, 0 if known is None else known.partition_epoch + 1)
        return NodeData(path, data)


class ControllerState:
    """The term that this broker has, if it has one; changes go through here, one at a time."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._rate_limited = RateLimitedLog(log)
        self._term: Term | None = None
        self._changes: set[asyncio.Task[Any]] = set()
        self.lock = asyncio.Lock()
        # Told when this broker can no longer be sure that it is the controller.
        self.on_doubt: Callable[[], None] = lambda: None

    @property
    def active(self) -> bool:
        return self._term is not None

    @property
    def term(self) -> Term:
        if self._term is None:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        return self._term

    @property
    def image(self) -> ClusterImage:
        return self.term.image

    def begin(self, term: Term) -> None:
        self._term = term

    def end(self) -> None:
        if self._term is not None:
            term, self._term = self._term, None
            term.feed.close()

    async def close(self) -> None:
        """Returns when every change that has begun is finished."""
        while self._changes:
            await asyncio.gather(*self._changes, return_exceptions=True)

    def own(self, change: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A change that is finished once it has begun, also when the client that asked for it is gone."""
        task = asyncio.get_running_loop().create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._change_ended)
        return task

    def _change_ended(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            task.exception()  # seen, also where the caller is gone

    async def commit(self, *groups: Sequence[tuple[str, bytes | None]]) -> None:
        """Makes a change, in several writes where it is too large for one; a group is never divided."""
        term = self.term
        for writes in sliced(
            _fence(term), [[_write(path, data) for path, data in group] for group in groups]
        ):
            await self._multi(term, writes)
            self.tell(_node_data(term, writes[1:]), term)

    async def erase(self, paths: Iterable[str]) -> None:
        """Removes nodes, and what is below them, of which nobody is told: what they belong to goes as a whole afterwards."""
        term = self.term
        for writes in sliced(_fence(term), [[Delete(path)] for path in paths]):
            await self._multi(term, writes)

    def tell(self, nodes: Iterable[NodeData], term: Term | None = None) -> None:
        """What is durable, or need not be: into the image and the feed."""
        term = term or self.term
        told = list(nodes)
        for node in told:
            term.image.apply(*node)
        term.feed.publish(told)

    async def _multi(self, term: Term, writes: Sequence[Write]) -> None:
        try:
            await self._coordination.multi(writes)
        except OSError as error:
            text = f"the metadata store cannot be written: {error}"
            self._rate_limited.log(logging.ERROR, "store", text)
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata store cannot be written: {error}"
            ) from None
        except TooLarge as error:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"more than one node of the metadata store can hold: {error}"
            ) from None
        except CoordinationError as error:
            log.warning("no longer sure to be the controller (epoch %d): %s", term.epoch, error)
            if self._term is term:
                self.end()
                self.on_doubt()
            raise ApiError(ErrorCode.NOT_CONTROLLER) from None
        if self._term is not term:  # it ended meanwhile; the next one reads what was written
            raise ApiError(ErrorCode.NOT_CONTROLLER)

    async def taken_in(self) -> None:
        """Until this broker has taken in all that was changed so far, and the others, if they are quick."""
        term = self.term
        feed, position = term.feed, term.feed.position
        try:
            async with asyncio.timeout(_OTHERS_S):
                await feed.wait_taken_in(position, lambda: term.image.brokers.keys())
        except TimeoutError:
            await feed.wait_taken_in(position, lambda: (term.node_id,))


class Owner(Protocol):
    """Whoever changes things through a ControllerState."""

    state: ControllerState


_O = TypeVar("_O", bound=Owner)
_P = ParamSpec("_P")
_T = TypeVar("_T")
_ChangeMethod = Callable[Concatenate[_O, _P], Coroutine[Any, Any, _T]]


def uninterrupted(method: _ChangeMethod[_O, _P, _T]) -> _ChangeMethod[_O, _P, _T]:
    """A method that goes on to its end where whoever called it is gone: a write that is made and not told would be in the store and not in
    the image, and nobody would know."""

    @functools.wraps(method)
    async def run(owner: _O, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await asyncio.shield(owner.state.own(method(owner, *args, **kwargs)))

    return run


def change(method: _ChangeMethod[_O, _P, _T]) -> _ChangeMethod[_O, _P, _T]:
    """A method that changes the cluster: alone, to its end, and answered when the brokers know."""

    @functools.wraps(method)
    async def whole(owner: _O, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        async with owner.state.lock:
            result = await method(owner, *args, **kwargs)
        if owner.state.active:
            await owner.state.taken_in()
        return result

    return uninterrupted(whole)


def _fence(term: Term) -> list[Write]:
    return [Check(znodes.CONTROLLER_EPOCH, term.epoch_version)]


def _write(path: str, data: bytes | None) -> Write:
    return Delete(path) if data is None else Put(path, data)


def _node_data(term: Term, writes: Sequence[Write]) -> list[NodeData]:
    return [
        term.versioned(write.path, write.data if isinstance(write, Put) else None)
        for write in writes
        if not isinstance(write, Check)
    ]
