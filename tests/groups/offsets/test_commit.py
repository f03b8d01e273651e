"""Offsets: committed, fetched, deleted, expired; in transactions and without. Whole decisions where they are small."""

from __future__ import annotations

import pytest

from millstream.core.decisions import Arm, CoordinatorRecord, Decision, Reply, TransactionalAppend
from millstream.core.errors import ErrorCode
from millstream.groups.effects import Become, SeeTopics, Sweep
from millstream.groups.offsets import expiry
from millstream.groups.offsets.fetch import group_of as one_group
from millstream.groups.offsets.fetch import single
from millstream.groups.records import offset_tombstone
from millstream.groups.settings import GroupSettings
from millstream.groups.topics_view import TopicInfo, TopicsView
from millstream.wire.group_records import OffsetCommitKey, OffsetCommitValue
from millstream.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from millstream.wire.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from millstream.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from millstream.wire.messages.txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from support.groups.world import (
    GROUP,
    ORDERS_ID,
    SESSION_MS,
    TOPICS,
    TRIPS_ID,
    TinyHost,
    commit,
    context,
    fetch,
    group_of,
    join,
    leave,
    member,
    new_shard,
    replay,
    stable_group,
    subscription,
    sync,
    txn_commit,
)

NOW = 1_000
MINUTE = 60_000
RETENTION_MS = GroupSettings().offsets_retention_ms
CHECK_MS = GroupSettings().offsets_retention_check_interval_ms
ORDERS_0 = ("orders", 0)
WITHOUT_ORDERS = TopicsView({"trips": TopicInfo(TRIPS_ID, 2)}, version=2, deleted=frozenset({ORDERS_ID}))


def offset_record(partition: int, offset: int, **changes: object) -> CoordinatorRecord:
    value = {"offset": offset, "commit_timestamp": NOW, "topic_id": ORDERS_ID, **changes}
    return CoordinatorRecord(
        OffsetCommitKey(group=GROUP, topic="orders", partition=partition),
        OffsetCommitValue(**value),  # type: ignore[arg-type]
    )


def offsets_of(host: TinyHost, *partitions: tuple[str, int], stable: bool = False) -> list[int]:
    """Offsets, or minus the error code."""
    answer = host.ask("offset_fetch", fetch(*partitions), 8, require_stable=stable)
    rows = [row for topic in answer.topics for row in topic.partitions]
    return [-row.error_code if row.error_code else row.committed_offset for row in rows]


# ---- commits ------------------------------------------------------------------------------------------------


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
    shard.perform(Become(GROUP, group_of(member("a"))))
    decision = shard.decide_offset_commit(commit({ORDERS_0: 1}, "a", 1), context(8), "w", now_ms=NOW)
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
    answer = host.ask("offset_commit", commit({("orders", n): 1 for n in range(4)}, metadata="m" * 4_000), 8)
    codes = {row.error_code for row in answer.topics[0].partitions}
    assert codes == {ErrorCode.UNKNOWN_SERVER_ERROR}
    assert host.log == []


# ---- fetches ------------------------------------------------------------------------------------------------


def test_an_unknown_group_has_committed_nothing_and_that_is_no_error() -> None:
    decision = new_shard().decide_offset_fetch(fetch(ORDERS_0), context(8), "w", now_ms=NOW)
    row = OffsetFetchResponsePartitions(partition_index=0, committed_offset=-1, metadata="")
    topic = OffsetFetchResponseTopics(name="orders", partitions=[row])
    assert decision == Decision(
        effects=(Reply("w", OffsetFetchResponseGroup(group_id=GROUP, topics=[topic])),)
    )


def test_null_topics_mean_all_that_was_committed() -> None:
    host = TinyHost()
    host.ask("offset_commit", commit({ORDERS_0: 1, ("trips", 1): 2}), 8)
    answer = host.ask("offset_fetch", fetch(), 8)
    assert [(topic.name, [row.committed_offset for row in topic.partitions]) for topic in answer.topics] == [
        ("orders", [1]),
        ("trips", [2]),
    ]
    assert host.ask("offset_fetch", fetch(group="unknown"), 8).topics == []


