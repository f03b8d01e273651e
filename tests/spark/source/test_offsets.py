"""What follows from offsets, without Spark or broker: limits, splitting, data loss, new partitions."""

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
    split,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
IDS = {"a": "ida", "b": "idb"}


def ranges_of(sizes: list[int]) -> list[Range]:
    return [Range(TopicPartition("t", at), 10 * at, 10 * at + size) for at, size in enumerate(sizes)]


def test_an_offset_is_written_as_the_kafka_connector_does_with_the_ids_of_the_topics_beside():
    offset = Offset({B0: 3, TopicPartition("a", 10): 1, TopicPartition("a", 2): 5}, IDS | {"gone": "x"})
    assert offset.render() == {"a": {"2": 5, "10": 1}, "b": {"0": 3}, "@ids": IDS}
    assert list(offset.render()["a"]) == ["2", "10"]
    assert Offset.parse(offset.render()).render() == offset.render()
    assert Offset.parse('{"a": {"0": 7}}') == Offset({A0: 7}, {})


@settings(deadline=None)
@given(st.lists(st.integers(0, 1000), max_size=8), st.integers(1, 3000))
def test_a_limit_is_spent_whole_and_never_exceeded(sizes: list[int], most: int):
    ranges = ranges_of(sizes)
    ends = limit(ranges, most)
    taken = {one.partition: ends[one.partition] - one.start for one in ranges}
    assert sum(taken.values()) == min(most, sum(sizes))
    assert all(0 <= taken[one.partition] <= one.size for one in ranges)
    if most >= len(ranges):
        assert all(taken[one.partition] for one in ranges if one.size)


def test_a_limit_is_shared_in_proportion():
    assert limit([Range(A0, 0, 900), Range(A1, 0, 100)], 100) == {A0: 90, A1: 10}


def test_a_partition_with_few_records_does_not_wait_for_the_backlog_of_others():
    assert limit([Range(A0, 0, 1_000_000), Range(A1, 7, 8), Range(B0, 5, 5)], 1000) == {A0: 999, A1: 8, B0: 5}
    assert sum(limit([Range(A0, 0, 9), Range(A1, 0, 1)], 1).values()) == 1  # there is not one for each


@settings(deadline=None)
@given(st.lists(st.integers(0, 500), max_size=6), st.integers(1, 40), st.none() | st.integers(1, 100))
def test_splitting_keeps_every_offset_once_and_makes_enough_pieces(
    sizes: list[int], wanted: int, most: int | None
):
    ranges = ranges_of(sizes)
    pieces = split(ranges, wanted, most)
    assert [(one.partition, at) for one in pieces for at in range(one.start, one.end)] == [
        (one.partition, at) for one in ranges for at in range(one.start, one.end)
    ]
    assert all(one.size > 0 and one.size <= (most or one.size) for one in pieces)
    assert len(pieces) >= min(wanted, sum(sizes))


def test_losses_are_told_apart():
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


def test_no_ids_no_verdict_about_a_topic_created_again():
    assert find_losses(Offset({A0: 1}), {A0: LogState(0, 5)}, IDS) == []
    assert find_losses(Offset({A0: 1}, IDS), {A0: LogState(0, 5)}, {}) == []


def test_a_new_partition_enters_with_its_beginning_and_is_read_by_the_next_batch():
    start = Offset({A0: 10}, {"a": "ida"})
    logs = {A0: LogState(0, 12), A1: LogState(3, 8)}
    end = next_offset(start, logs, IDS, [])
    assert end == Offset({A0: 12, A1: 3}, {"a": "ida"})
    assert ranges_between(start, end) == [Range(A0, 10, 12)]
    after = next_offset(end, logs, IDS, [])
    assert ranges_between(end, after) == [Range(A1, 3, 8)]


def test_after_a_loss_the_next_batch_goes_on_with_what_is_left():
    start = Offset({A0: 10, A1: 20, B0: 5}, IDS)
    logs = {A0: LogState(15, 30), A1: LogState(0, 12), B0: LogState(0, 9)}
    ids = {"a": "ida", "b": "new"}
    end = next_offset(start, logs, ids, find_losses(start, logs, ids))
    assert end == Offset({A0: 30, A1: 12, B0: 0}, ids)
    assert ranges_between(start, end) == [
        Range(A0, 10, 30)
    ]  # from 15 on, which the plan of the batch finds out
    assert ranges_between(end, next_offset(end, logs, ids, [])) == [Range(B0, 0, 9)]


def test_a_partition_that_is_gone_leaves_the_offset():
    start = Offset({A0: 10, B0: 5}, IDS)
    logs = {A0: LogState(0, 10)}
    assert next_offset(start, logs, {"a": "ida"}, find_losses(start, logs, IDS)) == Offset(
        {A0: 10}, {"a": "ida"}
    )


def test_waiting_counts_what_is_ahead():
    assert pending_offsets(Offset({A0: 10}), {A0: LogState(0, 12), A1: LogState(3, 8)}) == 7
