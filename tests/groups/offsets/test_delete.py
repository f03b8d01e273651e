"""OffsetDelete and DeleteGroups: offsets that go, and offsets that are in use."""

from __future__ import annotations

from millstream.core.errors import ErrorCode
from millstream.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from support.groups.offsets import ORDERS_0, delete_offsets, offsets_of
from support.groups.world import (
    GROUP,
    TinyHost,
    commit,
    leave,
    new_shard,
    replay,
    stable_group,
    txn_commit,
)


def test_offsets_that_a_group_still_reads_are_not_deleted() -> None:
    host = TinyHost()
    (only,) = stable_group(host, 1)
    host.ask("offset_commit", commit({ORDERS_0: 1, ("trips", 0): 2}, only, 1), 8)
    assert delete_offsets(host, ORDERS_0, ("trips", 0), ("trips", 1), ("trips", 9)) == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert offsets_of(host, ORDERS_0, ("trips", 0)) == [1, -1]
    assert len(host.log[-1].rows) == 1  # nothing is written about a partition without an offset


def test_a_group_is_deleted_with_its_offsets() -> None:
    host = TinyHost()
    (only,) = stable_group(host, 1)
    host.ask("offset_commit", commit({ORDERS_0: 1}, only, 1), 8)
    host.ask("txn_offset_commit", txn_commit({("trips", 0): 1}, only, 1), 3)
    deletion = DeleteGroupsRequest(groups_names=[GROUP, "unknown", GROUP])
    codes = [row.error_code for row in host.ask("delete", deletion, 2).results]
    assert codes == [
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.NON_EMPTY_GROUP,
    ]
    host.ask("leave", leave((only, None)), 3)
    codes = [row.error_code for row in host.ask("delete", deletion, 2).results]
    assert codes == [ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.GROUP_ID_NOT_FOUND]
    assert host.shard.durable == ({}, ({}, {}), {})
    assert host.shard.state.classic == {}
    assert replay(host.log, new_shard()).durable == host.shard.durable


def test_a_simple_group_is_deleted() -> None:
    host = TinyHost()
    host.ask("offset_commit", commit({ORDERS_0: 1}), 8)
    answer = host.ask("delete", DeleteGroupsRequest(groups_names=[GROUP]), 2)
    assert answer == DeleteGroupsResponse(results=[DeletableGroupResult(group_id=GROUP)])
    assert host.log[-1].rows[0][1] is None
    assert len(host.log[-1].rows) == 1
