"""OffsetCommit: accepted and refused commits. Whole decisions where they are small."""

from __future__ import annotations

from millstream.core.decisions import Arm, Decision, Reply
from millstream.core.errors import ErrorCode
from millstream.groups.effects import SetClassicGroup
from millstream.groups.settings import GroupSettings
from millstream.wire.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from support.groups.offsets import NOW, ORDERS_0, offset_record, offsets_of
from support.groups.world import (
    GROUP,
    ORDERS_ID,
    SESSION_MS,
    TinyHost,
    commit,
    context,
    group_of,
    member,
    new_shard,
)


def test_a_simple_consumer_commits_without_a_group() -> None:
    decision = new_shard().decide_offset_commit(
        commit({ORDERS_0: 42, ("orders", 1): 7}, metadata="m"), context(8), "w", now_ms=NOW
    )
    told = OffsetCommitResponseTopic(
        name="orders",
        topic_id=ORDERS_ID,
        partitions=[OffsetCommitResponsePartition(partition_index=index) for index in (0, 1)],
    )
    assert decision == Decision(
        (offset_record(0, 42, metadata="m"), offset_record(1, 7, metadata="m")),
        (Reply("w", OffsetCommitResponse(topics=[told])),),
    )


def test_a_members_commit_renews_its_session() -> None:
    shard = new_shard()
    shard.perform(SetClassicGroup(GROUP, group_of(member("a"))))
    decision = shard.decide_offset_commit(
        commit({ORDERS_0: 1}, "a", 1), context(8), "w", now_ms=NOW
    )
    assert decision.records == (offset_record(0, 1),)
    assert decision.effects[0] == Arm(("session", GROUP, "a"), NOW + SESSION_MS)


def test_a_commit_with_its_own_retention_is_written_in_the_version_that_has_room_for_it() -> None:
    decision = new_shard().decide_offset_commit(
        commit({ORDERS_0: 1}, retention_ms=5_000), context(4), "w", now_ms=NOW
    )
    expected = offset_record(0, 1, expire_timestamp=NOW + 5_000, topic_id=bytes(16))
    assert decision.records == (expected,)


def test_by_id_the_name_is_found_and_an_unknown_id_is_told() -> None:
    decision = new_shard().decide_offset_commit(
        commit({ORDERS_0: 1, ("gone", 0): 2}, by_id=True), context(10), "w", now_ms=NOW
    )
    assert decision.records == (offset_record(0, 1),)
    (reply,) = decision.effects
    assert [row.partitions[0].error_code for row in reply.response.topics] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ]


def test_what_does_not_exist_is_told_apart_from_what_the_group_refuses() -> None:
    answer = TinyHost().ask(
        "offset_commit", commit({ORDERS_0: 1, ("orders", 9): 1, ("gone", 0): 1}, "x", 3), 8
    )
    codes = [row.error_code for topic in answer.topics for row in topic.partitions]
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == [ErrorCode.ILLEGAL_GENERATION, missing, missing]


def test_metadata_too_large_fails_its_partition_alone() -> None:
    host = TinyHost(settings=GroupSettings(offset_metadata_max_bytes=4))
    request = commit({ORDERS_0: 1, ("orders", 1): 2}, metadata="1234")
    request.topics[0].partitions[1].committed_metadata = "12345"
    answer = host.ask("offset_commit", request, 8)
    assert [row.error_code for row in answer.topics[0].partitions] == [
        ErrorCode.NONE,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ]
    assert offsets_of(host, ORDERS_0, ("orders", 1)) == [1, -1]


def test_a_commit_too_large_for_a_batch_is_refused_whole() -> None:
    host = TinyHost(settings=GroupSettings(max_message_bytes=10_000))
    answer = host.ask(
        "offset_commit", commit({("orders", n): 1 for n in range(4)}, metadata="m" * 4_000), 8
    )
    codes = {row.error_code for row in answer.topics[0].partitions}
    assert codes == {ErrorCode.UNKNOWN_SERVER_ERROR}
    assert host.log == []
