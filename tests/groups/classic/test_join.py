"""JoinGroup: who is let in, under which id, and when the next generation begins.

Whole decisions.
"""

from __future__ import annotations

import pytest

from millstream.core.decisions import Arm, CoordinatorRecord, Decision, Disarm, Reply
from millstream.core.errors import ErrorCode
from millstream.groups.classic.draft import NEW_MEMBER_JOIN_TIMEOUT_MS
from millstream.groups.classic.group import ClassicGroup, InitialDelay
from millstream.groups.classic.states import NEXT_STATES, State
from millstream.groups.effects import SetClassicGroup
from millstream.groups.settings import GroupSettings
from millstream.groups.shard import GroupShard
from millstream.wire.group_records import GroupMetadataKey, GroupMetadataValue
from millstream.wire.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from support.groups.world import (
    DELAY_MS,
    GROUP,
    RANGE,
    REBALANCE_MS,
    SESSION_MS,
    SETTINGS,
    TinyHost,
    context,
    group_of,
    heartbeat,
    join,
    member,
    new_shard,
    stable_group,
    subscription,
    sync,
)

NOW = 1_000


def empty_record(now_ms: int = NOW) -> CoordinatorRecord:
    return CoordinatorRecord(
        GroupMetadataKey(group=GROUP),
        GroupMetadataValue(protocol=None, leader=None, current_state_timestamp=now_ms),
    )


def shard_with(group: ClassicGroup, settings: GroupSettings = SETTINGS) -> GroupShard:
    shard = new_shard(settings)
    shard.perform(SetClassicGroup(GROUP, group))
    return shard


def decide(shard: GroupShard, request: object, version: int = 9) -> Decision:
    return shard.decide_join(request, context(version), "w", now_ms=NOW)  # type: ignore[arg-type]


def test_a_new_member_must_come_back_with_the_id_it_is_given() -> None:
    assert decide(new_shard(), join()) == Decision(
        (empty_record(),),
        (
            SetClassicGroup(
                GROUP, ClassicGroup(GROUP, since_ms=NOW, pending=frozenset({"client-1"}))
            ),
            Arm(("session", GROUP, "client-1"), NOW + SESSION_MS),
            Reply(
                "w",
                JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="client-1"),
            ),
        ),
    )


def test_with_its_id_it_joins_and_the_initial_delay_begins() -> None:
    shard = shard_with(ClassicGroup(GROUP, since_ms=5, pending=frozenset({"client-1"})))
    expected = group_of(
        member("client-1", is_new=True, join="w"),
        state=State.PREPARING_REBALANCE,
        previous=State.EMPTY,
        since_ms=NOW,
        generation=0,
        protocol_name=None,
        subscribed=None,
        initial=InitialDelay(DELAY_MS, REBALANCE_MS - DELAY_MS),
    )
    assert decide(shard, join("client-1")) == Decision(
        effects=(
            SetClassicGroup(GROUP, expected),
            Arm(("session", GROUP, "client-1"), NOW + NEW_MEMBER_JOIN_TIMEOUT_MS),
            Arm(("join", GROUP), NOW + DELAY_MS),
        )
    )


def test_before_v4_a_new_member_is_let_in_at_once() -> None:
    decision = decide(new_shard(), join(), version=3)
    assert decision.records == (empty_record(),)
    become = decision.effects[0]
    assert become.group.members == {"client-1": member("client-1", is_new=True, join="w")}
    assert become.group.state is State.PREPARING_REBALANCE


def test_v0_has_one_timeout_for_session_and_rebalance() -> None:
    decision = decide(new_shard(), join(rebalance_ms=-1), version=0)
    assert decision.effects[0].group.members["client-1"].rebalance_timeout_ms == SESSION_MS


def test_a_decision_changes_nothing_until_its_effects_are_performed() -> None:
    shard = new_shard()
    before = shard.durable
    decision = decide(shard, join())
    assert decide(shard, join(), version=3).effects[0].group.members.keys() == {"client-2"}
    assert shard.state.classic == {}
    assert shard.durable == before
    shard.perform(decision.effects[0])
    assert shard.state.classic[GROUP].pending == {"client-1"}


def test_the_initial_delay_is_extended_while_members_come_and_ends_at_the_rebalance_timeout() -> (
    None
):
    host = TinyHost(settings=GroupSettings(group_initial_rebalance_delay_ms=3_000))
    first = host.send("join", join(rebalance_ms=7_000), 3)
    for _ in range(2):
        host.pass_time(2_999)
        host.send("join", join(rebalance_ms=7_000), 3)
        host.pass_time(1)
        assert first in host.waiting
    # 3 + 3 s have passed; 1 s of the 7 is left, whoever comes
    host.pass_time(500)
    host.send("join", join(rebalance_ms=7_000), 3)
    assert first in host.waiting
    host.pass_time(500)
    assert host.answers[first].generation_id == 1
    assert len(host.answers[first].members) == 4


def test_the_initial_delay_is_not_extended_when_nobody_comes() -> None:
    host = TinyHost()
    only = host.send("join", join(), 3)
    host.pass_time(DELAY_MS - 1)
    assert only in host.waiting
    host.pass_time(1)
    assert host.answers[only].generation_id == 1


