"""DescribeGroups and ListGroups: what is told of groups of every state and kind."""

from __future__ import annotations

import pytest

from millstream.core.errors import ErrorCode
from millstream.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from millstream.wire.messages.list_groups import ListedGroup, ListGroupsRequest
from support.groups.world import GROUP, RANGE, TinyHost, commit, context, join, leave, stable_group


def describe(host: TinyHost, version: int, *groups: str) -> list[DescribedGroup]:
    answer: DescribeGroupsResponse = host.ask(
        "describe", DescribeGroupsRequest(groups=list(groups)), version
    )
    return answer.groups


def listed(
    host: TinyHost, states: tuple[str, ...] = (), types: tuple[str, ...] = ()
) -> list[ListedGroup]:
    request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
    groups: list[ListedGroup] = host.ask("list", request, 5).groups
    return groups


def world() -> TinyHost:
    """A stable group, an empty one, one that prepares to rebalance, and a simple one."""
    host = TinyHost()
    host.send("join", join(group="joining", rebalance_ms=600_000), 3)
    host.ask("offset_commit", commit({("orders", 0): 1}, group="simple"), 8)
    (only,) = stable_group(host, 1, group="empty")
    host.ask("leave", leave((only, None), group="empty"), 3)
    host.send("join", join(group="joining", rebalance_ms=600_000), 3)
    stable_group(host, 1)
    return host


def test_a_stable_group_is_described_with_protocol_subscriptions_and_assignments() -> None:
    host = TinyHost()
    (only,) = stable_group(host, 1)
    described = DescribedGroupMember(
        member_id=only,
        client_id="client",
        client_host="/10.0.0.1",
        member_metadata=RANGE[0][1],
        member_assignment=only.encode(),
    )
    assert describe(host, 5, GROUP) == [
        DescribedGroup(
            group_id=GROUP,
            group_state="Stable",
            protocol_type="consumer",
            protocol_data="range",
            members=[described],
        )
    ]


def test_a_group_that_rebalances_is_described_without_what_may_still_change() -> None:
    host = TinyHost()
    leader, follower = stable_group(host, 2)
    host.send("join", join(leader), 3)
    (group,) = describe(host, 5, GROUP)
    assert (group.group_state, group.protocol_data) == ("PreparingRebalance", "")
    assert {row.member_id: row.member_metadata for row in group.members} == {
        leader: b"",
        follower: b"",
    }


def test_an_unknown_group_is_dead_and_an_error_since_v6() -> None:
    host = TinyHost()
    assert describe(host, 5, "none") == [DescribedGroup(group_id="none", group_state="Dead")]
    assert describe(host, 6, "none") == [
        DescribedGroup(
            group_id="none",
            group_state="Dead",
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message="Group none not found.",
        )
    ]


def test_a_simple_group_is_described_as_empty() -> None:
    assert describe(world(), 6, "simple") == [
        DescribedGroup(group_id="simple", group_state="Empty")
    ]


def test_groups_of_all_states_are_listed() -> None:
    rows = {row.group_id: row for row in listed(world())}
    assert rows == {
        GROUP: ListedGroup(
            group_id=GROUP, protocol_type="consumer", group_state="Stable", group_type="classic"
        ),
        "empty": ListedGroup(
            group_id="empty", protocol_type="consumer", group_state="Empty", group_type="classic"
        ),
        "joining": ListedGroup(
            group_id="joining",
            protocol_type="consumer",
            group_state="PreparingRebalance",
            group_type="classic",
        ),
        "simple": ListedGroup(group_id="simple", group_state="Empty", group_type="classic"),
    }


@pytest.mark.parametrize(
    ("states", "types", "expected"),
    [
        (("Stable",), (), {GROUP}),
        (("stable", "EMPTY"), (), {GROUP, "empty", "simple"}),
        ((" PreparingRebalance ",), (), {"joining"}),
        (("NoSuchState",), (), set()),
        ((), ("classic",), {GROUP, "empty", "joining", "simple"}),
        ((), ("Classic",), {GROUP, "empty", "joining", "simple"}),
        ((), ("consumer",), set()),
        (("Empty",), ("consumer", "classic"), {"empty", "simple"}),
    ],
)
def test_listings_are_filtered_by_state_and_type(
    states: tuple[str, ...], types: tuple[str, ...], expected: set[str]
) -> None:
    assert {row.group_id for row in listed(world(), states, types)} == expected


def test_listing_by_ids_leaves_out_the_others_and_those_that_are_gone() -> None:
    host = world()
    decision = host.shard.decide_list(
        ListGroupsRequest(), context(5), "waiter", now_ms=0, group_ids=["empty", "gone"]
    )
    (reply,) = decision.effects
    assert [group.group_id for group in reply.response.groups] == ["empty"]
