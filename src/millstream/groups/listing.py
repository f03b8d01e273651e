"""DescribeGroups and ListGroups: the groups of a shard as responses show them."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.groups.classic import answers
from millstream.groups.shard_state import ShardState
from millstream.wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from millstream.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse


def describe(
    state: ShardState, request: DescribeGroupsRequest, version: int
) -> DescribeGroupsResponse:
    """Describe classic groups. ConsumerGroupDescribe describes consumer groups."""
    return DescribeGroupsResponse(
        groups=[_described(state, group_id, version) for group_id in request.groups]
    )


def _described(state: ShardState, group_id: str, version: int) -> DescribedGroup:
    group = None if group_id in state.consumer else state.find(group_id)
    if group is None:
        return answers.described_dead(group_id, version)
    return answers.described(group)  # type: ignore[arg-type]


def list_groups(
    state: ShardState, request: ListGroupsRequest, group_ids: Iterable[str] | None
) -> ListGroupsResponse:
    """List groups that exist, all without ``group_ids``.

    States and types are compared case-insensitively.
    """
    states = {name.strip().lower() for name in request.states_filter}
    types = {kind.strip().lower() for kind in request.types_filter}
    known = map(state.find, state.ids() if group_ids is None else group_ids)
    rows = [group.listed() for group in known if group is not None]
    return ListGroupsResponse(groups=[row for row in rows if _matches(row, states, types)])


def _matches(group: ListedGroup, states: set[str], types: set[str]) -> bool:
    return (not states or group.group_state.lower() in states) and (
        not types or group.group_type in types
    )
