"""The controller: plans changes purely, writes them durably, and only then lets the image and the replicas follow.

One change at a time, and each is finished once it has begun, whether or not the client that asked for it is still
there: one that stopped half-way would be in the store and not in the image. What the coordination service did not
acknowledge has not happened.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

from millstream.control import znodes
from millstream.control.features import updated_level
from millstream.control.image import ClusterImage
from millstream.control.topics import (
    NewTopic,
    NodeWrites,
    TopicPlan,
    plan_adopt,
    plan_create,
    plan_delete,
    plan_grow,
)
from millstream.core.config import BrokerConfig
from millstream.core.errors import ApiError, ErrorCode
from millstream.ports.coordination import Coordination, Delete, Put, Write

# So many topics are deleted by one write: their paths through the image take milliseconds that others wait.
_AT_ONCE = 200

log = logging.getLogger("millstream.controller")

PRODUCER_ID_BLOCK = 1000
# All settings of a topic or broker, as they are to be.
ConfigPlan = Callable[[], Mapping[str, str]]


@dataclass(slots=True)
class Outcome:
    """What became of one topic or resource of a request."""

    code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    plan: TopicPlan | None = field(default=None, repr=False)

    @classmethod
    def of(cls, error: ApiError) -> Outcome:
        return cls(error.code, error.message)


_P = ParamSpec("_P")
_T = TypeVar("_T")
_Change = Callable[Concatenate["Controller", _P], Coroutine[Any, Any, _T]]


def _whole(change: _Change[_P, _T]) -> _Change[_P, _T]:
    """Runs a change as a task of the controller, which the end of the caller does not end."""

    @functools.wraps(change)
    async def run(controller: Controller, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        task = asyncio.get_running_loop().create_task(change(controller, *args, **kwargs))
        controller._changes.add(task)
        task.add_done_callback(controller._change_ended)
        return await asyncio.shield(task)

    return run


class Controller:
    """Changes the cluster. ``on_topics`` makes the replicas follow, ``on_settings`` the broker's own settings, ``on_groups``
    those of groups."""

    def __init__(
        self,
        coordination: Coordination,
        image: ClusterImage,
        config: BrokerConfig,
        *,
        new_id: Callable[[], bytes],
        brokers: Callable[[], Sequence[int]],
        on_topics: Callable[[Sequence[str]], Awaitable[None]],
        on_settings: Callable[[], Awaitable[None]],
        may_forget: Callable[[], bool] = lambda: True,
        on_groups: Callable[[], None] = lambda: None,
    ) -> None:
        self._coordination = coordination
        self._image = image
        self._config = config
        self._new_id = new_id
        self._brokers = brokers
        self._on_topics = on_topics
        self._on_settings = on_settings
        self._may_forget = may_forget
        self._on_groups = on_groups
        self._lock = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()

    def _change_ended(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            task.exception()  # seen, also where the caller is gone

    async def close(self) -> None:
        """Returns when every change that has begun is finished."""
        while self._changes:
            await asyncio.gather(*self._changes, return_exceptions=True)

    async def _commit(self, nodes: NodeWrites) -> None:
        """Durable first, then the image, then whoever follows it."""
        if not nodes:
            return
        writes: list[Write] = [Delete(path) if data is None else Put(path, data) for path, data in nodes]
        try:
            await self._coordination.multi(writes)
        except OSError as error:
            log.error("the metadata store cannot be written: %s", error)
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata store cannot be written: {error}"
            ) from None
        changed = [self._image.apply(path, data) for path, data in nodes]
        topics = list(dict.fromkeys(name for name in changed if name is not None))
        if topics:
            await self._on_topics(topics)

    # ---- topics ---------------------------------------------------------------------------------------------

    @_whole
    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> dict[str, Outcome]:
        async with self._lock:
            outcomes = {new.name: self._plan_create(new) for new in topics}
            if not validate_only:
                plans = [outcome.plan for outcome in outcomes.values() if outcome.plan is not None]
                try:
                    await self._commit([write for plan in plans for write in plan.writes])
                except ApiError as error:
                    return {name: o if o.plan is None else Outcome.of(error) for name, o in outcomes.items()}
            return outcomes

    def _plan_create(self, new: NewTopic) -> Outcome:
        try:
            plan = plan_create(
                self._image,
                new,
                brokers=self._brokers(),
                default_partitions=self._config.integer("num.partitions"),
                default_replication_factor=self._config.integer("default.replication.factor"),
                topic_id=self._new_id(),
            )
        except ApiError as error:
            return Outcome.of(error)
        return Outcome(plan=plan)

    @_whole
    async def adopt_topic(
        self, name: str, topic_id: bytes, epochs: Sequence[int], broker: int, configs: Mapping[str, str]
    ) -> None:
        """Takes in a topic whose directories were found on disk, with the leader epoch of each partition."""
        async with self._lock:
            await self._commit(plan_adopt(name, topic_id, epochs, broker, configs))

    @_whole
    async def grow_topic(
        self, name: str, count: int, assignments: Sequence[tuple[int, ...]] | None, *, validate_only: bool
    ) -> Outcome:
        async with self._lock:
            try:
                writes = plan_grow(self._image, name, count, assignments, self._brokers())
                if not validate_only:
                    await self._commit(writes)
            except ApiError as error:
                return Outcome.of(error)
            return Outcome()

    @_whole
    async def delete_topics(self, topics: Mapping[str, bytes]) -> dict[str, Outcome]:
        """Deletes topics, each in the incarnation that its id names: forgotten first, then their directories renamed (a
        crash in between is finished at the next start), and removed in the background."""
        async with self._lock:
            outcomes = {name: self._check_deletion(name, topic_id) for name, topic_id in topics.items()}
            doomed = [name for name, outcome in outcomes.items() if not outcome.code]
            for begin in range(0, len(doomed), _AT_ONCE):
                some = doomed[begin : begin + _AT_ONCE]
                try:
                    await self._delete(some)
                except ApiError as error:
                    outcomes |= {name: Outcome.of(error) for name in some}
            return outcomes

    async def _delete(self, names: Sequence[str]) -> None:
        await self._commit([write for name in names for write in plan_delete(self._image, name)])
        if self._may_forget():
            await self._forget(names)

    def _check_deletion(self, name: str, topic_id: bytes) -> Outcome:
        """Somebody else may have deleted it, or made it anew, since the client asked."""
        topic = self._image.topics.get(name)
        if topic is None:
            return Outcome.of(ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        return Outcome() if topic.topic_id == topic_id else Outcome.of(ApiError(ErrorCode.UNKNOWN_TOPIC_ID))

    @_whole
    async def forget_deleted(self, names: Sequence[str]) -> None:
        """At start, when the deletions that a crash interrupted have been finished."""
        async with self._lock:
            await self._forget(names)

    async def _forget(self, names: Sequence[str]) -> None:
        await self._commit([(znodes.deleted_topic_path(name), None) for name in names])

    # ---- settings and features ------------------------------------------------------------------------------

    @_whole
    async def set_topic_config(self, topic: str, plan: ConfigPlan) -> None:
        """``plan`` decides when its turn has come, so that no change made meanwhile is lost."""
        async with self._lock:
            if topic not in self._image.topics:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            await self._commit([(znodes.topic_config_path(topic), znodes.encode_config(plan()))])

    @_whole
    async def set_broker_config(self, broker: str, plan: ConfigPlan) -> None:
        async with self._lock:
            await self._commit([(znodes.broker_config_path(broker), znodes.encode_config(plan()))])
            await self._on_settings()

    @_whole
    async def set_group_config(self, group: str, plan: ConfigPlan) -> None:
        """A group without settings of its own is not kept."""
        async with self._lock:
            await self._commit([(znodes.group_config_path(group), _unless_empty(plan()))])
            self._on_groups()

    @_whole
    async def set_client_metrics_config(self, subscription: str, plan: ConfigPlan) -> None:
        async with self._lock:
            await self._commit([(znodes.client_metrics_config_path(subscription), _unless_empty(plan()))])

    @_whole
    async def update_features(
        self, updates: Sequence[tuple[str, int, int]], *, validate_only: bool
    ) -> dict[str, Outcome]:
        """(name, level, upgrade type) each; all of them or, when one fails, none."""
        async with self._lock:
            levels = dict(self._image.feature_levels)
            outcomes: dict[str, Outcome] = {}
            for name, level, upgrade_type in updates:
                try:
                    levels[name] = updated_level(name, levels.get(name, 0), level, upgrade_type)
                    outcomes[name] = Outcome()
                except ApiError as error:
                    outcomes[name] = Outcome.of(error)
            failed = any(outcome.code for outcome in outcomes.values())
            if not failed and not validate_only and levels != self._image.feature_levels:
                data = znodes.encode_features(levels, self._image.feature_epoch + 1)
                await self._commit([(znodes.FEATURES, data)])
            return outcomes

    # ---- producer ids ---------------------------------------------------------------------------------------

    @_whole
    async def skip_producer_ids(self, broker: int, highest: int) -> None:
        """Ids up to this one are in use, in logs that were written elsewhere."""
        async with self._lock:
            if highest > self._image.last_producer_id:
                data = znodes.encode_producer_id_block(broker, highest, highest)
                await self._commit([(znodes.PRODUCER_ID_BLOCK, data)])

    async def allocate_producer_ids(self, broker: int) -> range:
        """A block that no one else will ever get, also not after a crash."""
        async with self._lock:
            start = self._image.last_producer_id + 1
            block = range(start, start + PRODUCER_ID_BLOCK)
            data = znodes.encode_producer_id_block(broker, block[0], block[-1])
            await self._commit([(znodes.PRODUCER_ID_BLOCK, data)])
            return block


def _unless_empty(config: Mapping[str, str]) -> bytes | None:
    return znodes.encode_config(config) if config else None
