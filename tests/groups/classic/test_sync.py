"""SyncGroup, Heartbeat, LeaveGroup and the timers around them. Whole decisions where they are small."""

from __future__ import annotations

from millstream.core.decisions import NOTHING, Arm, Decision, Disarm, Reply
from millstream.core.errors import ErrorCode
from millstream.groups.classic.group import ClassicGroup
from millstream.groups.classic.states import State
from millstream.groups.effects import Become
from millstream.groups.settings import GroupSettings
from millstream.groups.shard import GroupShard
from millstream.wire.messages.heartbeat import HeartbeatResponse
from millstream.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from millstream.wire.messages.sync_group import SyncGroupResponse
from support.groups.world import (
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    SETTINGS,
    TinyHost,
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


def shard_with(group: ClassicGroup, settings: GroupSettings = SETTINGS) -> GroupShard:
    shard = new_shard(settings)
    shard.perform(Become(GROUP, group))
    return shard


def completing(**members: object) -> ClassicGroup:
    """a leads, b follows; nobody has synced but those named with who waits."""
    return group_of(
        member("a", sync=members.get("a")),
        member("b", sync=members.get("b")),
        state=State.COMPLETING_REBALANCE,
        previous=State.PREPARING_REBALANCE,
        generation=2,
        leader="a",
        unsynced=frozenset({"a", "b"} - set(members)),
    )


# ---- sync ---------------------------------------------------------------------------------------------------


def test_a_follower_waits_for_the_assignment() -> None:
    decision = shard_with(completing()).decide_sync(sync("b", 2), context(5), "wb", now_ms=NOW)
    assert decision == Decision(effects=(Become(GROUP, completing(b="wb")),))


def test_the_leaders_assignment_is_written_and_then_told_to_all_who_wait() -> None:
    decision = shard_with(completing(b="wb")).decide_sync(
        sync("a", 2, {"a": b"0", "b": b"1", "stranger": b"2"}), context(5), "wa", now_ms=NOW
    )
    stable = group_of(
        member("a", assignment=b"0"),
        member("b", assignment=b"1"),
        previous=State.COMPLETING_REBALANCE,
        since_ms=NOW,
        generation=2,
        leader="a",
    )
    about = {"protocol_type": "consumer", "protocol_name": "range"}
    assert decision == Decision(
        (stable.record(),),
        (
            Become(GROUP, stable),
            Disarm(("sync", GROUP)),
            Reply("wa", SyncGroupResponse(assignment=b"0", **about)),
            Arm(("session", GROUP, "a"), NOW + SESSION_MS),
            Reply("wb", SyncGroupResponse(assignment=b"1", **about)),
            Arm(("session", GROUP, "b"), NOW + SESSION_MS),
        ),
    )


def test_a_late_follower_gets_its_assignment_from_the_stable_group() -> None:
    host = TinyHost()
    leader, follower = stable_group(host, 2)
    for member_id in (leader, follower):
        host.send("join", join(member_id), 3)
    host.send("sync", sync(leader, 2, {follower: b"x"}), 3)
    assert ("sync", GROUP) in host.timers
    assert host.ask("sync", sync(follower, 2), 3).assignment == b"x"
    assert ("sync", GROUP) not in host.timers
    assert host.ask("sync", sync(follower, 2), 3).assignment == b"x"


def test_a_member_that_never_syncs_is_out_after_the_rebalance_timeout() -> None:
    host = TinyHost()
    leader, silent = stable_group(host, 2)
    for member_id in (leader, silent):
        host.send("join", join(member_id), 3)
    host.send("sync", sync(leader, 2, {}), 3)
    for _ in range(12):
        assert host.ask("heartbeat", heartbeat(silent, 2), 3).error_code == ErrorCode.NONE
        host.ask("heartbeat", heartbeat(leader, 2), 3)
        host.pass_time(REBALANCE_MS // 12)
    group = host.shard.state.classic[GROUP]
    assert (group.state, list(group.members)) == (State.PREPARING_REBALANCE, [leader])


def test_a_lost_assignment_is_told_to_nobody() -> None:
    """The leader's record is appended but not replicated when the coordinator moves: the old generation is back."""
    host = TinyHost()
    leader, follower = stable_group(host, 2)
    for member_id in (leader, follower):
        host.send("join", join(member_id), 3)
    host.auto_advance = False
    waiters = [
        host.send("sync", sync(follower, 2), 3),
        host.send("sync", sync(leader, 2, {follower: b"x"}), 3),
    ]
    host.crash()
    assert [host.answers[waiter] for waiter in waiters] == [ErrorCode.NOT_COORDINATOR] * 2
    assert host.shard.state.classic[GROUP].generation == 1


def test_an_assignment_too_large_to_be_written_is_refused_and_the_group_rebalances() -> None:
    host = TinyHost(settings=GroupSettings(max_message_bytes=2_000))
    leader, follower = stable_group(host, 2)
    for member_id in (leader, follower):
        host.send("join", join(member_id), 3)
    parked = host.send("sync", sync(follower, 2), 3)
    answer = host.ask("sync", sync(leader, 2, {leader: bytes(2_000)}), 3)
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert host.answers[parked].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert host.shard.state.classic[GROUP].state is State.PREPARING_REBALANCE


# ---- heartbeats ---------------------------------------------------------------------------------------------


def test_a_heartbeat_writes_nothing_and_renews_the_session() -> None:
    decision = shard_with(group_of(member("a"))).decide_heartbeat(
        heartbeat("a", 1), context(4), "w", now_ms=NOW
    )
    assert decision == Decision(
        effects=(Arm(("session", GROUP, "a"), NOW + SESSION_MS), Reply("w", HeartbeatResponse()))
    )


def test_a_heartbeat_during_a_rebalance_renews_the_session_too() -> None:
    shard = shard_with(group_of(member("a"), state=State.PREPARING_REBALANCE))
    answer = HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    assert shard.decide_heartbeat(heartbeat("a", 1), context(4), "w", now_ms=NOW) == Decision(
        effects=(Arm(("session", GROUP, "a"), NOW + SESSION_MS), Reply("w", answer))
    )


# ---- leaving ------------------------------------------------------------------------------------------------


def test_several_leave_at_once_each_with_its_own_answer() -> None:
    shard = shard_with(group_of(member("a"), member("b"), member("c"), leader="a"))
    decision = shard.decide_leave(leave(("a", None), ("x", None), ("b", None)), context(5), "w", now_ms=NOW)
    left = group_of(
        member("c"), state=State.PREPARING_REBALANCE, previous=State.STABLE, since_ms=NOW, leader="c"
    )
    results = [
        MemberResponse(member_id="a", group_instance_id=None),
        MemberResponse(member_id="x", group_instance_id=None, error_code=ErrorCode.UNKNOWN_MEMBER_ID),
        MemberResponse(member_id="b", group_instance_id=None),
    ]
    assert decision == Decision(
        effects=(
            Become(GROUP, left),
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
    known = shard.decide_leave(LeaveGroupRequest(group_id=GROUP, member_id="a"), context(0), "w", now_ms=NOW)
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


# ---- timers -------------------------------------------------------------------------------------------------


def test_a_pending_member_is_forgotten_after_its_session_and_the_others_need_not_wait_for_it() -> None:
    host = TinyHost()
    leader, follower = stable_group(host, 2)
    pending = host.ask("join", join(), 9).member_id
    parked = host.send("join", join(leader), 3)
    host.send("join", join(follower), 3)
    assert parked in host.waiting
    host.pass_time(SESSION_MS)
    assert host.answers[parked].generation_id == 2
    assert host.ask("join", join(pending), 9).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_waits_for_a_rebalance_is_not_put_out_by_its_session() -> None:
    host = TinyHost()
    leader, follower = stable_group(host, 2)
    parked = host.send("join", join(leader), 3)
    for _ in range(5):
        host.ask("heartbeat", heartbeat(follower, 1), 3)
        host.pass_time(SESSION_MS - 1)
    host.send("join", join(follower), 3)
    assert host.answers[parked].error_code == ErrorCode.NONE


def test_a_new_member_whose_client_is_gone_does_not_stay_for_ever() -> None:
    host = TinyHost(settings=GroupSettings(group_initial_rebalance_delay_ms=3_000))
    leader, slow = stable_group(host, 2)
    host.send("join", join(leader, rebalance_ms=3_600_000), 3)
    parked = host.send("join", join(), 3)
    for _ in range(60):
        host.ask("heartbeat", heartbeat(slow, 1), 3)
        host.pass_time(5_000)
    assert host.answers[parked].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_timers_of_what_is_no_more_do_nothing() -> None:
    shard = shard_with(group_of(member("a")))
    for key in (
        ("session", GROUP, "x"),
        ("session", "other", "a"),
        ("join", GROUP),
        ("join", "other"),
        ("sync", GROUP),
        ("sync", "other"),
    ):
        assert shard.decide_timeout(key, now_ms=NOW) == NOTHING


def test_a_group_above_a_lowered_limit_rebalances_when_it_is_loaded() -> None:
    host = TinyHost()
    leader, second, third = stable_group(host, 3)
    host.settings = GroupSettings(group_max_size=2)
    host.crash()
    assert host.shard.state.classic[GROUP].state is State.PREPARING_REBALANCE
    parked = [host.send("join", join(name), 9) for name in (leader, second)]
    refused = host.ask("join", join(third), 9)
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [host.answers[waiter].generation_id for waiter in parked] == [2, 2]
    assert replay(host.log, new_shard()).durable == host.shard.durable
