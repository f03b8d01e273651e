"""Groups under random consumers, a coordinator that crashes and loses what was not replicated, and
appends that fail.

Each seed is a story. Consumers join (some static, some under old versions), stall, crash, leave and
commit, also in transactions; the coordinator may be lost at any step. Always: the log replayed is
the live state; no partition has two owners in one generation; what was committed never goes back.
At the end of every story, when nothing disturbs them any more, the groups come to rest. A failing
seed runs alone: `pytest -k 'story[17]'`.
"""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

import pytest

from millstream.core.errors import ErrorCode
from millstream.groups.classic.states import State
from millstream.groups.settings import GroupSettings
from millstream.groups.topics_view import TopicInfo, TopicsView
from support.groups.world import (
    TOPICS,
    TinyHost,
    commit,
    context,
    fetch,
    heartbeat,
    join,
    leave,
    new_shard,
    replay,
    subscription,
    sync,
    txn_commit,
)

SEEDS = 120
STEPS = 300
GROUPS = ["readers", "writers"]
PARTITIONS = 4
SESSION_MS = 10_000
SETTINGS = GroupSettings(group_initial_rebalance_delay_ms=1_000, group_max_size=6)
# All support both: a coordinator that takes over knows of the members only the protocol that was
# chosen.
PROTOCOLS = {
    "range": (("range", subscription("orders")), ("sticky", subscription("orders"))),
    "sticky": (("sticky", subscription("orders")), ("range", subscription("orders"))),
}


class Ledger:
    """What may be believed: who owns what in which generation, and how far each partition was
    committed.
    """

    def __init__(self) -> None:
        self.owners: dict[tuple[str, int, int], str] = {}
        # (group, partition) -> the next offset to commit; the highest that was acknowledged or seen
        self.next: dict[tuple[str, int], int] = {}
        self.known: dict[tuple[str, int], int] = {}

    def owns(self, group: str, generation: int, who: str, assignment: bytes) -> None:
        for partition in assignment:
            owner = self.owners.setdefault((group, generation, partition), who)
            assert owner == who, (
                f"{group}: partition {partition} of generation {generation}: {owner} and {who}"
            )

    def take(self, group: str, partition: int) -> int:
        """Offsets are handed out in the order in which they are committed: later is higher."""
        offset = self.next.get((group, partition), 0) + 1
        self.next[group, partition] = offset
        return offset

    def seen(self, group: str, partition: int, offset: int) -> None:
        known = self.known.get((group, partition), -1)
        assert offset >= known, f"{group}: offset of {partition} went back from {known} to {offset}"
        self.known[group, partition] = offset

    def acknowledged(self, group: str, partition: int, offset: int) -> None:
        key = (group, partition)
        self.known[key] = max(self.known.get(key, -1), offset)


