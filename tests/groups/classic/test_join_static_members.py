"""Static members (KIP-345): a restart within the session costs no rebalance; of two with one
instance id the older is fenced.
"""

from __future__ import annotations

import pytest

from millstream.core.decisions import Arm, Decision, Disarm, Reply
from millstream.core.errors import ErrorCode
from millstream.groups.classic.group import ClassicGroup
from millstream.groups.classic.states import State
from millstream.groups.effects import SetClassicGroup
from millstream.groups.shard import GroupShard
from millstream.wire.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from support.groups.world import (
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    TinyHost,
    commit,
    context,
    group_of,
    heartbeat,
    join,
    leave,
    member,
    new_shard,
    replay,
    stable_group,
    sync,
)

NOW = 1_000


def shard_with(group: ClassicGroup) -> GroupShard:
    shard = new_shard()
    shard.perform(SetClassicGroup(GROUP, group))
    return shard


def two_static(**values: object) -> ClassicGroup:
    return group_of(
        member("old", instance_id="one", assignment=b"1"),
        member("other", instance_id="two", assignment=b"2"),
        **values,
    )


def test_a_restarted_static_leader_takes_its_place_again_without_a_rebalance() -> None:
    decision = shard_with(two_static(leader="old")).decide_join(
        join(instance="one"), context(9), "w", now_ms=NOW
    )
    replaced = group_of(
        member("other", instance_id="two", assignment=b"2"),
        member("one-1", instance_id="one", assignment=b"1"),
        leader="one-1",
    )
    metadata = member("x").protocols[0][1]
    answer = JoinGroupResponse(
        generation_id=1,
        protocol_type="consumer",
        protocol_name="range",
        leader="one-1",
        skip_assignment=True,
        member_id="one-1",
        members=[
            JoinGroupResponseMember(member_id="other", group_instance_id="two", metadata=metadata),
            JoinGroupResponseMember(member_id="one-1", group_instance_id="one", metadata=metadata),
        ],
    )
    assert decision == Decision(
        (replaced.record(),),
        (
            SetClassicGroup(GROUP, replaced),
            Disarm(("session", GROUP, "old")),
            Arm(("session", GROUP, "one-1"), NOW + SESSION_MS),
            Reply("w", answer),
        ),
    )


def test_before_v9_a_restarted_leader_is_shown_the_old_leader_so_that_it_does_not_assign() -> None:
    decision = shard_with(two_static(leader="old")).decide_join(
        join(instance="one"), context(8), "w", now_ms=NOW
    )
    answer = JoinGroupResponse(
        generation_id=1,
        protocol_type="consumer",
        protocol_name="range",
        leader="old",
        member_id="one-1",
    )
    assert decision.effects[-1] == Reply("w", answer)


def test_a_restarted_static_follower_hears_who_leads() -> None:
    decision = shard_with(two_static(leader="old")).decide_join(
        join(instance="two"), context(9), "w", now_ms=NOW
    )
    answer = decision.effects[-1].response
    assert (answer.leader, answer.members, answer.skip_assignment) == ("old", [], False)


def test_a_static_member_whose_protocols_change_the_choice_rebalances() -> None:
    both = (("range", b""), ("sticky", b""))
    group = group_of(
        member("old", instance_id="one", protocols=both),
        member("other", protocols=both),
        leader="other",
    )
    decision = shard_with(group).decide_join(
        join(instance="one", protocols=(("sticky", b""),)), context(9), "w", now_ms=NOW
    )
    assert decision.records == ()
    assert decision.effects[0].group.state is State.PREPARING_REBALANCE
    assert decision.effects[0].group.members["one-1"].join == "w"
    assert decision.effects[-1] == Arm(("join", GROUP), NOW + REBALANCE_MS)


def test_a_static_member_that_restarts_between_join_and_sync_rebalances() -> None:
    """The leader knows it under its old id: its assignment would reach nobody."""
    group = two_static(
        leader="other", state=State.COMPLETING_REBALANCE, unsynced=frozenset({"old", "other"})
    )
    group.put(member("other", instance_id="two", sync="ws"))
    decision = shard_with(group).decide_join(join(instance="one"), context(9), "w", now_ms=NOW)
    assert decision.effects[0].group.state is State.PREPARING_REBALANCE
    replies = [effect for effect in decision.effects if isinstance(effect, Reply)]
    assert [(reply.to, reply.response.error_code) for reply in replies] == [
        ("ws", ErrorCode.REBALANCE_IN_PROGRESS)
    ]


def test_the_older_of_two_with_one_instance_id_is_fenced_where_it_waits() -> None:
    host = TinyHost()
    stable_group(host, 1)
    parked = host.send("join", join(instance="one"), 5)
    host.send("join", join(instance="one"), 5)
    assert host.answers[parked].error_code == ErrorCode.FENCED_INSTANCE_ID


def test_the_older_of_two_with_one_instance_id_is_fenced_everywhere() -> None:
    host = TinyHost()
    first = host.send("join", join(instance="one"), 5)
    host.pass_time(3_000)
    old = host.answers[first].member_id
    host.ask("sync", sync(old, 1, {old: b"all"}, instance="one"), 5)
    new = host.ask("join", join(instance="one"), 9).member_id
    assert host.ask("sync", sync(new, 1, instance="one"), 5).assignment == b"all"
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert host.ask("heartbeat", heartbeat(old, 1, instance="one"), 4).error_code == fenced
    assert host.ask("sync", sync(old, 1, instance="one"), 5).error_code == fenced
    assert host.ask("join", join(old, instance="one"), 9).error_code == fenced
    answer = host.ask("offset_commit", commit({("orders", 0): 1}, old, 1, instance="one"), 8)
    assert answer.topics[0].partitions[0].error_code == fenced
    assert host.ask("leave", leave((old, "one")), 5).members[0].error_code == fenced
    assert host.ask("heartbeat", heartbeat(old, 1), 4).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert (
        host.ask("heartbeat", heartbeat(new, 1, instance="none"), 4).error_code
        == ErrorCode.UNKNOWN_MEMBER_ID
    )


