"""Sessions, heartbeats and timers of classic groups."""

from __future__ import annotations

from millstream.core.decisions import NOTHING, Arm, Decision, Reply
from millstream.core.errors import ErrorCode
from millstream.groups.classic.states import State
from millstream.groups.settings import GroupSettings
from millstream.wire.messages.heartbeat import HeartbeatResponse
from support.groups.classic import NOW, shard_with
from support.groups.world import (
    GROUP,
    SESSION_MS,
    TinyHost,
    context,
    group_of,
    heartbeat,
    join,
    member,
    new_shard,
    replay,
    stable_group,
)


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


def test_a_pending_member_is_forgotten_after_its_session_and_the_others_need_not_wait_for_it() -> (
    None
):
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
