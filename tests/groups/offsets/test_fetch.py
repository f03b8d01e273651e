"""OffsetFetch: the committed offsets of a group, by name and by id."""

from __future__ import annotations

from millstream.core.decisions import Decision, Reply
from millstream.core.errors import ErrorCode
from millstream.groups.offsets.fetch import Steps, T, error_response, single
from millstream.groups.offsets.fetch import group_of as one_group
from millstream.groups.topics_view import TopicInfo, TopicsView
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
from support.groups.offsets import NOW, ORDERS_0
from support.groups.world import (
    GROUP,
    ORDERS_ID,
    TinyHost,
    commit,
    context,
    fetch,
    new_shard,
)


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
    assert [
        (topic.name, [row.committed_offset for row in topic.partitions]) for topic in answer.topics
    ] == [
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
    assert (unknown.topic_id, unknown.partitions[0].error_code) == (
        new_id,
        ErrorCode.UNKNOWN_TOPIC_ID,
    )
    host.shard.state.topics = TopicsView({"orders": TopicInfo(new_id, 4)})
    (renewed,) = host.ask("offset_fetch", by_id(new_id), 10).topics
    assert (renewed.partitions[0].error_code, renewed.partitions[0].committed_offset) == (
        ErrorCode.NONE,
        -1,
    )


def finished(steps: Steps[T]) -> T:
    """Carry out all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def test_the_shape_of_one_group_before_v8() -> None:
    asked = OffsetFetchRequest(
        group_id=GROUP, topics=[OffsetFetchRequestTopic(name="orders", partition_indexes=[0])]
    )
    request = finished(one_group(asked))
    assert request == fetch(ORDERS_0)
    host = TinyHost()
    host.ask("offset_commit", commit({ORDERS_0: 5}, metadata="m"), 8)
    row = OffsetFetchResponsePartition(partition_index=0, committed_offset=5, metadata="m")
    expected = OffsetFetchResponse(
        topics=[OffsetFetchResponseTopic(name="orders", partitions=[row])]
    )
    assert finished(single(host.ask("offset_fetch", request, 7), request, 7)) == expected
    assert finished(one_group(OffsetFetchRequest(group_id=GROUP, topics=None))).topics is None


def test_v1_tells_an_error_of_the_group_with_every_partition() -> None:
    failed = OffsetFetchResponseGroup(group_id=GROUP, error_code=ErrorCode.NOT_COORDINATOR)
    row = OffsetFetchResponsePartition(
        partition_index=0, committed_offset=-1, metadata="", error_code=ErrorCode.NOT_COORDINATOR
    )
    assert finished(single(failed, fetch(ORDERS_0), 1)).topics == [
        OffsetFetchResponseTopic(name="orders", partitions=[row])
    ]
    assert finished(single(failed, fetch(ORDERS_0), 2)) == OffsetFetchResponse(
        error_code=ErrorCode.NOT_COORDINATOR
    )


def test_refused_fetch_names_the_error_at_the_group_and_at_every_partition() -> None:
    answer = finished(error_response(fetch(ORDERS_0), ErrorCode.NOT_COORDINATOR))
    ((topic,), code) = answer.topics, answer.error_code
    assert (answer.group_id, code, topic.name) == (GROUP, ErrorCode.NOT_COORDINATOR, "orders")
    assert [(row.committed_offset, row.error_code) for row in topic.partitions] == [(-1, code)]
    everything = OffsetFetchRequestGroup(group_id=GROUP, topics=None)
    assert finished(error_response(everything, ErrorCode.NOT_COORDINATOR)).topics == []