def test_fetches_by_id_know_a_topic_from_its_successor_of_the_same_name() -> None:
    host = TinyHost()
    host.ask("offset_commit", commit({ORDERS_0: 5}), 8)
    new_id = b"n" * 16

    def by_id(topic_id: bytes) -> OffsetFetchRequestGroup:
        topics = [OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0])]
        return OffsetFetchRequestGroup(group_id=GROUP, topics=topics)

    (topic,) = host.ask("offset_fetch", by_id(ORDERS_ID), 10).topics
    assert (topic.topic_id, topic.partitions[0].committed_offset) == (ORDERS_ID, 5)
    (unknown,) = host.ask("offset_fetch", by_id(new_id), 10).topics
    assert (unknown.topic_id, unknown.partitions[0].error_code) == (new_id, ErrorCode.UNKNOWN_TOPIC_ID)
    host.shard.state.topics = TopicsView({"orders": TopicInfo(new_id, 4)})
    (renewed,) = host.ask("offset_fetch", by_id(new_id), 10).topics
    assert (renewed.partitions[0].error_code, renewed.partitions[0].committed_offset) == (ErrorCode.NONE, -1)


def test_the_shape_of_one_group_before_v8() -> None:
    asked = OffsetFetchRequest(
        group_id=GROUP, topics=[OffsetFetchRequestTopic(name="orders", partition_indexes=[0])]
    )
    request = one_group(asked)
    assert request == fetch(ORDERS_0)
    host = TinyHost()
    host.ask("offset_commit", commit({ORDERS_0: 5}, metadata="m"), 8)
    row = OffsetFetchResponsePartition(partition_index=0, committed_offset=5, metadata="m")
    expected = OffsetFetchResponse(topics=[OffsetFetchResponseTopic(name="orders", partitions=[row])])
    assert single(host.ask("offset_fetch", request, 7), request, 7) == expected
    assert one_group(OffsetFetchRequest(group_id=GROUP, topics=None)).topics is None


def test_v1_tells_an_error_of_the_group_with_every_partition() -> None:
    failed = OffsetFetchResponseGroup(group_id=GROUP, error_code=ErrorCode.NOT_COORDINATOR)
    row = OffsetFetchResponsePartition(
        partition_index=0, committed_offset=-1, metadata="", error_code=ErrorCode.NOT_COORDINATOR
    )
    assert single(failed, fetch(ORDERS_0), 1).topics == [
        OffsetFetchResponseTopic(name="orders", partitions=[row])
    ]
    assert single(failed, fetch(ORDERS_0), 2) == OffsetFetchResponse(error_code=ErrorCode.NOT_COORDINATOR)


# ---- transactions -------------------------------------------------------------------------------------------


def test_offsets_of_a_transaction_are_appended_as_part_of_it() -> None:
    decision = new_shard().decide_txn_offset_commit(
        txn_commit({ORDERS_0: 9}, producer_id=7, producer_epoch=3), context(3), "w", now_ms=NOW
    )
    told = TxnOffsetCommitResponseTopic(
        name="orders", topic_id=ORDERS_ID, partitions=[TxnOffsetCommitResponsePartition(partition_index=0)]
    )
    assert decision == Decision(
        (offset_record(0, 9),),
        (Reply("w", TxnOffsetCommitResponse(topics=[told])),),
        transactional=TransactionalAppend(7, 3),
    )


def test_they_count_when_the_transaction_commits_and_not_before() -> None:
    host = TinyHost()
    host.ask("offset_commit", commit({ORDERS_0: 1}), 8)
    host.ask("txn_offset_commit", txn_commit({ORDERS_0: 9}), 3)
    assert offsets_of(host, ORDERS_0) == [1]
    assert offsets_of(host, ORDERS_0, stable=True) == [-ErrorCode.UNSTABLE_OFFSET_COMMIT]
    host.marker(7, commit=True)
    assert offsets_of(host, ORDERS_0, stable=True) == [9]
    assert replay(host.log, new_shard()).durable == host.shard.durable


