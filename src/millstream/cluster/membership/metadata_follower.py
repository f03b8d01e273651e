"""The broker's side of the feed: applies the controller's changes to the image, in order.

The replicas follow the image. The coordination service names the controller. It is asked again
whenever the known one does not respond as controller. A snapshot is collected completely before it
replaces the image, and only differences count as changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from millstream.cluster.controller.feed import NOTHING_APPLIED, page_position
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
    """The source of the feed: the controller in this process, or another broker."""

    async def ask(self, request: ControllerFeedRequest) -> ControllerFeedResponse:
        """Return the response; raise ApiError or OSError if it is not the controller or down."""


class MetadataFollower:
    """Keeps one image up to date. ``on_changes`` returns before a position counts as applied."""

    def __init__(
        self,
        image: ClusterImage,
        cluster_id: str,
        *,
        find_controller: Callable[[], Awaitable[FeedSource]],
        request: Callable[[], ControllerFeedRequest],
        on_changes: Callable[[Sequence[Change]], Awaitable[None]],
        on_response: Callable[[ControllerFeedResponse], None] = lambda response: None,
    ) -> None:
        """``request`` builds the next request, with this broker's report to the controller."""
        self._image = image
        self._cluster_id = cluster_id
        self._find_controller = find_controller
        self._request = request
        self._on_changes = on_changes
        self._on_response = on_response
        self._source: FeedSource | None = None
        self._epoch = -1
        self._position = NOTHING_APPLIED
        self._collecting: ClusterImage | None = None
        # Number of pages in it.
        self._pages = 0
        # Changes in the image that the replicas have not followed yet; a failure is retried.
        self._to_follow: list[Change] = []
        self._request_now = asyncio.Event()
        # Number of responses before the first image.
        self._rounds = 0
        self.ready = asyncio.Event()

    @property
    def controller_epoch(self) -> int:
        return self._epoch

    def request_now(self) -> None:
        """Send the next request now, because there is something to report to the controller."""
        self._request_now.set()

    async def run(self) -> None:
        silent = False
        while True:
            try:
                await self._step()
                silent = False
            except (ApiError, OSError, DecodeError) as error:
                foreign = (
                    isinstance(error, ApiError) and error.code is ErrorCode.INCONSISTENT_CLUSTER_ID
                )
                if not silent and (foreign or not isinstance(error, ApiError)):
                    log.log(
                        logging.ERROR if foreign else logging.INFO,
                        "the controller does not respond: %s",
                        error,
                    )
                    silent = True  # log once until the next success
                self._source = None
                await asyncio.sleep(_RETRY_S)

    async def _step(self) -> None:
        if self._source is None:
            self._source = await self._find_controller()
        response = await self._ask(self._source)
        if response.error_code:
            raise ApiError(ErrorCode.of(response.error_code))
        if response.controller_epoch < self._epoch:
            raise ApiError(ErrorCode.STALE_CONTROLLER_EPOCH)  # deposed without having noticed
        await self._take_in(response)
        self._on_response(response)

    async def _ask(self, source: FeedSource) -> ControllerFeedResponse:
        request = self._request()
        request.controller_epoch, request.position = self._epoch, self._position
        if self._collecting is not None:
            request.more_of_snapshot, request.position = True, page_position(self._pages)
        request.max_wait_ms = 0 if self._request_now.is_set() else _MAX_WAIT_MS
        self._request_now.clear()
        return await source.ask(request)

    async def _take_in(self, response: ControllerFeedResponse) -> None:
        if response.begins_snapshot:
            self._collecting, self._pages = ClusterImage(), 0
            self._position = NOTHING_APPLIED  # the known position is another controller's
        if self._collecting is not None:
            for node in nodes_of(response):
                self._collecting.apply(node.path, node.data, node.version)
            if (cluster_id := self._collecting.cluster_id) != self._cluster_id:
                self._collecting = None  # topics that are not in it would be deleted here
                raise ApiError(
                    ErrorCode.INCONSISTENT_CLUSTER_ID,
                    f"it is the controller of cluster {cluster_id}",
                )
            self._epoch = response.controller_epoch
            self._pages += 1
            if response.more_follows:
                return
            changes: Sequence[Change] = difference(self._image, self._collecting)
            self._image.become(self._collecting)
            self._collecting = None
        else:
            changes = self._apply(response)
        if not self.ready.is_set() and not self._is_fresh(changes):
            self._position = response.position
            self.request_now()
            return
        self._to_follow = list(dict.fromkeys([*self._to_follow, *changes]))
        if self._to_follow or not self.ready.is_set():
            await self._on_changes(self._to_follow)
            self._to_follow = []
        self._position = response.position
        self.ready.set()

    def _is_fresh(self, changes: Sequence[Change]) -> bool:
        """Return whether the image is as new as this broker's start.

        A snapshot may be some time old. Then directories of deleted topics would be taken for logs
        of existing ones. Under constant change, an image after several rounds is new enough.
        """
        self._rounds += 1
        return (not changes and self._rounds > 1) or self._rounds > _ROUNDS

    def _apply(self, response: ControllerFeedResponse) -> Sequence[Change]:
        changed = [
            self._image.apply(node.path, node.data, node.version) for node in nodes_of(response)
        ]
        return list(dict.fromkeys(change for change in changed if change is not None))