def test_a_restarted_static_member_is_the_same_to_a_new_coordinator() -> None:
    host = TinyHost()
    waiter = host.send("join", join(instance="one"), 5)
    host.pass_time(3_000)
    old = host.answers[waiter].member_id
    host.ask("sync", sync(old, 1, {old: b"all"}), 5)
    new = host.ask("join", join(instance="one"), 9).member_id
    host.crash()
    assert host.ask("sync", sync(new, 1, instance="one"), 5).assignment == b"all"
    assert replay(host.log, new_shard()).durable == host.shard.durable


def test_a_failed_append_leaves_the_old_static_member_in_place() -> None:
    host = TinyHost()
    waiter = host.send("join", join(instance="one"), 5)
    host.pass_time(3_000)
    old = host.answers[waiter].member_id
    host.ask("sync", sync(old, 1, {old: b"all"}), 5)
    host.broken = True
    refused = host.send("join", join(instance="one"), 9)
    assert host.answers[refused] == ErrorCode.NOT_COORDINATOR
    assert host.ask("heartbeat", heartbeat(old, 1, instance="one"), 4).error_code == ErrorCode.NONE


def test_a_static_member_that_restarts_during_a_rebalance_is_not_fenced_by_a_new_coordinator() -> (
    None
):
    """Its new id is in the log at once, though the rebalance it takes part in is not."""
    host = TinyHost()
    waiters = [host.send("join", join(instance=name), 5) for name in ("one", "two")]
    host.pass_time(6_000)
    one, two = (host.answers[waiter].member_id for waiter in waiters)
    host.send("sync", sync(two, 1), 5)
    host.send("sync", sync(one, 1, {one: b"1", two: b"2"}), 5)
    host.send("join", join(one, instance="one"), 5)
    parked = host.send("join", join(instance="two"), 9)
    again = host.answers[parked].member_id
    assert host.answers[parked].generation_id == 2
    host.crash()
    group = host.shard.state.classic[GROUP]
    assert (group.state, group.generation, group.instances) == (
        State.STABLE,
        1,
        {"one": one, "two": again},
    )
    assert (
        host.ask("heartbeat", heartbeat(again, 2, instance="two"), 4).error_code
        == ErrorCode.ILLEGAL_GENERATION
    )
    assert (
        host.ask("heartbeat", heartbeat(two, 1, instance="two"), 4).error_code
        == ErrorCode.FENCED_INSTANCE_ID
    )
    assert host.ask("sync", sync(again, 1, instance="two"), 5).assignment == b"2"


def test_a_static_member_that_comes_back_after_its_session_is_not_fenced_by_a_new_coordinator() -> (
    None
):
    host = TinyHost()
    waiters = [
        host.send("join", join(instance=name, session_ms=ms), 5)
        for name, ms in (("one", 60_000), ("two", 6_000))
    ]
    host.pass_time(6_000)
    one, two = (host.answers[waiter].member_id for waiter in waiters)
    host.send("sync", sync(two, 1), 5)
    host.send("sync", sync(one, 1, {one: b"1", two: b"2"}), 5)
    host.pass_time(6_000)
    assert list(host.shard.state.classic[GROUP].members) == [one]
    host.send("join", join(instance="two"), 9)
    again = next(name for name in host.shard.state.classic[GROUP].members if name != one)
    host.crash()
    assert host.shard.state.classic[GROUP].instances == {"one": one, "two": again}
    assert replay(host.log, new_shard()).durable == host.shard.durable


def test_static_members_are_not_put_out_by_the_rebalance_timeout_but_by_their_session() -> None:
    host = TinyHost()
    waiters = [host.send("join", join(instance=name), 5) for name in ("one", "two")]
    host.pass_time(6_000)
    ids = [host.answers[waiter].member_id for waiter in waiters]
    host.send("sync", sync(ids[1], 1), 5)
    host.send("sync", sync(ids[0], 1, {name: name.encode() for name in ids}), 5)
    long = join(ids[0], instance="one", session_ms=100_000)
    host.send("join", long, 5)
    for _ in range(12):
        host.ask("heartbeat", heartbeat(ids[1], 1, instance="two"), 4)
        host.pass_time(REBALANCE_MS // 12)
    group = host.shard.state.classic[GROUP]
    assert (group.generation, sorted(group.members)) == (2, sorted(ids))
    host.pass_time(SESSION_MS)
    assert list(host.shard.state.classic[GROUP].members) == [ids[0]]


@pytest.mark.parametrize("version", [3, 5])
def test_an_operator_removes_a_static_member_by_its_instance_id(version: int) -> None:
    host = TinyHost()
    waiter = host.send("join", join(instance="one"), 5)
    host.pass_time(3_000)
    old = host.answers[waiter].member_id
    host.ask("sync", sync(old, 1, {}), 5)
    answer = host.ask("leave", leave(("", "one"), ("", "none"), ("", None)), version)
    assert [row.error_code for row in answer.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert host.shard.state.classic[GROUP].state is State.EMPTY