def test_when_the_last_member_has_joined_all_are_answered_and_the_leader_gets_the_members() -> None:
    group = group_of(
        member("a", join="wa"),
        member("b"),
        state=State.PREPARING_REBALANCE,
        previous=State.STABLE,
        generation=4,
        leader="a",
    )
    completed = group_of(
        member("a"),
        member("b"),
        state=State.COMPLETING_REBALANCE,
        previous=State.PREPARING_REBALANCE,
        since_ms=NOW,
        generation=5,
        leader="a",
        unsynced=frozenset({"a", "b"}),
    )
    about = {
        "generation_id": 5,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "leader": "a",
    }
    listed = [JoinGroupResponseMember(member_id=name, metadata=RANGE[0][1]) for name in ("a", "b")]
    assert decide(shard_with(group), join("b")) == Decision(
        effects=(
            SetClassicGroup(GROUP, completed),
            Disarm(("join", GROUP)),
            Reply("wa", JoinGroupResponse(member_id="a", members=listed, **about)),
            Arm(("session", GROUP, "a"), NOW + SESSION_MS),
            Reply("w", JoinGroupResponse(member_id="b", **about)),
            Arm(("session", GROUP, "b"), NOW + SESSION_MS),
            Arm(("sync", GROUP), NOW + REBALANCE_MS),
        )
    )


def test_a_join_to_a_stable_group_begins_a_rebalance() -> None:
    group = group_of(member("a", assignment=b"all"))
    expected = group_of(
        member("a", assignment=b"all"),
        member("client-1", is_new=True, join="w"),
        state=State.PREPARING_REBALANCE,
        previous=State.STABLE,
        since_ms=NOW,
    )
    assert decide(shard_with(group), join(), version=3) == Decision(
        effects=(
            SetClassicGroup(GROUP, expected),
            Arm(("session", GROUP, "client-1"), NOW + NEW_MEMBER_JOIN_TIMEOUT_MS),
            Arm(("join", GROUP), NOW + REBALANCE_MS),
        )
    )


def test_a_follower_that_rejoins_a_stable_group_unchanged_is_told_the_generation_again() -> None:
    group = group_of(member("a"), member("b"), generation=3, leader="a")
    answer = JoinGroupResponse(
        generation_id=3, protocol_type="consumer", protocol_name="range", leader="a", member_id="b"
    )
    assert decide(shard_with(group), join("b")) == Decision(effects=(Reply("w", answer),))


@pytest.mark.parametrize(
    ("member_id", "protocols"),
    [("a", RANGE), ("b", (("range", subscription("trips")),))],
    ids=["the leader", "a changed member"],
)
def test_a_rejoin_that_may_change_the_assignment_rebalances(
    member_id: str, protocols: tuple[tuple[str, bytes], ...]
) -> None:
    group = group_of(member("a"), member("b"), leader="a")
    decision = decide(shard_with(group), join(member_id, protocols=protocols))
    assert decision.effects[0].group.state is State.PREPARING_REBALANCE
    assert decision.effects[0].group.members[member_id].join == "w"
    assert decision.effects[1:] == (Arm(("join", GROUP), NOW + REBALANCE_MS),)


def test_a_member_that_lost_its_answer_gets_it_again_before_the_sync() -> None:
    group = group_of(
        member("a"), member("b"), state=State.COMPLETING_REBALANCE, leader="a", generation=2
    )
    listed = [JoinGroupResponseMember(member_id=name, metadata=RANGE[0][1]) for name in ("a", "b")]
    answer = JoinGroupResponse(
        generation_id=2,
        protocol_type="consumer",
        protocol_name="range",
        leader="a",
        member_id="a",
        members=listed,
    )
    assert decide(shard_with(group), join("a")) == Decision(effects=(Reply("w", answer),))


def test_a_changed_member_before_the_sync_sends_all_back_to_join() -> None:
    host = TinyHost()
    leader, follower = stable_group(host, 2)
    first = host.send("join", join(leader), 3)
    second = host.send("join", join(follower), 3)
    assert host.answers[first].generation_id == host.answers[second].generation_id == 2
    parked = host.send("sync", sync(follower, 2), 3)
    host.send("join", join(leader, protocols=(("range", subscription("trips")),)), 3)
    assert host.answers[parked].error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_second_join_of_a_member_is_the_one_that_is_answered_with_the_outcome() -> None:
    host = TinyHost()
    leader, follower = stable_group(host, 2)
    lost = host.send("join", join(leader), 3)
    again = host.send("join", join(leader), 3)
    assert host.answers[lost].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert again in host.waiting
    host.send("join", join(follower), 3)
    assert host.answers[again].generation_id == 2


def test_the_protocol_with_most_votes_among_those_all_support_is_chosen() -> None:
    group = group_of(
        member("a", protocols=(("sticky", b"s"), ("range", b"r"))),
        member("b", protocols=(("range", b"r"), ("sticky", b"s"), ("own", b"o"))),
        member("c", protocols=(("range", b"r"), ("sticky", b"s"))),
    )
    assert group.select_protocol() == "range"
    group.remove("c")
    assert group.select_protocol() == "sticky"  # a tie goes to the member that came first
    group.remove("a")
    assert group.supports("consumer", {"own"})
    assert not group.supports("connect", {"own"})


def test_a_leader_that_has_not_rejoined_in_time_is_replaced() -> None:
    host = TinyHost()
    leader, follower = stable_group(host, 2)
    joined = host.send("join", join(follower, protocols=(("range", b"changed"),)), 3)
    for _ in range(REBALANCE_MS // SESSION_MS * 2):
        host.pass_time(SESSION_MS // 2)
        if host.shard.state.classic[GROUP].state is State.PREPARING_REBALANCE:
            host.ask("heartbeat", heartbeat(leader, 1), 3)
    assert host.answers[joined].leader == follower
    assert [row.member_id for row in host.answers[joined].members] == [follower]


def test_every_transition_of_a_group_is_in_the_table() -> None:
    assert set(NEXT_STATES) == set(State)
    group = group_of(member("a"))
    with pytest.raises(AssertionError):
        group.transition_to(State.COMPLETING_REBALANCE, NOW)
    assert all(
        State.DEAD in after for state, after in NEXT_STATES.items() if state is not State.DEAD
    )
