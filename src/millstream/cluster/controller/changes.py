"""The controller's changes to topics, settings, features and producer ids.

Pure functions of ``control/`` plan each change; the controller's term writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from millstream.cluster.controller import topic_deletion
from millstream.cluster.controller.term import ControllerState, change, uninterrupted
from millstream.control import znodes
from millstream.control.features import updated_level
from millstream.control.image import ClusterImage
from millstream.control.topics import (
    MAX_CREATED,
    NewTopic,
    TopicPlan,
    check_total,
    metric_name,
    plan_adopt,
    plan_create,
    plan_grow,
)
from millstream.core.config import BrokerConfig
from millstream.core.errors import ApiError, ErrorCode
from millstream.ports.turns import Pace

PRODUCER_ID_BLOCK = 1000
# Returns all settings of a topic or broker as they should be after the change.
ConfigPlan = Callable[[ClusterImage], Mapping[str, str]]


@dataclass(slots=True)
class Outcome:
    """The result for one topic or resource of a request."""

    code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    plan: TopicPlan | None = field(default=None, repr=False)

    @classmethod
    def of(cls, error: ApiError) -> Outcome:
        """Return the outcome of an error; raise NOT_CONTROLLER, so that the client retries."""
        if error.code is ErrorCode.NOT_CONTROLLER:
            raise error
        return cls(error.code, error.message)


class Controller:
    """Changes the cluster while this broker is its controller; else raises NOT_CONTROLLER."""

    def __init__(
        self, state: ControllerState, config: BrokerConfig, *, new_id: Callable[[], bytes]
    ) -> None:
        self.state = state
        self._config = config
        self._new_id = new_id

    # ---- topics ----

    @change
    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> dict[str, Outcome]:
        try:
            check_total(topics, self._config.integer("num.partitions"))
        except ApiError as error:
            return {new.name: Outcome.of(error) for new in topics}
        pace = Pace()
        outcomes: dict[str, Outcome] = {}
        # Names in metrics, of existing topics and of those planned here.
        metric_names: dict[str, str] = {}
        if any("." in new.name or "_" in new.name for new in topics):
            for name in list(self.state.image.topics):
                metric_names.setdefault(metric_name(name), name)
                await pace.rest()
        for new in topics:
            outcome = outcomes[new.name] = self._plan_create(new, metric_names)
            if outcome.plan is not None:
                metric_names[metric_name(new.name)] = new.name
            await pace.rest()
        if not validate_only:
            plans = [outcome.plan for outcome in outcomes.values() if outcome.plan is not None]
            try:
                await self.state.commit(*([write] for plan in plans for write in plan.writes))
            except ApiError as error:
                return {
                    name: o if o.plan is None else Outcome.of(error) for name, o in outcomes.items()
                }
        return outcomes

    def _plan_create(self, new: NewTopic, metric_names: Mapping[str, str]) -> Outcome:
        """Plan one topic; ``metric_names`` has existing and planned topics by name in metrics."""
        try:
            plan = plan_create(
                self.state.image,
                new,
                topics_by_metric_name=metric_names,
                brokers=self._brokers(),
                racks=self._racks(),
                down=self._down(),
                default_partitions=self._config.integer("num.partitions"),
                default_replication_factor=self._config.integer("default.replication.factor"),
                topic_id=self._new_id(),
                controller_epoch=self.state.term.epoch,
            )
        except ApiError as error:
            return Outcome.of(error)
        return Outcome(plan=plan)

    @change
    async def adopt_topic(
        self,
        name: str,
        topic_id: bytes,
        epochs: Sequence[int],
        broker: int,
        configs: Mapping[str, str],
    ) -> None:
        """Adopt a topic whose directories were found on disk; ``epochs`` has its leader epochs."""
        epoch = self.state.term.epoch
        writes = plan_adopt(name, topic_id, epochs, broker, configs, controller_epoch=epoch)
        await self.state.commit(*([write] for write in writes))

    @change
    async def grow_topic(
        self,
        name: str,
        count: int,
        assignments: Sequence[tuple[int, ...]] | None,
        *,
        validate_only: bool,
        left: int = MAX_CREATED,
    ) -> Outcome:
        """Add partitions; ``left`` is the number that the request may still add."""
        try:
            writes = plan_grow(
                self.state.image,
                name,
                count,
                assignments,
                self._brokers(),
                self._racks(),
                down=self._down(),
                left=left,
                controller_epoch=self.state.term.epoch,
            )
            if not validate_only:
                await self.state.commit(*([write] for write in writes))
        except ApiError as error:
            return Outcome.of(error)
        return Outcome()

    @change
    async def delete_topics(self, topics: Mapping[str, bytes]) -> dict[str, Outcome]:
        """Delete topics, each only if it still has the given topic id.

        The metadata is deleted first. Then brokers rename the directories, and remove them in the
        background. A crash in between is finished at the next start.
        """
        outcomes = {name: self._check_deletion(name, topic_id) for name, topic_id in topics.items()}
        deletable = [name for name, outcome in outcomes.items() if not outcome.code]
        at_once = topic_deletion.PARTITIONS_AT_ONCE
        for names in list(topic_deletion.batches(self.state.image, deletable, at_once)):
            try:
                await topic_deletion.delete_batch(self.state, names)
            except ApiError as error:
                outcomes |= {name: Outcome.of(error) for name in names}
        return outcomes

    def _check_deletion(self, name: str, topic_id: bytes) -> Outcome:
        """Check whether the topic still exists: it may have been deleted or recreated since."""
        topic = self.state.image.topics.get(name)
        if topic is None:
            return Outcome.of(ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        return (
            Outcome()
            if topic.topic_id == topic_id
            else Outcome.of(ApiError(ErrorCode.UNKNOWN_TOPIC_ID))
        )

    @uninterrupted
    async def finish_deletions(self) -> None:
        async with self.state.lock:
            await topic_deletion.finish_deletions(self.state)

    @change
    async def forget_deleted(self, gone: Mapping[str, Sequence[bytes]]) -> None:
        """Drop the deletion records of topics that no broker has any more.

        A record that has got another id since then stays whole.
        """
        recorded = self.state.image.being_deleted
        done = [name for name, ids in gone.items() if list(recorded.get(name, ())) == list(ids)]
        await self.state.commit(*([(znodes.deleted_topic_path(name), None)] for name in done))

    def _brokers(self) -> list[int]:
        """Return the brokers that may get replicas: all registered ones."""
        return sorted(self.state.image.registered_brokers())

    def _down(self) -> frozenset[int]:
        """Return the registered brokers that are not live.

        A broker that is shutting down counts as down, unless there is no other.
        """
        image = self.state.image
        able = image.brokers.keys() - image.stopping or image.brokers.keys()
        return frozenset(image.registered.keys() | image.brokers.keys()) - able

    def _racks(self) -> dict[int, str | None]:
        return {node: broker.rack for node, broker in self.state.image.registered_brokers().items()}

    # ---- brokers ----

    @change
    async def unregister_broker(self, node: int) -> None:
        """Remove a broker that will not come back; raise ApiError if it is unknown or live.

        Apache Kafka removes the registration of a live broker, whose process is then useless until
        it is restarted. Here the operator stops the broker first.
        """
        image = self.state.image
        if node in image.brokers:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"Broker {node} is running; stop it before it is unregistered.",
            )
        if node not in image.registered:
            raise ApiError(
                ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {node} is not currently registered"
            )
        others = [broker for broker in image.registered.values() if broker.node_id != node]
        await self.state.commit([(znodes.REGISTERED, znodes.encode_registered(others))])

    # ---- settings and features ----

    @change
    async def set_topic_config(self, topic: str, plan: ConfigPlan) -> None:
        """Change a topic's settings. ``plan`` runs under the lock: no concurrent change is lost."""
        if topic not in self.state.image.topics:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        await self.state.commit(
            [(znodes.topic_config_path(topic), znodes.encode_config(plan(self.state.image)))]
        )

    @change
    async def set_broker_config(self, broker: str, plan: ConfigPlan) -> None:
        await self.state.commit(
            [(znodes.broker_config_path(broker), znodes.encode_config(plan(self.state.image)))]
        )

    @change
    async def set_group_config(self, group: str, plan: ConfigPlan) -> None:
        """Change a group's settings; a group without any is not stored."""
        data = _unless_empty(plan(self.state.image))
        await self.state.commit([(znodes.group_config_path(group), data)])

    @change
    async def set_client_metrics_config(self, subscription: str, plan: ConfigPlan) -> None:
        data = _unless_empty(plan(self.state.image))
        await self.state.commit([(znodes.client_metrics_config_path(subscription), data)])

    @change
    async def update_features(
        self, updates: Sequence[tuple[str, int, int]], *, validate_only: bool
    ) -> dict[str, Outcome]:
        """Apply updates (name, level, upgrade type): all of them or, if one fails, none."""
        levels = dict(self.state.image.feature_levels)
        pace = Pace()
        outcomes: dict[str, Outcome] = {}
        for name, level, upgrade_type in updates:
            await pace.rest()
            try:
                levels[name] = updated_level(name, levels.get(name, 0), level, upgrade_type)
                outcomes[name] = Outcome()
            except ApiError as error:
                outcomes[name] = Outcome.of(error)
        failed = any(outcome.code for outcome in outcomes.values())
        if not failed and not validate_only and levels != self.state.image.feature_levels:
            data = znodes.encode_features(levels, self.state.image.feature_epoch + 1)
            await self.state.commit([(znodes.FEATURES, data)])
        return outcomes

    # ---- producer ids ----

    @change
    async def skip_producer_ids(self, broker: int, highest: int) -> None:
        """Mark ids up to this one as used: they occur in logs that were written elsewhere."""
        if highest > self.state.image.last_producer_id:
            data = znodes.encode_producer_id_block(broker, highest, highest)
            await self.state.commit([(znodes.PRODUCER_ID_BLOCK, data)])

    @uninterrupted
    async def allocate_producer_ids(self, broker: int) -> range:
        """Return a block of ids that is never allocated again, not even after a crash."""
        async with self.state.lock:
            start = self.state.image.last_producer_id + 1
            block = range(start, start + PRODUCER_ID_BLOCK)
            data = znodes.encode_producer_id_block(broker, block[0], block[-1])
            await self.state.commit([(znodes.PRODUCER_ID_BLOCK, data)])
            return block


def _unless_empty(config: Mapping[str, str]) -> bytes | None:
    return znodes.encode_config(config) if config else None
