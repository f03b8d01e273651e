"""Decisions about offsets, without Spark or a broker: limits, data loss, new partitions."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.types import TopicPartition
from millstream.spark.source.offsets import (
    LogState,
    Loss,
    Offset,
    Range,
    find_losses,
    limit,
    next_offset,
    pending_offsets,
    ranges_between,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
IDS = {"a": "ida", "b": "idb"}


def ranges_of(sizes: list[int]) -> list[Range]:
    return [
        Range(TopicPartition("t", at), 10 * at, 10 * at + size) for at, size in enumerate(sizes)
    ]


def test_offset_is_rendered_as_kafka_connector_does_plus_topic_ids():
    offset = Offset(
        {B0: 3, TopicPartition("a", 10): 1, TopicPartition("a", 2): 5}, IDS | {"gone": "x"}
    )
    assert offset.render() == {"a": {"2": 5, "10": 1}, "b": {"0": 3}, "@ids": IDS}
    assert list(offset.render()["a"]) == ["2", "10"]
    assert Offset.parse(offset.render()).render() == offset.render()
    assert Offset.parse('{"a": {"0": 7}}') == Offset({A0: 7}, {})


@settings(deadline=None)
@given(st.lists(st.integers(0, 1000), max_size=8), st.integers(1, 3000))
def test_limit_is_used_up_and_never_exceeded(sizes: list[int], most: int):
    ranges = ranges_of(sizes)
    ends = limit(ranges, most)
    taken = {span.partition: ends[span.partition] - span.start for span in ranges}
    assert sum(taken.values()) == min(most, sum(sizes))
    assert all(0 <= taken[span.partition] <= span.size for span in ranges)
    if most >= len(ranges):
        assert all(taken[span.partition] for span in ranges if span.size)


def test_a_limit_is_shared_in_proportion():
    assert limit([Range(A0, 0, 900), Range(A1, 0, 100)], 100) == {A0: 90, A1: 10}


def test_partition_with_few_records_is_not_starved_by_a_backlog():
    assert limit([Range(A0, 0, 1_000_000), Range(A1, 7, 8), Range(B0, 5, 5)], 1000) == {
        A0: 999,
        A1: 8,
        B0: 5,
    }
    assert sum(limit([Range(A0, 0, 9), Range(A1, 0, 1)], 1).values()) == 1


def test_kinds_of_loss_are_distinguished():
    start = Offset({A0: 10, A1: 20, B0: 5, TopicPartition("c", 0): 1}, IDS | {"c": "idc"})
    logs = {A0: LogState(15, 30), A1: LogState(0, 12), B0: LogState(0, 9)}
    assert find_losses(start, logs, {"a": "ida", "b": "new"}) == [
        Loss(A0, "deleted", 10, 15),
        Loss(A1, "shrunk", 20, 12),
        Loss(B0, "recreated", 5, 0),
        Loss(TopicPartition("c", 0), "gone", 1, None),
    ]


def test_a_loss_names_partition_and_offsets():
    text = str(Loss(A0, "deleted", 10, 15))
    assert "a-0" in text and "offsets 10 to 14 (5 offsets)" in text and "begins at 15" in text
    assert "offsets 12 to 19 (8 offsets)" in str(Loss(A1, "shrunk", 20, 12))


def test_recreated_topic_is_not_detected_without_topic_ids():
    assert find_losses(Offset({A0: 1}), {A0: LogState(0, 5)}, IDS) == []
    assert find_losses(Offset({A0: 1}, IDS), {A0: LogState(0, 5)}, {}) == []


def test_new_partition_enters_with_its_start_and_is_read_by_next_batch():
    start = Offset({A0: 10}, {"a": "ida"})
    logs = {A0: LogState(0, 12), A1: LogState(3, 8)}
    end = next_offset(start, logs, IDS, [])
    assert end == Offset({A0: 12, A1: 3}, {"a": "ida"})
    assert ranges_between(start, end) == [Range(A0, 10, 12)]
    after = next_offset(end, logs, IDS, [])
    assert ranges_between(end, after) == [Range(A1, 3, 8)]


def test_next_batch_after_a_loss_reads_the_remaining_records():
    start = Offset({A0: 10, A1: 20, B0: 5}, IDS)
    logs = {A0: LogState(15, 30), A1: LogState(0, 12), B0: LogState(0, 9)}
    ids = {"a": "ida", "b": "new"}
    end = next_offset(start, logs, ids, find_losses(start, logs, ids))
    assert end == Offset({A0: 30, A1: 12, B0: 0}, ids)
    # The plan of the batch moves the start to 15.
    assert ranges_between(start, end) == [Range(A0, 10, 30)]
    assert ranges_between(end, next_offset(end, logs, ids, [])) == [Range(B0, 0, 9)]


def test_deleted_partition_is_removed_from_the_offset():
    start = Offset({A0: 10, B0: 5}, IDS)
    logs = {A0: LogState(0, 10)}
    assert next_offset(start, logs, {"a": "ida"}, find_losses(start, logs, IDS)) == Offset(
        {A0: 10}, {"a": "ida"}
    )


def test_pending_offsets_counts_unread_offsets():
    assert pending_offsets(Offset({A0: 10}), {A0: LogState(0, 12), A1: LogState(3, 8)}) == 7
