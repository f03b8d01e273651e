"""The controller's response to brokers that follow its feed.

A request also reports the state of the broker, which the controller takes in first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from millstream.cluster.controller.feed import FeedClosed, FeedPage
from millstream.cluster.controller.partitions import PartitionControl
from millstream.cluster.controller.term import ControllerState, Term
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.wire.messages.controller_feed import (
    ControllerFeedRequest,
    ControllerFeedResponse,
    FeedNode,
    OfflineReplicas,
    pack,
)

_MAX_WAIT_S = 5.0


class FeedService:
    """Serves the feed on the controller; other brokers respond with NOT_CONTROLLER."""

    def __init__(
        self,
        state: ControllerState,
        partitions: PartitionControl,
        *,
        on_progress: Callable[[int], None] = lambda broker: None,
    ) -> None:
        """``on_progress`` is called with the broker that has sent a request."""
        self._state = state
        self._brokers = partitions.brokers
        self._unavailable = partitions.unavailable
        self._on_progress = on_progress

    async def ask(self, request: ControllerFeedRequest) -> ControllerFeedResponse:
        """Respond to the broker in this process."""
        try:
            return _response(*await self._respond(request))
        except ApiError as error:
            return ControllerFeedResponse(error_code=error.code)

    async def ask_encoded(self, request: ControllerFeedRequest) -> bytes:
        """Return the encoded response for another broker.

        A page that many brokers read is encoded once.
        """
        try:
            epoch, page, may_stop = await self._respond(request)
        except ApiError as error:
            return bytes(ControllerFeedResponse(error_code=error.code).encode(0))
        if may_stop:
            return bytes(pack(_response(epoch, page, may_stop)).encode(0))
        if page.encoded is None:
            page.encoded = bytes(pack(_response(epoch, page, may_stop)).encode(0))
        return page.encoded

    async def _respond(self, request: ControllerFeedRequest) -> tuple[int, FeedPage, bool]:
        """Return the controller epoch, the next page, and whether the broker may stop."""
        term = self._state.term
        registered = self._state.is_registered(request.broker_id, request.broker_epoch)
        may_stop = registered and await self._take_in_report(term, request)
        try:
            page = await term.feed.read(
                request.broker_id,
                request.controller_epoch,
                request.position,
                more_of_snapshot=request.more_of_snapshot,
                registered=registered,
                wait_s=0.0 if may_stop else min(request.max_wait_ms / 1000, _MAX_WAIT_S),
            )
        except FeedClosed:
            raise ApiError(ErrorCode.NOT_CONTROLLER) from None
        self._on_progress(request.broker_id)
        return term.epoch, page, may_stop

    async def _take_in_report(self, term: Term, request: ControllerFeedRequest) -> bool:
        """Take in the state of a broker; return whether it may stop."""
        names = term.image.names_by_id
        node, epoch = request.broker_id, request.broker_epoch
        self._unavailable.set_directories_offline(node, request.directories_offline)
        await self._brokers.replicas_offline(node, epoch, _by_name(request.offline_replicas, names))
        await self._brokers.replicas_full(node, epoch, _by_name(request.full_replicas, names))
        return request.wants_to_stop and await self._brokers.stop_broker(node, epoch)


def _by_name(
    replicas: Iterable[OfflineReplicas], names: Mapping[bytes, str]
) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(name, index)
        for row in replicas
        if (name := names.get(row.topic_id)) is not None
        for index in row.partitions
    )


def _response(epoch: int, page: FeedPage, may_stop: bool) -> ControllerFeedResponse:
    return ControllerFeedResponse(
        controller_epoch=epoch,
        position=page.position,
        begins_snapshot=page.begins_snapshot,
        more_follows=page.more_follows,
        nodes=[
            FeedNode(path=node.path, data=node.data, version=node.version) for node in page.nodes
        ],
        may_stop=may_stop,
    )
