"""A broker's side of the feed: takes in what the controller tells, in order, and lets the replicas follow.

Where the controller is comes from the coordination service, asked anew whenever the last one known does not answer as controller. A
snapshot is collected whole before it replaces the image, and only what differs counts as changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from millstream.cluster.controller.feed import NOTHING_TAKEN_IN, page_position
from millstream.control.image import Change, ClusterImage
from millstream.control.image_difference import difference
from millstream.core.errors import ApiError, ErrorCode
from millstream.wire.messages.controller_feed import (
    ControllerFeedRequest,
    ControllerFeedResponse,
    nodes_of,
)
from millstream.wire.schema import DecodeError

log = logging.getLogger("millstream.metadata")

_MAX_WAIT_MS = 500
_ROUNDS = 20
_RETRY_S = 0.1


class FeedSource(Protocol):
    """Whoever answers for the controller: the one in this process, or another broker."""

    async def ask(self, request: ControllerFeedRequest) -> ControllerFeedResponse:
        """Raises ApiError or OSError where it is not the controller or not there."""


class MetadataFollower:
    """Keeps one image up to date. ``on_changes`` is awaited before the position counts as taken in."""

    def __init__(
        self,
        image: ClusterImage,
        cluster_id: str,
        *,
        find_controller: Callable[[], Awaitable[FeedSource]],
        request: Callable[[], ControllerFeedRequest],
        on_changes: Callable[[Sequence[Change]], Awaitable[None]],
        on_answer: Callable[[ControllerFeedResponse], None] = lambda answer: None,
    ) -> None:
        """``request`` makes the next request, with all that the controller should know of this broker."""
        self._image = image
        self._cluster_id = cluster_id
        self._find_controller = find_controller
        self._request = request
        self._on_changes = on_changes
        self._on_answer = on_answer
        self._source: FeedSource | None = None
        self._epoch = -1
        self._position = NOTHING_TAKEN_IN
        self._collecting: ClusterImage | None = None
        self._pages = 0  # that are collected
        self._to_follow: list[Change] = []  # in the image; where following them fails, it is tried again
        self._hurry = asyncio.Event()
        self._rounds = 0  # before the first image
        self.ready = asyncio.Event()

    @property
    def controller_epoch(self) -> int:
        return self._epoch

    def hurry(self) -> None:
        """There is something to tell the controller: ask now."""
        self._hurry.set()

    async def run(self) -> None:
        silent = False
        while True:
            try:
                await self._step()
                silent = False
            except (ApiError, OSError, DecodeError) as error:
                foreign = isinstance(error, ApiError) and error.code is ErrorCode.INCONSISTENT_CLUSTER_ID
                if not silent and (foreign or not isinstance(error, ApiError)):
                    log.log(
                        logging.ERROR if foreign else logging.INFO,
                        "the controller does not answer: %s",
                        error,
                    )
                    silent = True  # told once, until one answers again
                self._source = None
                await asyncio.sleep(_RETRY_S)

    async def _step(self) -> None:
        if self._source is None:
            self._source = await self._find_controller()
        answer = await self._ask(self._source)
        if answer.error_code:
            raise ApiError(ErrorCode.of(answer.error_code))
        if answer.controller_epoch < self._epoch:
            raise ApiError(ErrorCode.STALE_CONTROLLER_EPOCH)  # it has been replaced and does not know
        await self._take_in(answer)
        self._on_answer(answer)

    async def _ask(self, source: FeedSource) -> ControllerFeedResponse:
        request = self._request()
        request.controller_epoch, request.position = self._epoch, self._position
        if self._collecting is not None:
            request.more_of_snapshot, request.position = True, page_position(self._pages)
        request.max_wait_ms = 0 if self._hurry.is_set() else _MAX_WAIT_MS
        self._hurry.clear()
        return await source.ask(request)

    async def _take_in(self, answer: ControllerFeedResponse) -> None:
        if answer.begins_snapshot:
            self._collecting, self._pages = ClusterImage(), 0
            self._position = NOTHING_TAKEN_IN  # the one that was known is another controller's
        if self._collecting is not None:
            for node in nodes_of(answer):
                self._collecting.apply(node.path, node.data, node.version)
            if (theirs := self._collecting.cluster_id) != self._cluster_id:
                self._collecting = None  # what is not in it would be deleted here
                raise ApiError(ErrorCode.INCONSISTENT_CLUSTER_ID, f"it is that of the cluster {theirs}")
            self._epoch = answer.controller_epoch
            self._pages += 1
            if answer.more_follows:
                return
            changes: Sequence[Change] = difference(self._image, self._collecting)
            self._image.become(self._collecting)
            self._collecting = None
        else:
            changes = self._apply(answer)
        if not self.ready.is_set() and not self._is_fresh(changes):
            self._position = answer.position
            self.hurry()
            return
        self._to_follow = list(dict.fromkeys([*self._to_follow, *changes]))
        if self._to_follow or not self.ready.is_set():
            await self._on_changes(self._to_follow)
            self._to_follow = []
        self._position = answer.position
        self.ready.set()

    def _is_fresh(self, changes: Sequence[Change]) -> bool:
        """The first image that anybody gets to see is as new as this broker's start: a snapshot may be some time old, and
        directories of topics that are gone would be taken for theirs. While everything changes all the time, new enough will do."""
        self._rounds += 1
        return (not changes and self._rounds > 1) or self._rounds > _ROUNDS

    def _apply(self, answer: ControllerFeedResponse) -> Sequence[Change]:
        changed = [self._image.apply(node.path, node.data, node.version) for node in nodes_of(answer)]
        return list(dict.fromkeys(change for change in changed if change is not None))
