"""The controller's answer to a broker that follows it: what changed, and what the broker has told of itself taken to heart."""

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

_MOST_WAIT_S = 5.0


class FeedService:
    """Answers on the broker that is the controller; elsewhere with NOT_CONTROLLER."""

    def __init__(
        self,
        state: ControllerState,
        partitions: PartitionControl,
        *,
        on_progress: Callable[[int], None] = lambda broker: None,
    ) -> None:
        """``on_progress`` is told which broker has asked."""
        self._state = state
        self._partitions = partitions
        self._on_progress = on_progress

    async def ask(self, request: ControllerFeedRequest) -> ControllerFeedResponse:
        """For the broker in this process."""
        try:
            return _response(*await self._answer(request))
        except ApiError as error:
            return ControllerFeedResponse(error_code=error.code)

    async def ask_encoded(self, request: ControllerFeedRequest) -> bytes:
        """For the others: the body of the answer. Where many get the same, it is encoded once."""
        try:
            epoch, page, may_stop = await self._answer(request)
        except ApiError as error:
            return bytes(ControllerFeedResponse(error_code=error.code).encode(0))
        if may_stop:
            return bytes(pack(_response(epoch, page, may_stop)).encode(0))
        if page.encoded is None:
            page.encoded = bytes(pack(_response(epoch, page, may_stop)).encode(0))
        return page.encoded

    async def _answer(self, request: ControllerFeedRequest) -> tuple[int, FeedPage, bool]:
        """The controller epoch, what comes next, and whether the broker may stop."""
        term = self._state.term
        registered = self._partitions.is_registered(request.broker_id, request.broker_epoch)
        may_stop = registered and await self._hear(term, request)
        try:
            page = await term.feed.read(
                request.broker_id,
                request.controller_epoch,
                request.position,
                more_of_snapshot=request.more_of_snapshot,
                registered=registered,
                wait_s=0.0 if may_stop else min(request.max_wait_ms / 1000, _MOST_WAIT_S),
            )
        except FeedClosed:
            raise ApiError(ErrorCode.NOT_CONTROLLER) from None
        self._on_progress(request.broker_id)
        return term.epoch, page, may_stop

    async def _hear(self, term: Term, request: ControllerFeedRequest) -> bool:
        """Whether the broker may stop."""
        names = term.image.names_by_id
        node, epoch = request.broker_id, request.broker_epoch
        self._partitions.directories_offline(node, request.directories_offline)
        await self._partitions.replicas_offline(node, epoch, _partitions(request.offline_replicas, names))
        await self._partitions.replicas_full(node, epoch, _partitions(request.full_replicas, names))
        return request.wants_to_stop and await self._partitions.stop_broker(node, epoch)


def _partitions(replicas: Iterable[OfflineReplicas], names: Mapping[bytes, str]) -> frozenset[TopicPartition]:
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
        nodes=[FeedNode(path=node.path, data=node.data, version=node.version) for node in page.nodes],
        may_stop=may_stop,
    )
