"""The four rebalance scenarios of document 003, lecture 25, each as its clients live it, and across
a change of the coordinator.
"""

from __future__ import annotations

from millstream.core.errors import ErrorCode
from millstream.groups.classic.states import State
from support.groups.world import (
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    TinyHost,
    commit,
    fetch,
    heartbeat,
    join,
    leave,
    new_shard,
    replay,
    stable_group,
    sync,
)


def state_of(host: TinyHost) -> State:
    return host.shard.state.classic[GROUP].state


def synced(
    host: TinyHost, members: list[str], assignments: dict[str, bytes], generation: int
) -> dict[str, bytes]:
    """All members have joined: they sync, and the group is stable. What each was assigned."""
    assert state_of(host) is State.COMPLETING_REBALANCE
    leader = host.shard.state.classic[GROUP].leader
    waiters = {}
    for member_id in members:
        rows = assignments if member_id == leader else None
        waiters[member_id] = host.send("sync", sync(member_id, generation, rows), 3)
    assert state_of(host) is State.STABLE
    return {member_id: host.answers[waiter].assignment for member_id, waiter in waiters.items()}


def test_scenario_1_a_new_member_joins() -> None:
    """The others hear of it in the answers to their heartbeats, join again, and all get a new
    assignment.
    """
    host = TinyHost()
    leader, follower = stable_group(host, 2)
    assert host.ask("heartbeat", heartbeat(leader, 1), 3).error_code == ErrorCode.NONE

    parked = host.send("join", join(), 3)
    assert state_of(host) is State.PREPARING_REBALANCE
    for member_id in (leader, follower):
        assert (
            host.ask("heartbeat", heartbeat(member_id, 1), 3).error_code
            == ErrorCode.REBALANCE_IN_PROGRESS
        )

    for member_id in (leader, follower):
        host.send("join", join(member_id), 3)
    newcomer = host.answers[parked].member_id
    assert host.answers[parked].generation_id == 2
    plan = {newcomer: b"0", follower: b"1"}
    assert synced(host, [newcomer, follower, leader], plan, 2) == {
        newcomer: b"0",
        follower: b"1",
        leader: b"",
    }
    assert replay(host.log, new_shard()).durable == host.shard.durable


def test_scenario_2_a_member_leaves() -> None:
    """LeaveGroup: the rebalance begins at once, nobody waits for the session of
    the one that left.
    """
    host = TinyHost()
    leader, follower, gone = stable_group(host, 3)
    answer = host.ask("leave", leave((gone, None)), 5)
    assert answer.error_code == ErrorCode.NONE
    assert [row.error_code for row in answer.members] == [ErrorCode.NONE]
    assert state_of(host) is State.PREPARING_REBALANCE
    assert ("session", GROUP, gone) not in host.timers
    assert host.ask("heartbeat", heartbeat(gone, 1), 3).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert (
        host.ask("heartbeat", heartbeat(follower, 1), 3).error_code
        == ErrorCode.REBALANCE_IN_PROGRESS
    )
    for member_id in (leader, follower):
        host.send("join", join(member_id), 3)
    plan = {leader: b"a", follower: b"b"}
    assert synced(host, [leader, follower], plan, 2) == plan


