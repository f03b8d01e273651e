"""Groups that move between the classic and the consumer protocol while their members are live."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millstream.core.errors import ErrorCode as E
from millstream.groups.classic.states import State
from millstream.groups.consumer.group import GroupState
from millstream.groups.migration.embedded_protocol import (
    ConsumerProtocolAssignment,
    OwnedTopic,
    assignment_of,
)
from support.groups.consumer_world import (
    SETTINGS,
    ConsumerHost,
    beat,
    classic_subscription,
    id_of,
    leave,
    new_consumer_shard,
    told,
    topics_of,
)
from support.groups.consumer_world import join as consumer_join
from support.groups.world import GROUP, SESSION_MS, heartbeat, join, replay, sync
from support.groups.world import leave as classic_leave

ORDERS = id_of("orders")
VERSION = 3


def assignment(*indexes: int, user_data: bytes | None = None) -> bytes:
    rows = [OwnedTopic(topic="orders", partitions=list(indexes))]
    message = ConsumerProtocolAssignment(assigned_partitions=rows, user_data=user_data)
    return bytes(message.encode(1, bytearray(b"\0\1")))


def read(data: bytes) -> dict[str, list[int]]:
    return {row.topic: row.partitions for row in assignment_of(data).assigned_partitions}


def classic(*owned: int, name: str = "range") -> list[tuple[str, bytes]]:
    return [(name, classic_subscription("orders", owned={"orders": owned} if owned else None))]


def new_host(**settings: Any) -> ConsumerHost:
    return ConsumerHost(
        topics=topics_of(1, orders=4, trips=2), settings=replace(SETTINGS, **settings)
    )


def classic_group(host: ConsumerHost, *shares: bytes, instance: str | None = None) -> list[str]:
    """A stable classic group with these assignments; the ids of its members, leader first."""
    protocols = classic()
    waiters = [
        host.send(
            "join", join(protocols=protocols, instance=instance if not number else None), VERSION
        )
        for number in range(len(shares))
    ]
    while waiters[0] in host.waiting:
        host.pass_time(1_000)
    ids = [host.answers[waiter].member_id for waiter in waiters]
    leader = host.answers[waiters[0]].leader
    ids.sort(key=lambda member_id: member_id != leader)
    given = dict(zip(ids, shares, strict=True))
    for member_id in ids[::-1]:
        static = instance if member_id == leader else None
        request = sync(member_id, 1, given if member_id == leader else None, instance=static)
        host.send("sync", request, VERSION)
    return ids


# ---- up ----


def test_a_classic_group_becomes_a_consumer_group_when_a_member_joins_with_its_protocol() -> None:
    host = new_host()
    old, other = classic_group(host, assignment(0, 1), assignment(2, 3))
    assert host.beat(consumer_join("m1", "orders")) == told("m1", 2, {})

    group = host.group()
    assert GROUP not in host.shard.state.classic
    assert {row.member_id: row.is_classic for row in group.members.values()} == {
        old: True,
        other: True,
        "m1": False,
    }
    assert group.members[old].current.assigned == {ORDERS: {0: 1, 1: 1}}
    assert host.timers[("consumer-session", GROUP, old)] == host.now_ms + SESSION_MS
    assert ("session", GROUP, old) not in host.timers

    # The classic members are told to join again; what one of them gives back goes to the new
    # member.
    kept = [*_follow(host, old, [0, 1]), *_follow(host, other, [2, 3])]
    (row,) = host.beat(beat("m1", 2)).assignment.topic_partitions
    assert sorted([*kept, *row.partitions]) == [0, 1, 2, 3]
    assert group.state is GroupState.STABLE
    assert replay(host.log, new_consumer_shard(SETTINGS, host.topics)).durable == host.shard.durable


def _follow(host: ConsumerHost, member_id: str, owned: list[int]) -> list[int]:
    """A classic, cooperative member follows from generation 1 into epoch 2; what it has then."""
    for _ in range(2):
        assert (
            host.ask("heartbeat", heartbeat(member_id, 1), VERSION).error_code
            == E.REBALANCE_IN_PROGRESS
        )
    generation = 1
    while generation == 1:
        answer = host.ask("join", join(member_id, protocols=classic(*owned)), VERSION)
        assert (answer.error_code, answer.leader) == (0, "")
        generation = answer.generation_id
        synced = host.ask("sync", sync(member_id, generation), VERSION)
        owned = read(synced.assignment).get("orders", [])
    assert host.ask("heartbeat", heartbeat(member_id, 2), VERSION).error_code == E.NONE
    return owned


def test_an_empty_classic_group_makes_room() -> None:
    host = new_host()
    (member_id,) = classic_group(host, assignment(0, 1, 2, 3))
    host.ask("leave", classic_leave((member_id, None)), VERSION)
    assert host.beat(consumer_join("m1", "orders")) == told("m1", 2, {ORDERS: range(4)})
    assert replay(host.log, new_consumer_shard(SETTINGS, host.topics)).durable == host.shard.durable


def test_members_that_wait_for_a_rebalance_are_told_to_come_again() -> None:
    host = new_host()
    waiter = host.send("join", join(protocols=classic()), VERSION)
    assert waiter in host.waiting
    assert host.beat(consumer_join("m1", "orders")).error_code == E.NONE
    assert host.answers[waiter].error_code == E.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_an_upgrade_may_be_switched_off(policy: str) -> None:
    host = new_host(group_consumer_migration_policy=policy)
    classic_group(host, assignment(0))
    assert host.beat(consumer_join("m1", "orders")).error_code == E.GROUP_ID_NOT_FOUND
    assert host.shard.state.classic[GROUP].state is State.STABLE


@pytest.mark.parametrize(
    "share",
    [assignment(0, user_data=b"mine"), b"\0", b"\xff\xff"],
    ids=["user data", "short", "version"],
)
def test_what_cannot_be_taken_over_stays_classic(share: bytes) -> None:
    host = new_host()
    classic_group(host, share)
    assert host.beat(consumer_join("m1", "orders")).error_code == E.GROUP_ID_NOT_FOUND
    assert host.shard.state.classic[GROUP].state is State.STABLE


def test_a_group_of_others_than_consumers_stays_classic() -> None:
    host = new_host()
    host.send("join", join(protocol_type="connect", protocols=[("v1", b"")]), VERSION)
    assert host.beat(consumer_join("m1", "orders")).error_code == E.GROUP_ID_NOT_FOUND


def test_a_static_classic_member_comes_back_with_the_consumer_protocol() -> None:
    host = new_host()
    old, other = classic_group(host, assignment(0, 1), assignment(2, 3), instance="i1")
    assert host.beat(consumer_join("m1", "orders", instance_id="i1")) == told(
        "m1", 1, {ORDERS: [0, 1]}
    )
    assert set(host.group().members) == {"m1", other}
    assert old not in host.group().members


# ---- in between ----


def mixed(host: ConsumerHost) -> str:
    """A consumer group of ``m1`` and a classic member, both settled; its id."""
    host.beat(consumer_join("m1", "orders"))
    member_id: str = host.ask("join", join(protocols=classic()), 4).member_id
    answer = host.ask("join", join(member_id, protocols=classic()), 4)
    assert (answer.error_code, answer.generation_id, answer.protocol_name) == (0, 3, "range")
    assert read(host.ask("sync", sync(member_id, 3), VERSION).assignment) == {}
    host.beat(beat("m1", 2))
    host.beat(beat("m1", 2, {ORDERS: [0, 1]}))
    assert (
        host.ask("heartbeat", heartbeat(member_id, 3), VERSION).error_code
        == E.REBALANCE_IN_PROGRESS
    )
    host.ask("join", join(member_id, protocols=classic()), 4)
    assert read(host.ask("sync", sync(member_id, 3), VERSION).assignment) == {"orders": [2, 3]}
    assert host.group().state is GroupState.STABLE
    return member_id


def test_a_classic_member_joins_a_consumer_group() -> None:
    host = new_host()
    member_id = mixed(host)
    assert host.ask("heartbeat", heartbeat(member_id, 3), VERSION).error_code == E.NONE


def test_a_classic_member_must_come_with_a_known_id_since_v4() -> None:
    host = new_host()
    host.beat(consumer_join("m1", "orders"))
    answer = host.ask("join", join(protocols=classic()), 4)
    assert (answer.error_code, bool(answer.member_id)) == (E.MEMBER_ID_REQUIRED, True)


def test_a_classic_member_that_is_called_must_join_in_time() -> None:
    host = new_host()
    member_id = mixed(host)
    host.beat(consumer_join("m2", "orders"))
    called_at = host.now_ms
    for _ in range(13):
        assert (
            host.ask("heartbeat", heartbeat(member_id, 3), VERSION).error_code
            == E.REBALANCE_IN_PROGRESS
        )
        for name in {"m1", "m2"} & set(host.group().members):
            host.beat(beat(name, host.group().members[name].current.epoch))
        assert host.timers[("consumer-join", GROUP, member_id)] == called_at + 60_000
        host.pass_time(4_500)
    host.pass_time(2_000)
    assert member_id not in host.shard.state.consumer[GROUP].members


BAD = {
    "sync, wrong generation": (lambda m: ("sync", sync(m, 2)), E.ILLEGAL_GENERATION),
    "sync, unknown member": (lambda m: ("sync", sync("m9", 3)), E.UNKNOWN_MEMBER_ID),
    "sync, wrong type": (
        lambda m: ("sync", sync(m, 3, protocol_type="connect")),
        E.INCONSISTENT_GROUP_PROTOCOL,
    ),
    "sync, wrong protocol": (
        lambda m: ("sync", sync(m, 3, protocol_name="other")),
        E.INCONSISTENT_GROUP_PROTOCOL,
    ),
    "heartbeat, wrong generation": (lambda m: ("heartbeat", heartbeat(m, 2)), E.ILLEGAL_GENERATION),
    "heartbeat, unknown instance": (
        lambda m: ("heartbeat", heartbeat(m, 3, instance="i9")),
        E.UNKNOWN_MEMBER_ID,
    ),
    "join, no common protocol": (
        lambda m: ("join", join("m9", protocols=classic(name="other"))),
        E.INCONSISTENT_GROUP_PROTOCOL,
    ),
    "join, wrong type": (
        lambda m: ("join", join("m9", protocol_type="connect", protocols=classic())),
        E.INCONSISTENT_GROUP_PROTOCOL,
    ),
    "join, unreadable": (
        lambda m: ("join", join("m9", protocols=[("range", b"\0")])),
        E.INCONSISTENT_GROUP_PROTOCOL,
    ),
    "join, put out but owning": (
        lambda m: ("join", join("m9", protocols=classic(0))),
        E.UNKNOWN_MEMBER_ID,
    ),
    "join, unknown instance": (
        lambda m: ("join", join("m9", instance="i9", protocols=classic())),
        E.UNKNOWN_MEMBER_ID,
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_classic_members_may_not(case: str) -> None:
    host = new_host()
    member_id = mixed(host)
    ask, error = BAD[case]
    written = len(host.log)
    decide, request = ask(member_id)
    assert host.ask(decide, request, 5).error_code == error
    assert len(host.log) == written


def test_classic_members_may_be_kept_out() -> None:
    host = new_host(group_consumer_migration_policy="disabled")
    host.beat(consumer_join("m1", "orders"))
    assert (
        host.ask("join", join("m9", protocols=classic()), 5).error_code
        == E.INCONSISTENT_GROUP_PROTOCOL
    )


# ---- down ----


def check_classic(host: ConsumerHost, member_id: str) -> None:
    group = host.shard.state.classic[GROUP]
    assert GROUP not in host.shard.state.consumer
    assert set(group.members) == {member_id}
    assert group.state is State.PREPARING_REBALANCE
    assert not [
        key for key in host.timers if isinstance(key, tuple) and str(key[0]).startswith("consumer")
    ]
    assert replay(host.log, new_consumer_shard(SETTINGS, host.topics)).durable == host.shard.durable
    answer = host.ask("join", join(member_id, protocols=classic()), VERSION)
    assert (answer.error_code, answer.leader, answer.generation_id) == (
        0,
        member_id,
        group.generation + 1,
    )


def test_with_the_last_consumer_member_the_group_becomes_classic_again() -> None:
    host = new_host()
    member_id = mixed(host)
    assert host.beat(leave("m1")).error_code == E.NONE
    check_classic(host, member_id)


def test_so_it_does_when_that_member_is_put_out() -> None:
    host = new_host()
    member_id = mixed(host)
    for _ in range(9):
        host.ask("heartbeat", heartbeat(member_id, 3), VERSION)
        host.pass_time(5_000)
    check_classic(host, member_id)


def test_an_operator_may_put_it_out_too() -> None:
    host = new_host()
    member_id = mixed(host)
    assert host.ask("leave", classic_leave(("m1", None)), VERSION).members[0].error_code == E.NONE
    check_classic(host, member_id)


@pytest.mark.parametrize("policy", ["disabled", "upgrade"])
def test_a_downgrade_may_be_switched_off(policy: str) -> None:
    host = new_host()
    member_id = mixed(host)
    host.shard.settings = replace(SETTINGS, group_consumer_migration_policy=policy)
    host.beat(leave("m1"))
    assert set(host.group().members) == {member_id}


def test_a_static_member_comes_back_with_the_classic_protocol() -> None:
    host = new_host()
    host.beat(consumer_join("m1", "orders", instance_id="i1"))
    host.beat(leave("m1", -2, instance_id="i1"))
    answer = host.ask("join", join(instance="i1", protocols=classic()), 5)
    assert (answer.error_code, answer.generation_id) == (0, 2)
    group = host.shard.state.classic[GROUP]
    assert group.state is State.STABLE
    request = sync(answer.member_id, 2, instance="i1")
    assert read(host.ask("sync", request, 5).assignment) == {"orders": [0, 1, 2, 3]}
    assert replay(host.log, new_consumer_shard(SETTINGS, host.topics)).durable == host.shard.durable


def test_leaving_of_unknown_members() -> None:
    host = new_host()
    mixed(host)
    request = classic_leave(("m9", None), ("", "i9"))
    codes = [row.error_code for row in host.ask("leave", request, VERSION).members]
    assert codes == [E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID]