def test_they_are_forgotten_when_it_aborts() -> None:
    host = TinyHost()
    host.ask("txn_offset_commit", txn_commit({ORDERS_0: 9}), 3)
    assert offsets_of(host, ORDERS_0, stable=True) == [-ErrorCode.UNSTABLE_OFFSET_COMMIT]
    host.marker(7, commit=False)
    assert offsets_of(host, ORDERS_0, stable=True) == [-1]
    assert not host.shard.state.offsets.knows(GROUP)


def test_of_a_plain_and_a_transactional_commit_the_later_record_wins() -> None:
    host = TinyHost()
    host.ask("txn_offset_commit", txn_commit({ORDERS_0: 9}), 3)
    host.ask("offset_commit", commit({ORDERS_0: 12}), 8)
    host.marker(7, commit=True)
    assert offsets_of(host, ORDERS_0) == [12]


def test_a_pending_offset_is_unstable_until_every_transaction_on_it_has_ended() -> None:
    host = TinyHost()
    for producer_id in (7, 8):
        host.ask("txn_offset_commit", txn_commit({ORDERS_0: producer_id}, producer_id=producer_id), 3)
    host.marker(8, commit=True)
    assert offsets_of(host, ORDERS_0, stable=True) == [-ErrorCode.UNSTABLE_OFFSET_COMMIT]
    host.marker(7, commit=True)
    assert offsets_of(host, ORDERS_0, stable=True) == [8]
    host.crash()
    assert offsets_of(host, ORDERS_0, stable=True) == [8]


def test_a_pending_offset_survives_a_new_coordinator() -> None:
    host = TinyHost()
    host.ask("txn_offset_commit", txn_commit({ORDERS_0: 9}), 3)
    host.crash()
    assert offsets_of(host, ORDERS_0, stable=True) == [-ErrorCode.UNSTABLE_OFFSET_COMMIT]
    host.marker(7, commit=True)
    assert offsets_of(host, ORDERS_0) == [9]


def test_a_tombstone_takes_pending_offsets_with_it() -> None:
    host = TinyHost()
    host.ask("txn_offset_commit", txn_commit({ORDERS_0: 9}), 3)
    assert delete_offsets(host, ("orders", 0)) == [ErrorCode.NONE]
    host.marker(7, commit=True)
    assert offsets_of(host, ORDERS_0) == [-1]
    assert host.shard.durable == ({}, ({}, {}), None)


# ---- deletion -----------------------------------------------------------------------------------------------


def delete_offsets(host: TinyHost, *partitions: tuple[str, int]) -> list[int]:
    topics = [
        OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition(partition_index=index)])
        for name, index in partitions
    ]
    answer = host.ask("offset_delete", OffsetDeleteRequest(group_id=GROUP, topics=topics), 0)
    assert answer.error_code == ErrorCode.NONE
    return [row.error_code for topic in answer.topics for row in topic.partitions]


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
    assert codes == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.NON_EMPTY_GROUP]
    host.ask("leave", leave((only, None)), 3)
    codes = [row.error_code for row in host.ask("delete", deletion, 2).results]
    assert codes == [ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.GROUP_ID_NOT_FOUND]
    assert host.shard.durable == ({}, ({}, {}), None)
    assert host.shard.state.classic == {}
    assert replay(host.log, new_shard()).durable == host.shard.durable


def test_a_simple_group_is_deleted() -> None:
    host = TinyHost()
    host.ask("offset_commit", commit({ORDERS_0: 1}), 8)
    answer = host.ask("delete", DeleteGroupsRequest(groups_names=[GROUP]), 2)
    assert answer == DeleteGroupsResponse(results=[DeletableGroupResult(group_id=GROUP)])
    assert host.log[-1].rows[0][1] is None
    assert len(host.log[-1].rows) == 1


# ---- expiry -------------------------------------------------------------------------------------------------


