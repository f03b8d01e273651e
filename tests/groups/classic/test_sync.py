"""SyncGroup: how an assignment reaches the members. Whole decisions where they are small."""

from __future__ import annotations

from millstream.core.decisions import Arm, Decision, Disarm, Reply
from millstream.core.errors import ErrorCode
from millstream.groups.classic.group import ClassicGroup
from millstream.groups.classic.states import State
from millstream.groups.effects import SetClassicGroup
from millstream.groups.settings import GroupSettings
from millstream.wire.messages.sync_group import SyncGroupResponse
from support.groups.classic import NOW, shard_with
from support.groups.world import (
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    TinyHost,
    context,
    group_of,
    heartbeat,
    join,
    member,
    stable_group,
    sync,
)


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


def test_a_follower_waits_for_the_assignment() -> None:
    decision = shard_with(completing()).decide_sync(sync("b", 2), context(5), "wb", now_ms=NOW)
    assert decision == Decision(effects=(SetClassicGroup(GROUP, completing(b="wb")),))


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
            SetClassicGroup(GROUP, stable),
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
    """The leader's record is appended but not replicated when the coordinator moves: the old
    generation is back.
    """
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
