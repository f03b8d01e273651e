"""One broker's term as controller: the image that only it changes, its feed, and its writes.

A change is first made durable, then applied to the image, then published in the feed. Every write
checks the controller epoch, so a deposed controller that has not noticed yet changes nothing. If
the outcome of a write is unknown, the term ends. The next term, on whichever broker, starts by
reading the store.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from millstream.cluster.controller.feed import ControllerFeed
from millstream.control import znodes
from millstream.control.image import ClusterImage, NodeData, TopicImage
from millstream.control.topics import state_write
from millstream.control.znodes import PartitionState
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

# How long a response waits until the other brokers have applied the change. There is no limit for
# this broker.
_OTHERS_S = 1.0


class Term:
    """One controller epoch of this broker."""

    def __init__(
        self,
        node_id: int,
        epoch: int,
        epoch_version: int,
        image: ClusterImage,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self.node_id = node_id
        self.epoch = epoch
        self.epoch_version = epoch_version
        self.image = image
        self.feed = ControllerFeed(epoch, lambda: image.nodes(now_ms=now_ms()))

    def versioned(self, path: str, data: bytes | None) -> NodeData:
        """Return the data of a node, with its version if it is a partition state.

        A snapshot may already have delivered the state; the version shows which is newer.
        """
        parts = path.split("/")
        if data is not None and path.startswith(znodes.TOPICS + "/") and len(parts) == 7:
            topic = self.image.topics.get(parts[3])
            known = topic.states.get(int(parts[5])) if topic is not None else None
            return NodeData(path, data, 0 if known is None else known.partition_epoch + 1)
        return NodeData(path, data)

    def stamped(self, state: PartitionState) -> PartitionState:
        """Return the state with the epoch of the controller that writes it."""
        return replace(state, controller_epoch=self.epoch)

    def state_write(
        self, topic: TopicImage, index: int, state: PartitionState
    ) -> tuple[str, bytes]:
        """Return the write of a partition's new state."""
        return state_write(topic.name, index, self.stamped(state))


class ControllerState:
    """The current term of this broker, if any. All changes go through here, one at a time."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._rate_limited = RateLimitedLog(log)
        self._term: Term | None = None
        self._changes: set[asyncio.Task[Any]] = set()
        self.lock = asyncio.Lock()
        # Called when this broker can no longer be sure that it is the controller.
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

    def is_registered(self, node: int, epoch: int) -> bool:
        """Return whether the process with this broker epoch currently holds the broker's id."""
        registered = self.image.brokers.get(node)
        return registered is not None and registered.epoch == epoch

    def begin(self, term: Term) -> None:
        self._term = term

    def end(self) -> None:
        if self._term is not None:
            term, self._term = self._term, None
            term.feed.close()

    async def close(self) -> None:
        """Wait until all changes in progress have finished."""
        while self._changes:
            await asyncio.gather(*self._changes, return_exceptions=True)

    def own(self, change: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a change to its end, even if the client that requested it has disconnected."""
        task = asyncio.get_running_loop().create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._change_ended)
        return task

    def _change_ended(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, even if the caller has gone

    async def commit(self, *groups: Sequence[tuple[str, bytes | None]]) -> None:
        """Make a change durable and publish it. A large change takes several writes.

        A group is never divided between two writes.
        """
        term = self.term
        for writes in sliced(
            _fence(term), [[_write(path, data) for path, data in group] for group in groups]
        ):
            await self._multi(term, writes)
            self.publish(_node_data(term, writes[1:]), term)

    async def erase(self, paths: Iterable[str]) -> None:
        """Delete nodes and their children without publishing it: their parent goes afterwards."""
        term = self.term
        for writes in sliced(_fence(term), [[Delete(path)] for path in paths]):
            await self._multi(term, writes)

    def publish(self, nodes: Iterable[NodeData], term: Term | None = None) -> None:
        """Apply nodes to the image and publish them; they are durable, or need not be."""
        term = term or self.term
        published = list(nodes)
        for node in published:
            term.image.apply(*node)
        term.feed.publish(published)

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
                ErrorCode.INVALID_REQUEST,
                f"more than one node of the metadata store can hold: {error}",
            ) from None
        except CoordinationError as error:
            log.warning("no longer sure to be the controller (epoch %d): %s", term.epoch, error)
            if self._term is term:
                self.end()
                self.on_doubt()
            raise ApiError(ErrorCode.NOT_CONTROLLER) from None
        if self._term is not term:  # it ended during the write; the next one reads the store
            raise ApiError(ErrorCode.NOT_CONTROLLER)

    async def wait_until_applied(self) -> None:
        """Wait until this broker has applied all changes so far, and briefly for the others."""
        term = self.term
        feed, position = term.feed, term.feed.position
        try:
            async with asyncio.timeout(_OTHERS_S):
                await feed.wait_applied(position, lambda: term.image.brokers.keys())
        except TimeoutError:
            await feed.wait_applied(position, lambda: (term.node_id,))


class Owner(Protocol):
    """An object that makes changes through a ControllerState."""

    state: ControllerState


_O = TypeVar("_O", bound=Owner)
_P = ParamSpec("_P")
_T = TypeVar("_T")
_ChangeMethod = Callable[Concatenate[_O, _P], Coroutine[Any, Any, _T]]


def uninterrupted(method: _ChangeMethod[_O, _P, _T]) -> _ChangeMethod[_O, _P, _T]:
    """Let a method run to its end even if its caller is cancelled.

    A write that is made but not published would be in the store and not in the image.
    """

    @functools.wraps(method)
    async def run(owner: _O, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await asyncio.shield(owner.state.own(method(owner, *args, **kwargs)))

    return run


def change(method: _ChangeMethod[_O, _P, _T]) -> _ChangeMethod[_O, _P, _T]:
    """Let a method change the cluster: alone, to its end, until brokers have applied it."""

    @functools.wraps(method)
    async def whole(owner: _O, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        async with owner.state.lock:
            result = await method(owner, *args, **kwargs)
        if owner.state.active:
            await owner.state.wait_until_applied()
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
