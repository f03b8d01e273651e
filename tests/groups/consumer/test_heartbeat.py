"""Members of consumer groups join, stay, hand over partitions, and leave: whole decisions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millstream.core.decisions import Arm, Decision, Disarm, Reply
from millstream.core.errors import ErrorCode
from millstream.groups.consumer import records
from millstream.groups.consumer.draft import TopicsChecked
from millstream.groups.consumer.group import GroupState
from millstream.groups.consumer.member import Current, Info, MemberState
from millstream.groups.consumer.subscription import metadata_hash
from millstream.groups.settings import GroupOverrides
from millstream.groups.topics_view import TopicInfo, TopicsView
from millstream.wire.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from millstream.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from support.groups.consumer_world import (
    HEARTBEAT_MS,
    REBALANCE_MS,
    SESSION_MS,
    SETTINGS,
    ConsumerHost,
    beat,
    id_of,
    join,
    leave,
    owned_of,
    told,
    topics_of,
)
from support.groups.world import GROUP, context

ORDERS, TRIPS = id_of("orders"), id_of("trips")
TOPICS = topics_of(1, orders=4, trips=2)
NOW = 1_000_000


@pytest.fixture
def host() -> ConsumerHost:
    return ConsumerHost(topics=TOPICS)


def info(*topics: str, **changes: Any) -> Info:
    values: dict[str, Any] = {
        "client_id": "client",
        "client_host": "/10.0.0.1",
        "topics": frozenset(topics),
        "rebalance_timeout_ms": REBALANCE_MS,
        **changes,
    }
    return Info(**values)


def arm_session(member_id: str, now_ms: int = NOW) -> Arm:
    return Arm(("consumer-session", GROUP, member_id), now_ms + SESSION_MS)


def rebalance(member_id: str) -> tuple[str, str, str]:
    return ("consumer-rebalance", GROUP, member_id)


def decide(host: ConsumerHost, request: Any) -> Decision:
    """Without carrying it out."""
    return host.shard.decide_consumer_heartbeat(request, context(1), "w", now_ms=host.now_ms)


def all_of(indexes: range, epoch: int) -> dict[int, int]:
    return dict.fromkeys(indexes, epoch)


# ---- joining ----


def test_the_first_member_gets_everything(host: ConsumerHost) -> None:
    target = {ORDERS: frozenset(range(4))}
    current = Current(2, 0, MemberState.STABLE, {ORDERS: all_of(range(4), 2)})
    assert decide(host, join("m1", "orders")) == Decision(
        (
            records.member(GROUP, "m1", info("orders")),
            records.group_epoch(GROUP, 2, metadata_hash(["orders"], TOPICS)),
            records.target(GROUP, "m1", target),
            records.target_epoch(GROUP, 2, NOW),
            records.current(GROUP, "m1", current),
        ),
        (
            TopicsChecked(GROUP, 1),
            Disarm(rebalance("m1")),
            arm_session("m1"),
            Reply("w", told("m1", 2, {ORDERS: range(4)})),
        ),
    )


def test_a_heartbeat_that_changes_nothing_writes_nothing(host: ConsumerHost) -> None:
    host.beat(join("m1", "orders"))
    assert decide(host, beat("m1", 2)) == Decision(
        (), (arm_session("m1"), Reply("w", told("m1", 2)))
    )


def test_a_member_without_subscription_is_in_the_first_epoch(host: ConsumerHost) -> None:
    assert host.beat(join("m1")) == told("m1", 1, {})
    assert host.group().state is GroupState.STABLE


def test_before_version_1_the_broker_gives_the_member_id(host: ConsumerHost) -> None:
    answer = host.beat(join("", "orders"), version=0)
    assert answer == told("1", 2, {ORDERS: range(4)})


def test_topics_that_do_not_exist_yet_are_assigned_once_they_do(host: ConsumerHost) -> None:
    assert host.beat(join("m1", "soon")) == told("m1", 2, {})
    host.change_topics(topics_of(2, orders=4, trips=2, soon=1))
    assert host.beat(beat("m1", 2)) == told("m1", 3, {id_of("soon"): [0]})


# ---- handing over ----


def test_a_partition_moves_only_after_it_was_given_back(host: ConsumerHost) -> None:
    host.beat(join("m1", "orders"))
    assert host.beat(join("m2", "orders")) == told("m2", 3, {})
    assert host.group().members["m2"].current.state is MemberState.UNRELEASED_PARTITIONS

    revoking = Current(
        2,
        2,
        MemberState.UNREVOKED_PARTITIONS,
        {ORDERS: all_of(range(2), 2)},
        {ORDERS: {2: 2, 3: 2}},
    )
    assert decide(host, beat("m1", 2)) == Decision(
        (records.current(GROUP, "m1", revoking),),
        (
            Arm(rebalance("m1"), NOW + REBALANCE_MS),
            arm_session("m1"),
            Reply("w", told("m1", 2, {ORDERS: [0, 1]})),
        ),
    )
    assert host.beat(beat("m1", 2)) == told("m1", 2, {ORDERS: [0, 1]})
    # Not given back yet: nothing moves.
    assert host.beat(beat("m1", 2, {ORDERS: range(4)})) == told("m1", 2)
    assert host.beat(beat("m2", 3)) == told("m2", 3)
    assert host.group().state is GroupState.RECONCILING

    done = Current(3, 2, MemberState.STABLE, {ORDERS: all_of(range(2), 2)})
    assert decide(host, beat("m1", 2, {ORDERS: [0, 1]})) == Decision(
        (records.current(GROUP, "m1", done),),
        (Disarm(rebalance("m1")), arm_session("m1"), Reply("w", told("m1", 3))),
    )
    assert host.beat(beat("m1", 2, {ORDERS: [0, 1]})) == told("m1", 3)
    assert host.beat(beat("m2", 3)) == told("m2", 3, {ORDERS: [2, 3]})
    assert host.group().state is GroupState.STABLE


def test_who_does_not_give_back_in_time_is_out(host: ConsumerHost) -> None:
    host.beat(join("m1", "orders"))
    host.beat(join("m2", "orders"))
    host.beat(beat("m1", 2))
    host.pass_time(REBALANCE_MS)
    assert set(host.group().members) == {"m2"}
    assert host.beat(beat("m2", 3)) == told("m2", 4, {ORDERS: range(4)})
    assert host.beat(beat("m1", 2)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_is_silent_for_a_session_is_out(host: ConsumerHost) -> None:
    host.beat(join("m1", "orders"))
    host.pass_time(SESSION_MS - 1)
    assert not host.group().is_empty
    host.pass_time(1)
    assert host.group().is_empty
    assert host.group().state is GroupState.EMPTY


def test_an_answer_that_got_lost_is_given_again(host: ConsumerHost) -> None:
    host.beat(join("m1", "orders"))
    host.change_topics(topics_of(2, orders=5))
    assert host.beat(beat("m1", 2)) == told("m1", 3, {ORDERS: range(5)})
    full = {"rebalance_timeout_ms": REBALANCE_MS, "subscribed_topic_names": ["orders"]}
    assert host.beat(beat("m1", 2, {ORDERS: range(4)}, **full)) == told("m1", 3, {ORDERS: range(5)})


def test_a_member_that_joins_again_is_told_what_it_has(host: ConsumerHost) -> None:
    host.beat(join("m1", "orders"))
    assert host.beat(join("m1", "orders")) == told("m1", 2, {ORDERS: range(4)})


def test_another_subscription_is_another_epoch(host: ConsumerHost) -> None:
    host.beat(join("m1", "orders"))
    answer = host.beat(beat("m1", 2, {ORDERS: range(4)}, subscribed_topic_names=["trips"]))
    assert answer == told("m1", 2, {})
    assert host.beat(beat("m1", 2, {})) == told("m1", 3, {TRIPS: range(2)})


def test_most_members_choose_the_assignor(host: ConsumerHost) -> None:
    host.beat(join("m1", "orders"))
    assert host.group().preferred_assignor(("uniform", "range")) == "uniform"
    host.beat(beat("m1", 2, server_assignor="range"))
    assert host.group().preferred_assignor(("uniform", "range")) == "range"
    assert host.group().epoch == 3


# ---- time between assignments ----


def unhurried(**own: GroupOverrides) -> ConsumerHost:
    settings = replace(SETTINGS, group_consumer_assignment_interval_ms=1_000, overrides=own)
    return ConsumerHost(topics=topics_of(1, orders=4), settings=settings)


def test_who_joins_soon_after_an_assignment_waits_for_the_next() -> None:
    host = unhurried()
    assert host.beat(join("m1", "orders")) == told("m1", 2, {ORDERS: range(4)})
    host.now_ms += 999
    assert host.beat(join("m2", "orders")) == told("m2", 2, {})
    assert host.beat(join("m3", "orders")) == told("m3", 2, {})
    assert host.beat(beat("m1", 2)) == told("m1", 2)
    host.now_ms += 1
    assert host.beat(beat("m2", 2)) == told("m2", 4)
    assert owned_of(host.beat(beat("m1", 2))) is not None
    assert host.group().epoch == host.group().assignment_epoch == 4


def test_a_group_may_be_in_more_of_a_hurry_than_others() -> None:
    host = unhurried(**{GROUP: GroupOverrides(SESSION_MS, HEARTBEAT_MS, 0)})
    host.beat(join("m1", "orders"))
    assert host.beat(join("m2", "orders")).member_epoch == 3


def test_a_clock_that_went_back_is_waited_for_unless_there_is_no_interval() -> None:
    host = unhurried()
    host.beat(join("m1", "orders"))
    host.now_ms -= 500_000
    assert host.beat(join("m2", "orders")).member_epoch == 2
    host.shard.settings = replace(host.settings, group_consumer_assignment_interval_ms=0)
    assert host.beat(beat("m2", 2)).member_epoch == 3


# ---- topics ----


@pytest.mark.parametrize("subscription", [{"regex": "ord.*"}, {}], ids=["regex", "names"])
def test_topics_that_grow_or_go_are_seen_with_the_next_heartbeat(
    host: ConsumerHost, subscription: dict[str, str]
) -> None:
    host.beat(join("m1", *([] if subscription else ["orders"]), **subscription))
    host.change_topics(topics_of(2, orders=5))
    assert host.beat(beat("m1", 2)) == told("m1", 3, {ORDERS: range(5)})
    host.change_topics(topics_of(3))
    assert owned_of(host.beat(beat("m1", 3))) == {}


def test_topics_that_concern_nobody_change_nothing(host: ConsumerHost) -> None:
    host.beat(join("m1", "orders"))
    host.change_topics(topics_of(2, orders=4, trips=9, other=1))
    assert decide(host, beat("m1", 2)).records == ()


def test_a_regex_is_resolved_and_kept(host: ConsumerHost) -> None:
    assert host.beat(join("m1", regex="tr.*")) == told("m1", 2, {TRIPS: range(2)})
    assert host.group().regexes["tr.*"].topics == {"trips"}
    host.change_topics(topics_of(2, orders=4, trips=2, trails=1))
    assert host.beat(beat("m1", 2)) == told("m1", 3, {TRIPS: range(2), id_of("trails"): [0]})
    assert host.beat(leave("m1")).error_code == 0
    assert host.group().regexes == {}


def test_regexes_are_resolved_again_after_their_interval(host: ConsumerHost) -> None:
    host.beat(join("m1", regex="tr.*"))
    first = host.group().regexes["tr.*"]
    interval_ms = host.settings.group_consumer_regex_refresh_interval_ms
    host.now_ms = first.timestamp + interval_ms
    assert decide(host, beat("m1", 2)).records == ()
    host.now_ms += 1
    assert host.beat(beat("m1", 2)) == told("m1", 2)
    assert host.group().regexes["tr.*"] == first._replace(timestamp=host.now_ms)
    assert decide(host, beat("m1", 2)).records == ()


def test_a_group_without_regexes_has_nothing_to_resolve(host: ConsumerHost) -> None:
    host.beat(join("m1", "orders"))
    host.now_ms += 10 * host.settings.group_consumer_regex_refresh_interval_ms
    assert decide(host, beat("m1", 2)).records == ()


def test_partitions_in_other_racks_are_assigned_anew(host: ConsumerHost) -> None:
    host.beat(join("m1", "orders"))
    moved = TopicsView(
        {"orders": TopicInfo(ORDERS, 4, (("a",), ("a",), ("a",), ("b",)))}, version=2
    )
    host.change_topics(moved)
    assert host.beat(beat("m1", 2)).member_epoch == 3


def test_a_regex_of_several_is_forgotten_with_the_last(host: ConsumerHost) -> None:
    host.beat(join("m1", regex="tr.*"))
    host.beat(join("m2", regex="tr.*"))
    host.beat(leave("m1"))
    assert set(host.group().regexes) == {"tr.*"}
    host.beat(beat("m2", 3, subscribed_topic_regex=""))
    assert host.group().regexes == {}


# ---- leaving ----


def test_the_last_member_leaves_an_empty_group(host: ConsumerHost) -> None:
    host.beat(join("m1", "orders"))
    assert decide(host, leave("m1")) == Decision(
        (
            *records.member_tombstones(GROUP, "m1"),
            records.group_epoch(GROUP, 3, 0),
            records.target_epoch(GROUP, 3, 0),
        ),
        (
            Disarm(("consumer-session", GROUP, "m1")),
            Disarm(rebalance("m1")),
            Reply("w", ConsumerGroupHeartbeatResponse(member_id="m1", member_epoch=-1)),
        ),
    )


def test_what_a_leaver_had_goes_to_the_others(host: ConsumerHost) -> None:
    host.beat(join("m1", "orders"))
    host.beat(join("m2", "orders"))
    host.beat(leave("m1"))
    assert host.beat(beat("m2", 3)) == told("m2", 4, {ORDERS: range(4)})


def test_a_static_member_comes_back_to_what_it_had(host: ConsumerHost) -> None:
    host.beat(join("m1", "orders", instance_id="i1"))
    assert host.beat(leave("m1", -2, instance_id="i1")) == ConsumerGroupHeartbeatResponse(
        member_id="m1", member_epoch=-2
    )
    assert host.beat(join("m2", "orders", instance_id="i1")) == told("m2", 2, {ORDERS: range(4)})
    group = host.group()
    assert (group.epoch, group.instances, set(group.members)) == (2, {"i1": "m2"}, {"m2"})
    assert group.members["m2"].current.assigned == {ORDERS: all_of(range(4), 0)}
    assert {key[0] for key in host.timers if "m1" in key} == set()


def test_a_static_member_that_stays_away_is_out(host: ConsumerHost) -> None:
    host.beat(join("m1", "orders", instance_id="i1"))
    host.beat(leave("m1", -2, instance_id="i1"))
    host.pass_time(SESSION_MS)
    assert host.group().is_empty


# ---- after a crash ----


def test_a_loaded_group_goes_on_where_it_was(host: ConsumerHost) -> None:
    host.beat(join("m1", "orders"))
    host.beat(join("m2", "orders"))
    host.beat(beat("m1", 2))
    host.crash()
    assert host.timers[rebalance("m1")] == NOW + REBALANCE_MS
    assert host.timers[("consumer-session", GROUP, "m2")] == NOW + SESSION_MS
    assert host.beat(beat("m1", 2, {ORDERS: [0, 1]})) == told("m1", 3)
    assert host.beat(beat("m2", 3)) == told("m2", 3, {ORDERS: [2, 3]})


def test_an_append_that_fails_leaves_no_trace(host: ConsumerHost) -> None:
    host.beat(join("m1", "orders"))
    before = host.shard.durable
    host.broken = True
    waiter = host.send("consumer_heartbeat", join("m2", "orders"), 1)
    assert host.answers[waiter] is ErrorCode.NOT_COORDINATOR
    assert host.shard.durable == before


def test_a_group_too_large_for_one_batch_is_refused() -> None:
    settings = replace(SETTINGS, max_message_bytes=3_000)
    host = ConsumerHost(topics=topics_of(1, orders=400), settings=settings)
    names = [f"m{number}" for number in range(20)]
    codes = [host.beat(join(name, "orders")).error_code for name in names]
    assert set(codes) == {0, ErrorCode.UNKNOWN_SERVER_ERROR}
    taken_in = [name for name, code in zip(names, codes, strict=True) if not code]
    assert list(host.group().members) == taken_in


# ---- what is told of groups ----


def test_a_group_is_listed_and_described(host: ConsumerHost) -> None:
    host.beat(join("m1", "orders", rack_id="r1"))
    listed = ListedGroup(
        group_id=GROUP, protocol_type="consumer", group_state="Stable", group_type="consumer"
    )
    assert host.ask("list", ListGroupsRequest(types_filter=["consumer"]), 5) == ListGroupsResponse(
        groups=[listed]
    )
    has = Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=ORDERS, topic_name="orders", partitions=[0, 1, 2, 3])
        ]
    )
    described = DescribedGroup(
        group_id=GROUP,
        group_state="Stable",
        group_epoch=2,
        assignment_epoch=2,
        assignor_name="uniform",
        members=[
            Member(
                member_id="m1",
                rack_id="r1",
                member_epoch=2,
                client_id="client",
                client_host="/10.0.0.1",
                subscribed_topic_names=["orders"],
                subscribed_topic_regex="",
                assignment=has,
                target_assignment=has,
                member_type=1,
            )
        ],
    )
    request = ConsumerGroupDescribeRequest(group_ids=[GROUP])
    assert host.ask("consumer_describe", request, 1) == ConsumerGroupDescribeResponse(
        groups=[described]
    )


def test_the_heartbeat_interval_is_the_brokers() -> None:
    host = ConsumerHost(settings=replace(SETTINGS, group_consumer_heartbeat_interval_ms=7_000))
    assert host.beat(join("m1", "orders")).heartbeat_interval_ms == 7_000