class Consumer:
    """A client of a group: sends, looks for the answer, reacts to it as clients do."""

    def __init__(self, host: TinyHost, ledger: Ledger, rng: random.Random, number: int) -> None:
        self.host = host
        self.ledger = ledger
        self.group = rng.choice(GROUPS)
        self.version = rng.choice([0, 3, 4, 5, 9])
        self.instance = f"static-{number}" if self.version >= 5 and rng.random() < 0.4 else None
        self.protocols = PROTOCOLS[rng.choice(list(PROTOCOLS))]
        self.who = self.instance or f"consumer-{number}"
        self.restart()

    def restart(self) -> None:
        """A new process: of what it was it knows its instance id alone."""
        self.member_id = ""
        self.generation = -1
        self.assignment: bytes | None = None
        self.waits_for: tuple[str, Any] | None = None
        self.alive = True
        self.last_heard = self.host.now_ms
        self.fenced = False
        self.owned = b""
        self.commits: list[tuple[Any, int, int]] = []

    @property
    def settled(self) -> bool:
        return self.assignment is not None

    # ---- what it does ----

    def step(self) -> None:
        self._look_for_commits()
        if self.fenced or not self.alive:
            return
        if self.waits_for is not None:
            self._look()
        elif self.settled:
            self._heartbeat()
        else:
            self._join()

    def _send(self, decide: str, request: Any, version: int) -> None:
        self.waits_for = (decide, self.host.send(decide, request, version))
        self._look()

    def _look(self) -> None:
        assert self.waits_for is not None
        decide, waiter = self.waits_for
        if waiter in self.host.answers:
            self.waits_for = None
            self.last_heard = self.host.now_ms
            answer = self.host.answers.pop(waiter)
            getattr(self, f"_on_{decide}")(answer)
        elif self.host.now_ms - self.last_heard > 120_000:
            self.waits_for = None  # the request timed out

    def _join(self) -> None:
        self.assignment = None
        request = join(
            self.member_id,
            group=self.group,
            instance=self.instance,
            protocols=self.protocols,
            session_ms=SESSION_MS,
            rebalance_ms=20_000,
        )
        self._send("join", request, self.version)

    def _heartbeat(self) -> None:
        request = heartbeat(
            self.member_id, self.generation, group=self.group, instance=self.instance
        )
        self._send("heartbeat", request, 4)

    # ---- what it hears ----

    def _on_error(self, code: int) -> None:
        if code == ErrorCode.NOT_COORDINATOR:
            return  # ask again
        self.assignment = None
        if code == ErrorCode.FENCED_INSTANCE_ID:
            self.fenced = True
        elif code == ErrorCode.UNKNOWN_MEMBER_ID or code == ErrorCode.GROUP_MAX_SIZE_REACHED:
            self.member_id = ""
        else:
            assert code in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION), (
                ErrorCode.of(code)
            )

    def _on_join(self, answer: Any) -> None:
        if answer is ErrorCode.NOT_COORDINATOR:
            return
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif answer.error_code:
            self._on_error(answer.error_code)
        else:
            self.member_id = answer.member_id
            self.generation = answer.generation_id
            leads = answer.leader == self.member_id and not answer.skip_assignment
            plan = _assign([row.member_id for row in answer.members]) if leads else None
            request = sync(
                self.member_id, self.generation, plan, group=self.group, instance=self.instance
            )
            self._send("sync", request, 5)

    def _on_sync(self, answer: Any) -> None:
        if answer is ErrorCode.NOT_COORDINATOR or answer.error_code:
            self._on_error(answer if answer is ErrorCode.NOT_COORDINATOR else answer.error_code)
            return
        self.ledger.owns(self.group, self.generation, self.who, answer.assignment)
        self.assignment = self.owned = answer.assignment

    def _on_heartbeat(self, answer: Any) -> None:
        if answer is ErrorCode.NOT_COORDINATOR or answer.error_code:
            self._on_error(answer if answer is ErrorCode.NOT_COORDINATOR else answer.error_code)

    # ---- offsets ----

    def commit(self) -> None:
        """Of a partition that it has, or had before it joined again; also while another request is
        under way.
        """
        if not self.owned or not self.alive:
            return
        partition = self.owned[0]
        offset = self.ledger.take(self.group, partition)
        request = commit(
            {("orders", partition): offset},
            self.member_id,
            self.generation,
            group=self.group,
            instance=self.instance,
        )
        self.commits.append((self.host.send("offset_commit", request, 8), partition, offset))

    def _look_for_commits(self) -> None:
        for waiter, partition, offset in list(self.commits):
            if waiter in self.host.answers:
                self.commits.remove((waiter, partition, offset))
                answer = self.host.answers.pop(waiter)
                if (
                    answer is not ErrorCode.NOT_COORDINATOR
                    and not answer.topics[0].partitions[0].error_code
                ):
                    self.ledger.acknowledged(self.group, partition, offset)

    def leave(self) -> None:
        if self.alive and self.member_id and self.waits_for is None:
            self.host.send("leave", leave((self.member_id, self.instance), group=self.group), 5)
            self.alive = False


def _assign(members: list[str]) -> dict[str, bytes]:
    """Partitions in turn; an assignment is the partitions as bytes."""
    return {name: bytes(range(n, PARTITIONS, len(members))) for n, name in enumerate(members)}


