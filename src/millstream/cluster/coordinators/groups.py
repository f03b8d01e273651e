"""The group coordinator: shards on ``__consumer_offsets``, and their view of the topics."""

from __future__ import annotations

from asyncio import Future, gather
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Protocol, TypeVar

from millstream.cluster.coordinators.host import COMMIT_TIMEOUT_S, CoordinatorHost
from millstream.cluster.coordinators.internal_topics import OFFSETS, InternalTopics
from millstream.cluster.replicas.partition import Partition
from millstream.control.image import NOT_A_TOPIC, Change, ClusterImage, TopicImage
from millstream.core.decisions import Decision, Response, Waiter
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.hashing import partition_of
from millstream.core.types import TopicPartition
from millstream.groups import records
from millstream.groups.settings import GroupSettings
from millstream.groups.shard import GroupShard
from millstream.groups.shard_state import GroupContext
from millstream.groups.topics_view import TopicInfo, TopicsView
from millstream.log.producers.state import Verification
from millstream.ports.clock import Clock
from millstream.ports.turns import Pace

_Request = TypeVar("_Request")
_RequestT = TypeVar("_RequestT", contravariant=True)
_ResponseT = TypeVar("_ResponseT", covariant=True)
# Maximum time until followers have confirmed the leader; then the client retries.
_CONFIRM_S = 5.0


class Decide(Protocol[_RequestT, _ResponseT]):
    """A ``decide_*`` method of a shard, such as ``GroupShard.decide_join``."""

    def __call__(
        self,
        shard: GroupShard,
        request: _RequestT,
        context: GroupContext,
        waiter: Waiter[_ResponseT],
        /,
        *,
        now_ms: int,
    ) -> Decision: ...