def test_offsets_of_a_group_expire_after_it_has_been_empty_for_the_retention_time() -> None:
    host = TinyHost()
    (only,) = stable_group(host, 1)
    host.ask("offset_commit", commit({ORDERS_0: 1}, only, 1), 8)
    host.timers = {key: at for key, at in host.timers.items() if key[0] != "session"}  # type: ignore[index]
    host.pass_time(RETENTION_MS + CHECK_MS)
    assert offsets_of(host, ORDERS_0) == [1]
    host.ask("leave", leave((only, None)), 3)
    host.pass_time(RETENTION_MS - CHECK_MS)
    assert offsets_of(host, ORDERS_0) == [1]
    host.pass_time(2 * CHECK_MS)
    assert offsets_of(host, ORDERS_0) == [-1]
    assert host.shard.state.classic == {}
    assert host.shard.durable == ({}, ({}, {}), None)
    host.crash()
    assert host.shard.durable == ({}, ({}, {}), None)


def test_offsets_of_a_simple_group_expire_one_by_one() -> None:
    host = TinyHost()
    host.ask("offset_commit", commit({ORDERS_0: 1}), 8)
    host.pass_time(RETENTION_MS // 2)
    host.ask("offset_commit", commit({("orders", 1): 2}), 8)
    host.pass_time(RETENTION_MS // 2 + CHECK_MS)
    assert offsets_of(host, ORDERS_0, ("orders", 1)) == [-1, 2]
    host.pass_time(RETENTION_MS // 2)
    assert offsets_of(host, ORDERS_0, ("orders", 1)) == [-1, -1]
    assert not host.shard.state.ids()


def test_topics_a_stable_group_does_not_read_any_more_expire() -> None:
    host = TinyHost()
    waiter = host.send("join", join(session_ms=1_800_000, protocols=(("range", subscription("trips")),)), 3)
    host.pass_time(3_000)
    only = host.answers[waiter].member_id
    host.ask("sync", sync(only, 1, {}), 3)
    host.ask("offset_commit", commit({ORDERS_0: 1, ("trips", 0): 2}, only, 1), 8)
    host.timers.pop(("session", GROUP, only))
    host.pass_time(RETENTION_MS + CHECK_MS)
    assert offsets_of(host, ORDERS_0, ("trips", 0)) == [-1, 2]


def test_an_offset_with_its_own_retention_expires_by_it() -> None:
    host = TinyHost()
    host.ask("offset_commit", commit({ORDERS_0: 1}, retention_ms=MINUTE), 4)
    host.pass_time(CHECK_MS)
    assert offsets_of(host, ORDERS_0) == [-1]


def test_an_offset_does_not_expire_under_an_open_transaction() -> None:
    host = TinyHost()
    host.ask("offset_commit", commit({ORDERS_0: 1}), 8)
    host.ask("txn_offset_commit", txn_commit({ORDERS_0: 2}), 3)
    host.pass_time(RETENTION_MS + CHECK_MS)
    assert offsets_of(host, ORDERS_0) == [1]
    host.marker(7, commit=False)
    host.pass_time(CHECK_MS)
    assert offsets_of(host, ORDERS_0) == [-1]


def test_an_empty_group_without_offsets_goes_with_the_next_round_unless_somebody_is_about_to_join() -> None:
    host = TinyHost()
    host.pass_time(CHECK_MS - 1_000)
    pending = host.ask("join", join(), 9).member_id
    host.pass_time(1_000)
    assert host.shard.state.classic[GROUP].pending == {pending}
    host.pass_time(CHECK_MS)
    assert host.shard.state.ids() == []


def test_a_round_over_many_offsets_takes_many_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "_LOOK", 10)
    monkeypatch.setattr(expiry, "_WRITE_BYTES", 300)
    host = TinyHost()
    for number in range(20):
        offsets = {("orders", partition): 1 for partition in range(4)}
        host.ask("offset_commit", commit(offsets, group=f"group-{number}"), 8)
    written = len(host.log)
    host.pass_time(RETENTION_MS + CHECK_MS)
    assert host.shard.state.ids() == []
    steps = host.log[written:]
    assert sum(len(entry.rows) for entry in steps) == 80
    assert max(len(entry.rows) for entry in steps) <= 5
    assert replay(host.log, new_shard()).durable == host.shard.durable


# ---- topics -------------------------------------------------------------------------------------------------


def test_offsets_of_a_deleted_topic_go_with_it() -> None:
    shard = new_shard()
    for record in shard.decide_offset_commit(
        commit({ORDERS_0: 1, ("orders", 1): 2, ("trips", 0): 3}), context(8), "w", now_ms=NOW
    ).records:
        shard.apply(record)
    sweep = Sweep(deleted=((GROUP, "orders", ORDERS_ID),))
    decision = shard.on_topics_changed(WITHOUT_ORDERS, now_ms=NOW)
    assert decision == Decision(effects=(SeeTopics(WITHOUT_ORDERS), sweep, Arm(expiry.SWEEP_TIMER, NOW)))
    shard.perform(sweep)
    assert shard.decide_timeout(expiry.SWEEP_TIMER, now_ms=NOW) == Decision(
        (offset_tombstone(GROUP, "orders", 0), offset_tombstone(GROUP, "orders", 1)), (Sweep(),)
    )


def test_the_offsets_of_a_topic_that_nobody_has_deleted_stay() -> None:
    """It is missing in the metadata without a note, as its logs are left alone for: it may be back."""
    host = TinyHost()
    host.ask("offset_commit", commit({ORDERS_0: 5}), 8)
    host.change_topics(TopicsView({"trips": TopicInfo(TRIPS_ID, 2)}, version=2))
    host.pass_time(CHECK_MS)
    host.change_topics(TopicsView(TOPICS.topics, version=3))
    assert offsets_of(host, ORDERS_0) == [5]


def test_offsets_of_an_earlier_topic_are_not_handed_out_by_who_never_saw_it() -> None:
    """The coordinator has changed since, and nobody has cleaned up."""
    host = TinyHost()
    host.ask("offset_commit", commit({ORDERS_0: 5}), 8)
    host.topics = TopicsView({"orders": TopicInfo(b"n" * 16, 4)}, version=1)
    host.crash()
    assert offsets_of(host, ORDERS_0) == [-1]


def test_offsets_of_a_topic_created_anew_are_not_those_of_the_old_one() -> None:
    host = TinyHost()
    host.ask("offset_commit", commit({ORDERS_0: 5}), 8)
    renewed = TopicsView({**TOPICS.topics, "orders": TopicInfo(b"n" * 16, 4)}, version=2)
    host.change_topics(renewed)
    host.pass_time(0)
    assert offsets_of(host, ORDERS_0) == [-1]
    assert host.shard.durable == ({}, ({}, {}), None)
    host.ask("offset_commit", commit({ORDERS_0: 1}), 8)
    host.change_topics(TopicsView({**renewed.topics, "more": TopicInfo(b"m" * 16, 1)}, version=3))
    assert offsets_of(host, ORDERS_0) == [1]
    assert replay(host.log, new_shard()).durable == host.shard.durable


def test_pending_offsets_of_a_deleted_topic_go_too() -> None:
    host = TinyHost()
    host.ask("txn_offset_commit", txn_commit({ORDERS_0: 9}), 3)
    host.change_topics(WITHOUT_ORDERS)
    host.pass_time(0)
    host.marker(7, commit=True)
    assert host.shard.durable == ({}, ({}, {}), None)


def test_a_deleted_topic_of_many_groups_takes_many_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "_WRITE_BYTES", 300)
    host = TinyHost()
    for number in range(20):
        offsets = {("orders", partition): 1 for partition in range(4)}
        host.ask("offset_commit", commit(offsets, group=f"group-{number}"), 8)
    written = len(host.log)
    host.change_topics(WITHOUT_ORDERS)
    host.pass_time(0)
    assert host.shard.state.ids() == []
    assert max(len(entry.rows) for entry in host.log[written:]) <= 5