class Story:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.host = TinyHost(settings=SETTINGS, auto_advance=False)
        self.ledger = Ledger()
        self.consumers: list[Consumer] = []
        # producer id -> (group, partition, offset) of its open transaction
        self.transactions: dict[int, tuple[str, int, int]] = {}
        self.producers = 100

    # ---- what happens ----

    def run(self) -> None:
        events = [
            (30, self._work),
            (12, self._advance),
            (8, self._pass_time),
            (2, self._come),
            (8, self._commit),
            (1, self._die),
            (1, self._restart),
            (1, self._leave),
            (1, self._fetch),
            (1, self._begin_transaction),
            (1, self._end_transaction),
            (0.4, self._crash),
            (0.4, self._break),
            (0.2, self._change_topics),
            (0.5, self._only_ask),
        ]
        weights = [weight for weight, _ in events]
        for _ in range(STEPS):
            (_, event) = self.rng.choices(events, weights)[0]
            event()
            self._check()
        self._come_to_rest()

    def _work(self) -> None:
        """A round of everybody who does not stall just now."""
        for consumer in self.rng.sample(self.consumers, len(self.consumers)):
            if self.rng.random() < 0.8:
                consumer.step()

    def _advance(self) -> None:
        self.host.advance()

    def _pass_time(self) -> None:
        self.host.pass_time(self.rng.choice([50, 300, 1_000, 1_000, 4_000, 15_000]))

    def _come(self) -> None:
        if len(self.consumers) < 8:
            number = len(self.consumers)
            self.consumers.append(Consumer(self.host, self.ledger, self.rng, number))

    def _one(self) -> Consumer | None:
        return self.rng.choice(self.consumers) if self.consumers else None

    def _commit(self) -> None:
        if consumer := self._one():
            consumer.commit()

    def _die(self) -> None:
        if consumer := self._one():
            consumer.alive = False

    def _restart(self) -> None:
        if (consumer := self._one()) and (not consumer.alive or consumer.instance is not None):
            consumer.restart()

    def _leave(self) -> None:
        if consumer := self._one():
            consumer.leave()

    def _fetch(self) -> None:
        group, partition = self.rng.choice(GROUPS), self.rng.randrange(PARTITIONS)
        waiter = self.host.send("offset_fetch", fetch(("orders", partition), group=group), 8)
        self.host.advance()
        row = self.host.answers.pop(waiter).topics[0].partitions[0]
        assert row.error_code == ErrorCode.NONE
        self.ledger.seen(group, partition, row.committed_offset)

    def _begin_transaction(self) -> None:
        self.producers += 1
        group, partition = self.rng.choice(GROUPS), self.rng.randrange(PARTITIONS)
        offset = self.ledger.take(group, partition)
        request = txn_commit(
            {("orders", partition): offset}, group=group, producer_id=self.producers
        )
        waiter = self.host.send("txn_offset_commit", request, 2)
        self.host.advance()
        answer = self.host.answers.pop(waiter)
        if answer is not ErrorCode.NOT_COORDINATOR:
            assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
            self.transactions[self.producers] = (group, partition, offset)

    def _end_transaction(self) -> None:
        if not self.transactions:
            return
        producer_id = self.rng.choice(list(self.transactions))
        told = self.transactions.pop(producer_id)
        outcome = self.rng.random() < 0.7
        self.host.marker(producer_id, outcome)
        self.host.advance()
        if outcome:
            self.ledger.acknowledged(*told)

    def _crash(self) -> None:
        self.host.crash()
        # A transaction whose commit was answered is in the log; nothing else was told.

    def _break(self) -> None:
        self.host.broken = True

    def _change_topics(self) -> None:
        """Other topics come and go; the one that is read stays."""
        extra = {f"other-{self.rng.randrange(3)}": TopicInfo(self.rng.randbytes(16), 1)}
        version = self.host.topics.version + 1
        self.host.change_topics(TopicsView({**TOPICS.topics, **extra}, version))

    def _only_ask(self) -> None:
        """Decisions that nobody carries out leave no trace, whatever they are about."""
        shard, now_ms = self.host.shard, self.host.now_ms
        before = (deepcopy(shard.state.classic), shard.durable)
        for key in list(self.host.timers):
            shard.decide_timeout(key, now_ms=now_ms)
        for consumer in self.consumers:
            name, member_id, instance = consumer.group, consumer.member_id, consumer.instance
            request = join(member_id, group=name, instance=instance, protocols=consumer.protocols)
            for version in (3, 9):
                shard.decide_join(request, context(version), "nobody", now_ms=now_ms)
            plan = sync(member_id, consumer.generation, {member_id: b"x"}, group=name)
            shard.decide_sync(plan, context(5), "nobody", now_ms=now_ms)
            shard.decide_leave(
                leave((member_id, instance), group=name), context(5), "nobody", now_ms=now_ms
            )
        assert (shard.state.classic, shard.durable) == before

    # ---- what must hold ----

    def _check(self) -> None:
        for group in self.host.shard.state.classic.values():
            assert group.joined == sum(row.join is not None for row in group.members.values())
            assert group.unsynced <= set(group.members)
            assert not group.pending & set(group.members)
            assert group.leader is None or group.leader in group.members
            assert bool(group.members) == (group.leader is not None)
            assert set(group.instances.values()) <= set(group.members)
            assert group.is_empty <= (not group.members)
            for row in group.members.values():
                armed = ("session", group.group_id, row.member_id) in self.host.timers
                assert armed or row.waits, f"nothing would ever tell that {row.member_id} is gone"
        if self.rng.random() < 0.1:
            assert replay(self.host.log, new_shard()).durable == self.host.shard.durable

    def _come_to_rest(self) -> None:
        """Nobody dies any more, and whoever is there works: every group is stable in the end, and
        every partition has an owner.
        """
        host = self.host
        host.broken = False
        host.auto_advance = True
        host.advance()
        for consumer in self.consumers:
            if consumer.fenced:
                consumer.alive = False
        for _ in range(80):
            for consumer in self.consumers:
                consumer.step()
            host.pass_time(SESSION_MS // 4)
        assert replay(host.log, new_shard()).durable == host.shard.durable
        for name in GROUPS:
            self._check_at_rest(name)
        assert not host.waiting

    def _check_at_rest(self, name: str) -> None:
        members = [c for c in self.consumers if c.group == name and c.alive]
        group = self.host.shard.state.classic.get(name)
        if not members:
            assert group is None or group.state is State.EMPTY, group
            return
        assert group is not None
        assert group.state is State.STABLE, group
        inside = [consumer for consumer in members if consumer.settled]
        assert len(inside) == len(group.members) == min(len(members), SETTINGS.group_max_size)
        owned = sorted(partition for consumer in inside for partition in consumer.assignment or b"")
        assert owned == list(range(PARTITIONS))
        assert {consumer.generation for consumer in inside} == {group.generation}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_story(seed: int) -> None:
    Story(seed).run()