def test_scenario_3_a_member_crashes() -> None:
    """Nobody tells: after its session timeout the member is out and the others rebalance."""
    host = TinyHost()
    leader, crashed = stable_group(host, 2)
    host.pass_time(SESSION_MS - 1)
    assert host.ask("heartbeat", heartbeat(leader, 1), 3).error_code == ErrorCode.NONE
    host.pass_time(1)
    assert state_of(host) is State.PREPARING_REBALANCE
    assert list(host.shard.state.classic[GROUP].members) == [leader]
    assert (
        host.ask("heartbeat", heartbeat(leader, 1), 3).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    )
    host.send("join", join(leader), 3)
    assert synced(host, [leader], {leader: b"all"}, 2) == {leader: b"all"}
    assert host.ask("heartbeat", heartbeat(crashed, 1), 3).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_scenario_4_members_commit_during_a_rebalance() -> None:
    """Until a member joins again it may commit what it has read; between join and
    sync it may not.
    """
    host = TinyHost()
    leader, follower = stable_group(host, 2)
    host.send("join", join(leader), 3)
    assert state_of(host) is State.PREPARING_REBALANCE

    def committed(member_id: str, generation: int, offset: int) -> int:
        answer = host.ask(
            "offset_commit", commit({("orders", 0): offset}, member_id, generation), 8
        )
        return int(answer.topics[0].partitions[0].error_code)

    assert committed(follower, 1, 10) == ErrorCode.NONE
    host.send("join", join(follower), 3)
    assert state_of(host) is State.COMPLETING_REBALANCE
    assert committed(follower, 1, 11) == ErrorCode.ILLEGAL_GENERATION
    assert committed(follower, 2, 12) == ErrorCode.REBALANCE_IN_PROGRESS
    host.send("sync", sync(follower, 2), 3)
    host.send("sync", sync(leader, 2, {}), 3)
    assert committed(follower, 2, 13) == ErrorCode.NONE
    answer = host.ask("offset_fetch", fetch(("orders", 0)), 8)
    assert answer.topics[0].partitions[0].committed_offset == 13


def test_a_commit_during_a_rebalance_keeps_the_session_alive() -> None:
    host = TinyHost()
    leader, follower = stable_group(host, 2)
    host.send("join", join(leader), 3)
    for _ in range(4):
        host.pass_time(SESSION_MS - 1)
        host.ask("offset_commit", commit({("orders", 0): 1}, follower, 1), 8)
    assert follower in host.shard.state.classic[GROUP].members


def test_a_member_that_does_not_rejoin_within_the_rebalance_timeout_is_out() -> None:
    host = TinyHost()
    leader, slow = stable_group(host, 2)
    parked = host.send("join", join(leader), 3)
    for _ in range(REBALANCE_MS // 5_000):
        host.ask("heartbeat", heartbeat(slow, 1), 3)
        host.pass_time(5_000)
    assert host.answers[parked].generation_id == 2
    assert [row.member_id for row in host.answers[parked].members] == [leader]
    assert host.ask("heartbeat", heartbeat(slow, 1), 3).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_stable_group_survives_a_new_coordinator_with_fresh_sessions() -> None:
    host = TinyHost()
    leader, follower = stable_group(host, 2)
    host.pass_time(SESSION_MS - 1)
    host.crash()
    host.pass_time(SESSION_MS - 1)
    for member_id in (leader, follower):
        assert host.ask("heartbeat", heartbeat(member_id, 1), 3).error_code == ErrorCode.NONE
    again = host.ask("sync", sync(follower, 1), 3)
    assert again.assignment == follower.encode()


def test_a_rebalance_that_was_under_way_is_forgotten_by_a_new_coordinator() -> None:
    host = TinyHost()
    leader, follower = stable_group(host, 2)
    newcomer = host.send("join", join(), 3)
    host.send("join", join(leader), 3)
    host.crash()
    assert host.answers[newcomer] == ErrorCode.NOT_COORDINATOR
    group = host.shard.state.classic[GROUP]
    assert (group.state, group.generation, sorted(group.members)) == (
        State.STABLE,
        1,
        sorted([leader, follower]),
    )
    assert host.ask("join", join("client-99"), 9).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    parked = host.send("join", join(leader), 9)
    host.send("join", join(follower), 9)
    assert host.answers[parked].generation_id == 2


def test_when_the_last_member_leaves_the_group_is_empty_and_that_is_written() -> None:
    host = TinyHost()
    (only,) = stable_group(host, 1)
    host.ask("leave", leave((only, None)), 3)
    assert state_of(host) is State.EMPTY
    host.crash()
    group = host.shard.state.classic[GROUP]
    assert (group.state, group.generation, group.protocol_type, group.protocol_name) == (
        State.EMPTY,
        2,
        "consumer",
        None,
    )