class GroupDriver:
    """Finds the shard of a group and runs decisions on it."""

    def __init__(
        self,
        topics: InternalTopics,
        image: ClusterImage,
        clock: Clock,
        settings: GroupSettings,
        new_id: Callable[[], str],
        max_message_bytes: Callable[[], int],
        racks: Callable[[], Mapping[int, str]],
        commit_timeout_s: Callable[[], float] = lambda: COMMIT_TIMEOUT_S,
    ) -> None:
        """``racks`` returns the racks of live brokers that have one."""
        self._topics = topics
        self._image = image
        self._new_id = new_id
        self._max_message_bytes = max_message_bytes
        self._live_racks = racks
        # Racks of brokers that are down are kept: they must not cost every group a new assignment.
        self._racks: dict[int, str] = {}
        self._view = TopicsView()
        self.settings = settings
        self.host = CoordinatorHost(
            OFFSETS,
            clock,
            records,
            self._make_shard,
            on_ready=self._catch_up,
            commit_timeout_s=commit_timeout_s,
        )
        self._update_view([NOT_A_TOPIC, *map(Change, image.topics)])

    def _make_shard(self, index: int, epoch: int) -> GroupShard:
        return GroupShard(self._shard_settings(), self._view, self._new_id)

    def _shard_settings(self) -> GroupSettings:
        return replace(self.settings, max_message_bytes=self._max_message_bytes())

    @property
    def topics(self) -> TopicsView:
        """The topics as shards see them."""
        return self._view

    def lead(self, partition: Partition) -> None:
        self.host.lead(partition)

    def resign(self, index: int) -> None:
        self.host.resign(index)

    def marker_written(self, index: int, offset: int, producer_id: int, commit: bool) -> None:
        """Apply the outcome of a transaction to the offsets in this partition."""
        self.host.marker_written(index, offset, producer_id, commit)

    def reconfigure(self, settings: GroupSettings) -> None:
        self.settings = settings
        for _, shard in self.host.shards():
            shard.settings = self._shard_settings()

    def topics_changed(self, changes: Iterable[Change]) -> None:
        """Give every shard a new view of the topics if they have changed."""
        before = self._view
        self._update_view(changes)
        if self._view is not before:
            for index, shard in self.host.shards():
                self._catch_up(index, shard)

    def _catch_up(self, index: int, shard: GroupShard) -> None:
        """Give a shard the current view: topics may have changed while it was loaded."""
        view = self._view
        if shard.state.topics is not view:
            self.host.run(index, lambda shard, now_ms: shard.on_topics_changed(view, now_ms=now_ms))

    def _update_view(self, changes: Iterable[Change]) -> None:
        """Update the view with changes of whole topics.

        Leaders and ISRs, which change most often, are not in the view.
        """
        names = {change.topic for change in changes if change.partition is None}
        if None in names:
            names.update(self._topics_with_new_racks())
        changed = {name: self._info(name) for name in names if name is not None}
        if all(info == self._view.topics.get(name) for name, info in changed.items()):
            return
        topics = {**self._view.topics, **changed}
        deleted = frozenset(chain.from_iterable(self._image.being_deleted.values()))
        if self.host.loading:
            # Deletion records expire. A shard that has missed earlier views learns of the deletions
            # from the next one.
            deleted |= self._view.deleted
        existing = {name: info for name, info in topics.items() if info is not None}
        self._view = TopicsView(existing, self._view.version + 1, deleted)

    def _topics_with_new_racks(self) -> Iterable[str]:
        """Return all topics if a broker has a rack that was not known, else none."""
        racks = {**self._racks, **self._live_racks()}
        if racks == self._racks:
            return ()
        self._racks = racks
        return self._image.topics

    def _info(self, name: str) -> TopicInfo | None:
        topic = self._image.topics.get(name)
        if topic is None:
            return None
        return TopicInfo(topic.topic_id, topic.partition_count, _racks_of(topic, self._racks))

    def close(self) -> None:
        self.host.close()

    # ---- requests ----

    async def offsets_partition(self, group_id: str) -> TopicPartition:
        """Return the partition of a group's offsets; create the topic when it is first needed."""
        return TopicPartition(OFFSETS, partition_of(group_id, await self._topics.ensure(OFFSETS)))

    def call(
        self,
        group_id: str,
        decide: Decide[_Request, Response],
        request: _Request,
        context: GroupContext,
        guard: Verification | None = None,
    ) -> Future[Response]:
        """Run a decision on the shard of a group; raise ApiError if it is not here.

        ``guard`` comes with offsets of a transaction that its coordinator has just verified.
        """
        return self.host.call(
            self._index(group_id),
            lambda shard, waiter, now_ms: decide(shard, request, context, waiter, now_ms=now_ms),
            guard,
        )

    async def unconfirmed(self, group_ids: Iterable[str]) -> dict[str, ApiError]:
        """Return the groups that this broker does not certainly coordinate, and why.

        All are awaited together, and groups of one shard once.
        """
        errors: dict[str, ApiError] = {}
        by_index: dict[int, list[str]] = {}
        pace = Pace()
        for group_id in group_ids:
            await pace.rest()
            try:
                by_index.setdefault(self._index(group_id), []).append(group_id)
            except ApiError as error:
                errors[group_id] = error
        outcomes = await gather(*(self._confirmation_error(index) for index in by_index))
        for outcome, groups in zip(outcomes, by_index.values(), strict=True):
            if outcome is not None:
                errors |= dict.fromkeys(groups, outcome)
        return errors

    async def _confirmation_error(self, index: int) -> ApiError | None:
        try:
            await self.host.confirm(index, _CONFIRM_S)
        except ApiError as error:
            return error
        return None

    def _index(self, group_id: str) -> int:
        count = self._topics.partitions(OFFSETS)
        if not count:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        return partition_of(group_id, count)

    async def list_all(
        self, decide: Callable[[list[str]], Callable[[GroupShard, Any, int], Decision]]
    ) -> Sequence[Any]:
        """Return the responses of every shard here, each for some of its groups.

        Raise ApiError while a shard is being loaded.
        """
        return await self.host.list_all(lambda shard: shard.state.ids(), decide)


def _racks_of(topic: TopicImage, racks: Mapping[int, str]) -> tuple[tuple[str, ...], ...]:
    """Return the racks of the replicas of each partition.

    No assignor uses them, as in Kafka. But a group whose partitions have moved to other racks gets
    a new assignment.
    """
    if not racks:
        return ()
    replicas = (topic.replicas[index] for index in range(topic.partition_count))
    return tuple(
        tuple(sorted(racks[node] for node in nodes if node in racks)) for nodes in replicas
    )
