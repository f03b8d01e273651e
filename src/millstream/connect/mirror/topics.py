"""Keeps the target's topics like the source's: existence, number of partitions and settings.

Topics are created before anything is written to them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from millstream.client.admin.client import Admin
from millstream.client.admin.configs import Config
from millstream.client.admin.topics import Topic
from millstream.client.errors import BrokerUnreachable, ClientError, TopicExists
from millstream.client.protocol import Protocol
from millstream.connect.mirror.direction import Direction
from millstream.connect.mirror.policy import MAX_NAME_LENGTH
from millstream.connect.mirror.settings import (
    TIMES,
    TopicPlan,
    TopicState,
    overwrites_times,
    plan_topic,
)
from millstream.core.errors import ErrorCode

SET_ON_TOPIC = "DYNAMIC_TOPIC_CONFIG"
VISIBLE_WITHIN_S = 30.0
RETRY_S = 0.05

Say = Callable[[str], None]


@dataclass
class TopicSync:
    """The topics of one direction. ``say`` prints changes and failures."""

    direction: Direction
    source: Admin
    target: Admin
    say: Say
    rejected: dict[str, str] = field(default_factory=dict)
    """Topics that the target rejects, by their names there, and the reason."""
    _counts: dict[str, int] = field(default_factory=dict)
    _said: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ensure(self, partitions: Mapping[str, int]) -> None:
        """Make sure that the target has these topics, with at least these numbers of partitions."""
        for topic, count in partitions.items():
            if self._counts.get(self.direction.selection.target_topic(topic), 0) < count:
                self.run()
                return

    def run(self) -> None:
        """Make one pass over all topics. One that the target rejects does not stop the others."""
        with self._lock:
            selection = self.direction.selection
            all_names = self.source.topics.names()
            self._report_too_long(all_names)
            source = self._states(
                self.source, [name for name in all_names if selection.copies(name)]
            )
            names = {selection.target_topic(topic) for topic in source}
            existing = [name for name in self.target.topics.names() if name in names]
            target = self._states(self.target, existing)
            brokers = len(self.target.cluster.describe().brokers)
            for topic, state in source.items():
                name = selection.target_topic(topic)
                try:
                    self._follow(
                        name, target.get(name), self._plan(state, target.get(name), brokers)
                    )
                except ClientError as error:
                    if not _is_permanent(error):
                        raise
                    self.rejected[name] = error.message
                    self._say_once(f"topic {name} of {self.direction.target.name}: {error}")
                else:
                    self.rejected.pop(name, None)
                    current = target[name].partitions if name in target else 0
                    self._counts[name] = max(state.partitions, current)

    def _report_too_long(self, names: Iterable[str]) -> None:
        for name in names:
            if self.direction.selection.too_long(name):
                self._say_once(
                    f"topic {name} is not mirrored: with its prefix the name would be longer than "
                    f"{MAX_NAME_LENGTH} characters"
                )

    def _plan(self, state: TopicState, target: TopicState | None, brokers: int) -> TopicPlan:
        return plan_topic(state, target, brokers=brokers, follow_settings=self.direction.leads)

    def _states(self, admin: Admin, names: list[str]) -> dict[str, TopicState]:
        settings = admin.configs.describe_topics(names)
        return {
            topic.name: _state(topic, settings.get(topic.name, []))
            for topic in admin.topics.describe(names)
        }

    def _follow(self, name: str, before: TopicState | None, plan: TopicPlan) -> None:
        where = f"topic {name} of {self.direction.target.name}"
        if plan.create is not None:
            self._create(name, plan.create, where)
        if plan.grow_to is not None:
            self._grow(name, plan.grow_to, where)
        if plan.set or plan.delete:
            self._alter(name, plan, where)
        elif overwrites_times(before) and not self.direction.leads:
            self._say_once(
                f"{where} has message.timestamp.type=LogAppendTime: copies get the time of their arrival"
            )

    def _create(self, name: str, state: TopicState, where: str) -> None:
        try:
            self._create_with(name, state, state.settings)
        # Created concurrently, by the other direction or a user. The next pass checks its settings.
        except TopicExists:
            if len(self.target.topics.get(name).partitions) < state.partitions:
                self._grow(name, state.partitions, where)
            return
        except ClientError as error:
            if error.code != ErrorCode.INVALID_CONFIG:
                raise
            self._create_with(name, state, TIMES)
            self._alter(name, TopicPlan(set=state.settings), where)
        self._wait_for(name, state.partitions)
        self.say(
            f"{where} created: {state.partitions} partitions, {state.replication_factor} replicas"
        )

    def _grow(self, name: str, partitions: int, where: str) -> None:
        self.target.topics.add_partitions(name, partitions)
        self._wait_for(name, partitions)
        self.say(f"{where} grew to {partitions} partitions, like its source")

    def _create_with(self, name: str, state: TopicState, settings: Mapping[str, str]) -> None:
        self.target.topics.create(
            name,
            partitions=state.partitions,
            replication_factor=state.replication_factor,
            configs=settings,
        )

    def _alter(self, name: str, plan: TopicPlan, where: str) -> None:
        """Alter settings in one request, or one by one if the target does not know one of them."""
        try:
            self.target.configs.alter("topic", name, plan.set, delete=plan.delete)
            self._say_once(f"{where}: settings as in the source: {_shown(plan)}")
            return
        except ClientError as error:
            if error.code != ErrorCode.INVALID_CONFIG:
                raise
        for setting, value in plan.set.items():
            try:
                self.target.configs.alter("topic", name, {setting: value})
            except ClientError as error:
                if error.code != ErrorCode.INVALID_CONFIG:
                    raise
                self._say_once(f"{where} rejects {setting}={value}: {error.message}")
        if plan.delete:
            self.target.configs.alter("topic", name, delete=plan.delete)

    def _wait_for(self, name: str, partitions: int) -> None:
        """Wait until the broker that the sink asks too knows the partitions and their leaders."""
        protocol = Protocol(self.direction.target.connection())
        deadline_s = time.monotonic() + VISIBLE_WITHIN_S
        try:
            while time.monotonic() < deadline_s:
                leaders = protocol.leaders([name])
                if sum(leader is not None for leader in leaders.values()) >= partitions:
                    return
                time.sleep(RETRY_S)
        finally:
            protocol.close()

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.say(text)


def _state(topic: Topic, settings: list[Config]) -> TopicState:
    own = {
        setting.name: setting.value or "" for setting in settings if setting.source == SET_ON_TOPIC
    }
    return TopicState(len(topic.partitions), topic.replication_factor, own)


def _is_permanent(error: ClientError) -> bool:
    """Return whether an error concerns one topic, and an immediate retry would fail too."""
    return (
        error.code is not None
        and not error.code.retriable
        and not isinstance(error, BrokerUnreachable)
    )


def _shown(plan: TopicPlan) -> str:
    return ", ".join(
        [
            *(f"{name}={value}" for name, value in plan.set.items()),
            *(f"{name} unset" for name in plan.delete),
        ]
    )
