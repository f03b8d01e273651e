"""Consumer groups under random members, topics that come, grow and go, a coordinator that crashes,
and appends that fail.

Each seed is a story. Members of both protocols join, stall, crash, restart, leave for a while or
for good, lose answers and commit; what the coordinator had not replicated may be lost at any step.
Always: the log replayed is the live state, and no partition is with two members, where a member has
what it was told of until it says that it gave it back or is put out. When nothing disturbs them any
more, every group comes to rest, and every partition is read. A failing seed runs alone: `pytest -k
'story[17]'`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from millstream.core.errors import ErrorCode
from millstream.groups.consumer.group import GroupState
from millstream.groups.migration.embedded_protocol import (
    ConsumerProtocolAssignment,
    OwnedTopic,
    assignment_of,
)
from millstream.groups.settings import GroupSettings
from millstream.groups.shard import GroupShard
from millstream.groups.topics_view import TopicInfo, TopicsView
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.schema import Struct
from support.groups.consumer_world import (
    ConsumerHost,
    classic_subscription,
    id_of,
    new_consumer_shard,
    owned_of,
    rows,
)
from support.groups.world import Entry, commit, heartbeat, replay, sync
from support.groups.world import join as classic_join
from support.groups.world import leave as classic_leave

SEEDS = 60
STEPS = 250
GROUPS = ["readers", "writers"]
SETTINGS = GroupSettings(group_initial_rebalance_delay_ms=1_000)
REBALANCE_MS = 12_000
SESSION_MS = 10_000
Place = tuple[bytes, int]


class Replayed:
    """The log of a story replayed, as it grows: on top of what was replayed before, unless some of
    that was taken back. Every fifth time from the beginning, with the topics of that moment, as
    a coordinator that begins.
    """

    def __init__(self, make: Callable[[], GroupShard]) -> None:
        self._make = make
        self._shard = make()
        self._count = 0
        self._last: Entry | None = None
        self._times = 0

    def shard(self, log: list[Entry]) -> GroupShard:
        self._times += 1
        taken_back = self._count > len(log) or (
            self._count and log[self._count - 1] is not self._last
        )
        if taken_back or self._times % 5 == 0:
            self._shard, self._count = self._make(), 0
        replay(log[self._count :], self._shard)
        self._count = len(log)
        self._last = log[-1] if log else None
        return self._shard


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.counts = {"orders": 4, "order-log": 2, "trips": 3}
        self.version = 1
        # How often a topic was deleted: the next of its name has another id.
        self.lives: dict[str, int] = {}
        self.calm = False
        # A third of the worlds are in no hurry to assign; patterns are resolved again all the time.
        settings = replace(
            SETTINGS,
            group_consumer_assignment_interval_ms=1_500 if seed % 3 == 0 else 0,
            group_consumer_regex_refresh_interval_ms=10_000,
        )
        self.host = ConsumerHost(settings=settings, topics=self._view(), auto_advance=False)
        self.replayed = Replayed(self._new_shard)
        self.members: list[Member] = []
        self.born = 0
        mixed = self.rng.random() < 0.5
        self.kinds = [ConsumerMember, ConsumerMember, ClassicMember] if mixed else [ConsumerMember]

    # ---- topics ----

    def id_of(self, name: str) -> bytes:
        return id_of(f"{name}-{self.lives.get(name, 0)}")

    def _view(self) -> TopicsView:
        topics = {name: TopicInfo(self.id_of(name), count) for name, count in self.counts.items()}
        return TopicsView(topics, version=self.version)

    def change_topics(self) -> None:
        name = self.rng.choice(["orders", "order-log", "order-new", "trips"])
        if name in self.counts and self.rng.random() < 0.3 and len(self.counts) > 1:
            for member in self.members:
                member.owned = {place for place in member.owned if place[0] != self.id_of(name)}
            del self.counts[name]
            self.lives[name] = self.lives.get(name, 0) + 1
        else:
            self.counts[name] = min(self.counts.get(name, 0) + 1, 6)
        self.version += 1
        self.host.change_topics(self._view())

    def name_of(self, topic_id: bytes) -> str | None:
        return self.host.topics.name_of(topic_id)

    def names_of(self, wanted: frozenset[str], by_prefix: bool) -> set[str]:
        names = set(self.counts) & wanted
        return names | {name for name in self.counts if by_prefix and name.startswith("order")}

    # ---- the rules ----

    def check_taken(self, taker: Member, places: set[Place]) -> None:
        """Told to read these. Whoever else still has one of them must be out of the group; unless
        the answer came so late that the taker itself is.
        """
        if not self.is_member(taker):
            return
        for other in self.members:
            both = other.owned & places
            if other is not taker and other.group == taker.group and both:
                assert not self.is_member(other), (
                    f"{both} with {other.member_id} and {taker.member_id}"
                )

    def is_member(self, member: Member) -> bool:
        state = self.host.shard.state
        for groups in (state.consumer, state.classic):
            if member.group in groups:
                return member.member_id in groups[member.group].members
        return False

    def check_replay(self) -> None:
        assert self.replayed.shard(self.host.log).durable == self.host.shard.durable

    def check_whole_replay(self) -> None:
        assert replay(self.host.log, self._new_shard()).durable == self.host.shard.durable

    def _new_shard(self) -> GroupShard:
        return new_consumer_shard(SETTINGS, self.host.topics)


class Member:
    """A client: sends, looks for the answer, and believes it."""

    def __init__(self, world: World, number: int) -> None:
        rng = world.rng
        self.world = world
        self.host = world.host
        self.group = rng.choice(GROUPS)
        self.instance = f"static-{number}" if rng.random() < 0.3 else None
        self.number = number
        self.topics = frozenset(rng.sample(["orders", "order-log", "trips"], rng.choice([1, 2, 3])))
        self.by_prefix = False
        self.alive = True
        self.gone = False
        self.start()

    def start(self) -> None:
        """A new process."""
        self.world.born += 1
        self.member_id = ""
        self.epoch = 0
        self.owned: set[Place] = set()
        self.waits_for: Any = None
        self.asked_at = 0
        self.loses_answer = False
        self.commits: list[Any] = []

    # ---- asking ----

    def step(self) -> None:
        if not self.alive or self.gone:
            return
        self._look_at_commits()
        if self.waits_for is not None:
            self._look()
        if self.waits_for is None and not self.gone:
            self.act()

    def act(self) -> None:
        raise NotImplementedError

    def send(self, decide: str, request: Struct, version: int) -> None:
        self.waits_for = (decide, self.host.send(decide, request, version))
        self.asked_at = self.host.now_ms
        self.loses_answer = self.world.rng.random() < self.world_loss
        self._look()

    world_loss = 0.0

    def _look(self) -> None:
        decide, waiter = self.waits_for
        if waiter in self.host.answers:
            answer = self.host.answers.pop(waiter)
            self.waits_for = None
            if self.loses_answer or answer is ErrorCode.NOT_COORDINATOR:
                self.on_lost(decide)
            else:
                getattr(self, f"on_{decide}")(answer)
        elif self.host.now_ms - self.asked_at > 60_000:
            self.waits_for = None
            self.on_lost(decide)

    def on_lost(self, decide: str) -> None:
        raise NotImplementedError

    def take(self, places: set[Place]) -> None:
        self.world.check_taken(self, places - self.owned)
        self.owned = places

    def commit(self) -> None:
        """Offsets of what it reads; a commit that comes too late is refused, nothing worse."""
        if self.alive and not self.gone and self.epoch > 0 and self.owned:
            mine = {(self.world.name_of(topic) or "", index): 7 for topic, index in self.owned}
            request = commit(
                mine, self.member_id, self.epoch, group=self.group, instance=self.instance
            )
            self.commits.append(self.host.send("offset_commit", request, 9))

    def _look_at_commits(self) -> None:
        for waiter in [waiter for waiter in self.commits if waiter in self.host.answers]:
            self.commits.remove(waiter)
            answer = self.host.answers.pop(waiter)
            if answer is not ErrorCode.NOT_COORDINATOR:
                codes = {row.error_code for topic in answer.topics for row in topic.partitions}
                assert codes <= EXPECTED_OF_COMMITS, codes


EXPECTED_OF_COMMITS = {
    ErrorCode.NONE,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.GROUP_ID_NOT_FOUND,
}


class ConsumerMember(Member):
    world_loss = 0.1

    def start(self) -> None:
        super().start()
        self.member_id = f"member-{self.number}-{self.world.born}"
        self.regex = "order.*" if self.world.rng.random() < 0.3 else ""
        self.by_prefix = bool(self.regex)
        self.assignor = self.world.rng.choice([None, None, "uniform", "range"])
        self.full = True
        self.wanted: set[Place] = set()
        # What it must give back, and will say so with a later heartbeat.
        self.acknowledge = False
        self.slow = 0

    def act(self) -> None:
        if self.slow:
            self.slow -= 1
        elif self.acknowledge:
            self.owned &= self.wanted
        full = self.full or self.epoch == 0
        says = full or self.acknowledge
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance,
            rebalance_timeout_ms=REBALANCE_MS if full else -1,
            subscribed_topic_names=sorted(self.topics) if full else None,
            subscribed_topic_regex=self.regex if full else None,
            server_assignor=self.assignor if full else None,
            topic_partitions=rows(_by_topic(self.owned)) if says else None,
        )
        self.full = False
        if not self.slow:
            self.acknowledge = False
        self.send("consumer_heartbeat", request, 1)

    def on_lost(self, decide: str) -> None:
        self.full = True

    def on_consumer_heartbeat(self, answer: Any) -> None:
        if answer.error_code:
            self._on_error(ErrorCode.of(answer.error_code))
            return
        if answer.member_epoch < 0:
            return
        self.epoch = answer.member_epoch
        told = owned_of(answer)
        if told is not None:
            places = {(topic, index) for topic, indexes in told.items() for index in indexes}
            self.wanted = {place for place in places if self.world.name_of(place[0]) is not None}
            dropped = self.owned - self.wanted
            self.take(self.owned | self.wanted)
            self.acknowledge = True
            if dropped and not self.world.calm and self.world.rng.random() < 0.5:
                self.slow = self.world.rng.choice([1, 2, 8])
            elif not self.slow:
                self.owned -= dropped

    def _on_error(self, error: ErrorCode) -> None:
        assert error in EXPECTED_OF_HEARTBEATS, error
        if error is ErrorCode.FENCED_INSTANCE_ID:
            self.gone = True
        self.owned = set()
        self.epoch = 0
        self.full = True
        self.slow = 0
        self.acknowledge = False

    def leave(self) -> None:
        self.owned = set()
        epoch = -2 if self.instance is not None and self.world.rng.random() < 0.7 else -1
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.instance,
        )
        self.host.send("consumer_heartbeat", request, 1)
        self.alive = False

    def resubscribe(self) -> None:
        rng = self.world.rng
        self.topics = frozenset(rng.sample(["orders", "order-log", "trips"], rng.choice([1, 2, 3])))
        self.regex = rng.choice(["", "order.*"])
        self.by_prefix = bool(self.regex)
        self.full = True


EXPECTED_OF_HEARTBEATS = {
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.UNRELEASED_INSTANCE_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
}


class ClassicMember(Member):
    """A consumer that joins and syncs; when it joins it has given everything back (eager), or says
    what it has (cooperative).
    """

    def start(self) -> None:
        super().start()
        self.cooperative = self.world.rng.random() < 0.5
        self.synced = False
        self.protocol = "cooperative-sticky"
        self.parts: list[str] | None = None
        self.joined_with = self.topics

    def act(self) -> None:
        if self.epoch and self.joined_with != self.topics:
            self._join()
        elif self.epoch and self.synced:
            request = heartbeat(
                self.member_id, self.epoch, group=self.group, instance=self.instance
            )
            self.send("heartbeat", request, 3)
        elif self.epoch:
            self._sync()
        else:
            self._join()

    def _join(self) -> None:
        if not self.cooperative or not self.synced:
            self.owned = set()
        owned = {
            self.world.name_of(topic) or "": rows for topic, rows in _by_topic(self.owned).items()
        }
        metadata = classic_subscription(*sorted(self.topics), owned=owned)
        request = classic_join(
            self.member_id,
            group=self.group,
            instance=self.instance,
            protocols=[(self.protocol, metadata)],
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
        )
        self.joined_with = self.topics
        self.send("join", request, 5)

    def _sync(self) -> None:
        shares = self._assign() if self.parts is not None else None
        request = sync(self.member_id, self.epoch, shares, group=self.group, instance=self.instance)
        self.send("sync", request, 3)

    def _assign(self) -> dict[str, bytes]:
        """Eager and fresh: as a leader it may give everything away anew, for all have given
        everything back. With cooperative members it gives what they have to them, and the rest
        to itself.
        """
        assert self.parts is not None
        left = {
            (self.world.id_of(name), index)
            for name, count in self.world.counts.items()
            for index in range(count)
        }
        for other in self.world.members:
            if other is not self and other.group == self.group and self.world.is_member(other):
                left -= other.owned
        shares = {}
        for member_id in self.parts:
            other = next((row for row in self.world.members if row.member_id == member_id), None)
            mine = set() if other is None else other.owned
            if member_id == self.member_id:
                mine = left
            shares[member_id] = self._encoded(mine)
        return shares

    def _encoded(self, places: set[Place]) -> bytes:
        message = ConsumerProtocolAssignment(
            assigned_partitions=[
                OwnedTopic(topic=self.world.name_of(topic) or "", partitions=sorted(indexes))
                for topic, indexes in _by_topic(places).items()
            ]
        )
        return bytes(message.encode(1, bytearray(b"\0\1")))

    def on_join(self, answer: Any) -> None:
        error = ErrorCode.of(answer.error_code)
        if error is ErrorCode.NONE:
            self.member_id = answer.member_id
            self.epoch = answer.generation_id
            self.synced = False
            is_leader = answer.leader == answer.member_id
            self.parts = [row.member_id for row in answer.members] if is_leader else None
        elif error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif error is ErrorCode.UNKNOWN_MEMBER_ID:
            self._forget()
        elif error is ErrorCode.FENCED_INSTANCE_ID:
            self.gone = True
            self.owned = set()
        else:
            assert error in (
                ErrorCode.REBALANCE_IN_PROGRESS,
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            ), error

    def on_sync(self, answer: Any) -> None:
        if answer.error_code:
            self._rejoin(ErrorCode.of(answer.error_code))
            return
        told = assignment_of(answer.assignment).assigned_partitions
        places = {
            (self.world.id_of(row.topic), index)
            for row in told
            if row.topic in self.world.counts
            for index in row.partitions
        }
        gives_back = self.owned - places
        self.take(self.owned | places)
        self.owned = places
        self.synced = True
        if gives_back:
            self.epoch = 0  # joins again to say so

    def on_heartbeat(self, answer: Any) -> None:
        if answer.error_code:
            self._rejoin(ErrorCode.of(answer.error_code))

    def _rejoin(self, error: ErrorCode) -> None:
        self.epoch = 0
        if error is ErrorCode.UNKNOWN_MEMBER_ID:
            self._forget()
        elif error is ErrorCode.FENCED_INSTANCE_ID:
            self.gone = True
            self.owned = set()
        elif error is ErrorCode.ILLEGAL_GENERATION:
            self.owned = set()
        else:
            assert error in (
                ErrorCode.REBALANCE_IN_PROGRESS,
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            ), error

    def _forget(self) -> None:
        self.member_id = ""
        self.epoch = 0
        self.owned = set()
        self.synced = False

    def on_lost(self, decide: str) -> None:
        if decide == "join":
            self.epoch = 0

    def leave(self) -> None:
        self.owned = set()
        if self.member_id and self.instance is None:
            self.host.send("leave", classic_leave((self.member_id, None), group=self.group), 3)
        self.alive = False

    def resubscribe(self) -> None:
        self.topics = frozenset(self.world.rng.sample(["orders", "order-log", "trips"], 2))


def _by_topic(places: set[Place]) -> dict[bytes, set[int]]:
    by_topic: dict[bytes, set[int]] = {}
    for topic, index in places:
        by_topic.setdefault(topic, set()).add(index)
    return by_topic


def disturb(world: World) -> None:
    rng, host = world.rng, world.host
    live = [member for member in world.members if member.alive]
    event = rng.random()
    if event < 0.10 and len(live) < 7:
        world.members.append(rng.choice(world.kinds)(world, len(world.members)))
    elif event < 0.13 and live:
        rng.choice(live).leave()
    elif event < 0.16 and live:
        rng.choice(live).alive = False  # stalls, or is dead
    elif event < 0.20:
        asleep = [member for member in world.members if not member.alive and not member.gone]
        if asleep:
            member = rng.choice(asleep)
            member.alive = True
            if rng.random() < 0.6 or member.waits_for is not None:
                member.start()
    elif event < 0.23:
        world.change_topics()
    elif event < 0.25 and live:
        rng.choice(live).resubscribe()
    elif event < 0.27:
        host.crash()
    elif event < 0.29:
        host.broken = True
    elif event < 0.36 and live:
        rng.choice(live).commit()


def run(world: World) -> None:
    for step in range(STEPS):
        disturb(world)
        for member in world.members:
            if world.rng.random() < 0.6:
                member.step()
        if world.rng.random() < 0.7:
            world.host.advance()
        world.host.pass_time(world.rng.choice([0, 100, 1_000, 3_000, 3_000]))
        if step % 10 == 0:
            world.check_replay()


def settle(world: World) -> None:
    world.calm = True
    world.host.broken = False
    world.host.auto_advance = True
    world.host.advance()
    for member in world.members:
        if not member.alive:
            member.owned = set()
        if isinstance(member, ConsumerMember):
            member.slow = 0
            member.world_loss = 0.0
    for _ in range(60):
        for member in world.members:
            member.step()
        world.host.pass_time(3_000)
    world.check_whole_replay()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_story(seed: int) -> None:
    world = World(seed)
    run(world)
    settle(world)
    for group_id in GROUPS:
        check_at_rest(world, group_id)


def check_at_rest(world: World, group_id: str) -> None:
    members = [row for row in world.members if row.alive and not row.gone and row.group == group_id]
    state = world.host.shard.state
    group = state.consumer.get(group_id)
    if group is None:
        classic = state.classic.get(group_id)
        assert not members or (classic is not None and classic.state.value == "Stable")
        assert not any(isinstance(row, ConsumerMember) for row in members)
        return
    assert group.state is (GroupState.STABLE if members else GroupState.EMPTY)
    read: list[Place] = [place for row in members for place in row.owned]
    wanted = set[str]().union(*(world.names_of(row.topics, row.by_prefix) for row in members))
    everything = [
        (world.id_of(name), index) for name in wanted for index in range(world.counts[name])
    ]
    assert sorted(read) == sorted(everything)
