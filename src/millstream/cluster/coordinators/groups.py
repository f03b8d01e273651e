"""The group coordinator at work: shards on ``__consumer_offsets``, and what they see of the cluster's topics."""

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
_Asked = TypeVar("_Asked", contravariant=True)
_Answered = TypeVar("_Answered", covariant=True)
# So long it may take until followers have confirmed who leads; then the client asks again.
_CONFIRM_S = 5.0


class Decide(Protocol[_Asked, _Answered]):
    """A ``decide_*`` method of a shard, such as ``GroupShard.decide_join``."""

    def __call__(
        self,
        shard: GroupShard,
        request: _Asked,
        context: GroupContext,
        waiter: Waiter[_Answered],
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
        """``racks``: of the brokers that have one."""
        self._topics = topics
        self._image = image
        self._new_id = new_id
        self._max_message_bytes = max_message_bytes
        self._racks_now = racks
        # A broker that is away is still where it was: it need not cost every group a new assignment.
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
        self._look([NOT_A_TOPIC, *map(Change, image.topics)])

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
        """The outcome of a transaction reached the offsets of this partition."""
        self.host.note_marker(index, offset, producer_id, commit)

    def reconfigure(self, settings: GroupSettings) -> None:
        self.settings = settings
        for _, shard in self.host.shards():
            shard.settings = self._shard_settings()

    def topics_changed(self, changes: Iterable[Change]) -> None:
        """Takes a new view of the topics to every shard, where there is something new to see."""
        before = self._view
        self._look(changes)
        if self._view is not before:
            for index, shard in self.host.shards():
                self._catch_up(index, shard)

    def _catch_up(self, index: int, shard: GroupShard) -> None:
        """Topics may also have changed while the shard was being read."""
        view = self._view
        if shard.state.topics is not view:
            self.host.tell(index, lambda shard, now_ms: shard.on_topics_changed(view, now_ms=now_ms))

    def _look(self, changes: Iterable[Change]) -> None:
        """At what has changed as a whole: nobody here sees who leads a partition and who is in sync, which changes most often."""
        names = {change.topic for change in changes if change.partition is None}
        if None in names:
            names.update(self._moved_to_other_racks())
        news = {name: self._info(name) for name in names if name is not None}
        if all(info == self._view.topics.get(name) for name, info in news.items()):
            return
        topics = {**self._view.topics, **news}
        deleted = frozenset(chain.from_iterable(self._image.being_deleted.values()))
        if self.host.loading:
            # Notes go. A shard that has missed the views between hears of these with the one it gets to see.
            deleted |= self._view.deleted
        there = {name: info for name, info in topics.items() if info is not None}
        self._view = TopicsView(there, self._view.version + 1, deleted)

    def _moved_to_other_racks(self) -> Iterable[str]:
        """All topics, where a broker has told of a rack that was not known."""
        racks = {**self._racks, **self._racks_now()}
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

    # ---- asking ----------------------------------------------------------------------------------

    async def offsets_partition(self, group_id: str) -> TopicPartition:
        """Where a group keeps its offsets; makes the topic when it is first needed."""
        return TopicPartition(OFFSETS, partition_of(group_id, await self._topics.ensure(OFFSETS)))

    def call(
        self,
        group_id: str,
        decide: Decide[_Request, Response],
        request: _Request,
        context: GroupContext,
        guard: Verification | None = None,
    ) -> Future[Response]:
        """Run a decision on the shard of a group; raise ApiError where there is none here.

        ``guard`` comes with offsets of a transaction that its coordinator has just verified.
        """
        return self.host.call(
            self._index(group_id),
            lambda shard, waiter, now_ms: decide(shard, request, context, waiter, now_ms=now_ms),
            guard,
        )

    async def unconfirmed(self, group_ids: Iterable[str]) -> dict[str, ApiError]:
        """Those of the groups that this broker does not coordinate for certain, and why. All are waited for together, and groups of one shard once."""
        refused: dict[str, ApiError] = {}
        by_index: dict[int, list[str]] = {}
        pace = Pace()
        for group_id in group_ids:
            await pace.rest()
            try:
                by_index.setdefault(self._index(group_id), []).append(group_id)
            except ApiError as error:
                refused[group_id] = error
        outcomes = await gather(*(self._refusal(index) for index in by_index))
        for outcome, groups in zip(outcomes, by_index.values(), strict=True):
            if outcome is not None:
                refused |= dict.fromkeys(groups, outcome)
        return refused

    async def _refusal(self, index: int) -> ApiError | None:
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
        """Return the answers of every shard here, each for some of its groups. Raise ApiError while
        a shard is being loaded."""
        return await self.host.list_all(lambda shard: shard.state.ids(), decide)


def _racks_of(topic: TopicImage, racks: Mapping[int, str]) -> tuple[tuple[str, ...], ...]:
    """By partition, those of its replicas. No assignor looks at them, as in Kafka; but a group whose partitions have moved to other
    racks is assigned anew."""
    if not racks:
        return ()
    replicas = (topic.replicas[index] for index in range(topic.partition_count))
    return tuple(tuple(sorted(racks[node] for node in nodes if node in racks)) for nodes in replicas)
