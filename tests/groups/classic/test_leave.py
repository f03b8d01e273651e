"""LeaveGroup: every member gets its own answer."""

from __future__ import annotations

from millstream.core.decisions import Arm, Decision, Disarm, Reply
from millstream.core.errors import ErrorCode
from millstream.groups.classic.states import State
from millstream.groups.effects import SetClassicGroup
from millstream.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
)
from support.groups.classic import NOW, shard_with
from support.groups.world import (
    GROUP,
    REBALANCE_MS,
    TinyHost,
    context,
    group_of,
    join,
    leave,
    member,
    stable_group,
    sync,
)


def test_several_leave_at_once_each_with_its_own_answer() -> None:
    shard = shard_with(group_of(member("a"), member("b"), member("c"), leader="a"))
    decision = shard.decide_leave(
        leave(("a", None), ("x", None), ("b", None)), context(5), "w", now_ms=NOW
    )
    left = group_of(
        member("c"),
        state=State.PREPARING_REBALANCE,
        previous=State.STABLE,
        since_ms=NOW,
        leader="c",
    )
    results = [
        MemberResponse(member_id="a", group_instance_id=None),
        MemberResponse(
            member_id="x", group_instance_id=None, error_code=ErrorCode.UNKNOWN_MEMBER_ID
        ),
        MemberResponse(member_id="b", group_instance_id=None),
    ]
    assert decision == Decision(
        effects=(
            SetClassicGroup(GROUP, left),
            Disarm(("session", GROUP, "a")),
            Disarm(("session", GROUP, "b")),
            Arm(("join", GROUP), NOW + REBALANCE_MS),
            Reply("w", LeaveGroupResponse(members=results)),
        )
    )


def test_before_v3_one_member_leaves_and_the_error_is_the_answers_own() -> None:
    shard = shard_with(group_of(member("a"), member("b")))
    unknown = shard.decide_leave(
        LeaveGroupRequest(group_id=GROUP, member_id="x"), context(2), "w", now_ms=NOW
    )
    answer = LeaveGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
    assert unknown == Decision(effects=(Reply("w", answer),))
    known = shard.decide_leave(
        LeaveGroupRequest(group_id=GROUP, member_id="a"), context(0), "w", now_ms=NOW
    )
    assert known.effects[-1] == Reply("w", LeaveGroupResponse())


def test_a_member_that_leaves_while_it_waits_is_answered() -> None:
    host = TinyHost()
    leader, follower = stable_group(host, 2)
    parked = host.send("join", join(leader), 3)
    host.ask("leave", leave((leader, None)), 3)
    assert host.answers[parked].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    host.send("join", join(follower), 3)
    syncing = host.send("sync", sync(follower, 2, {}), 3)
    assert host.answers[syncing].error_code == ErrorCode.NONE


def test_a_member_that_leaves_between_join_and_sync_is_answered_and_the_others_join_again() -> None:
    host = TinyHost()
    leader, second, third = stable_group(host, 3)
    for name in (leader, second, third):
        host.send("join", join(name), 3)
    parked = {name: host.send("sync", sync(name, 2), 3) for name in (second, third)}
    host.ask("leave", leave((second, None)), 3)
    assert host.answers[parked[second]].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert host.answers[parked[third]].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert not host.waiting


def test_a_pending_member_leaves_without_a_rebalance() -> None:
    host = TinyHost()
    stable_group(host, 1)
    pending = host.ask("join", join(), 9).member_id
    assert host.ask("leave", leave((pending, None)), 5).members[0].error_code == ErrorCode.NONE
    group = host.shard.state.classic[GROUP]
    assert (group.state, group.pending) == (State.STABLE, frozenset())
    assert ("session", GROUP, pending) not in host.timers
