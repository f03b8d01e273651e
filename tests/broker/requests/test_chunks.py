"""Requests with many partitions are split into chunks, and the responses merged."""

from __future__ import annotations

import random

import pytest

from millstream.broker.requests import chunks as module
from millstream.broker.requests.chunks import add_response, chunks, is_large
from millstream.wire.messages.offset_delete import (
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

Shape = list[tuple[str, list[int]]]


def topics_of(shape: Shape) -> list[OffsetDeleteRequestTopic]:
    return [
        OffsetDeleteRequestTopic(
            name=name, partitions=[OffsetDeleteRequestPartition(partition_index=n) for n in indexes]
        )
        for name, indexes in shape
    ]


def answered(topics: list[OffsetDeleteRequestTopic]) -> list[OffsetDeleteResponseTopic]:
    return [
        OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=[
                OffsetDeleteResponsePartition(partition_index=row.partition_index)
                for row in topic.partitions
            ],
        )
        for topic in topics
    ]


@pytest.mark.parametrize("seed", range(30))
def test_responses_to_chunks_merge_to_the_whole_response(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PER_CHUNK", 7)
    dice = random.Random(seed)
    shape: Shape = [
        (dice.choice("ab"), list(range(dice.choice((0, 1, 3, 7, 8, 30))))) for _ in range(12)
    ]
    topics = topics_of(shape)
    whole: list[OffsetDeleteResponseTopic] = []
    for chunk in chunks(topics, "partitions"):
        assert 0 < sum(max(len(topic.partitions), 1) for topic in chunk.topics) <= 7
        add_response(whole, answered(chunk.topics), chunk.continues)
    assert whole == answered(topics_of(shape))
    assert topics == topics_of(shape)  # left as they were


def test_nothing_is_cut_into_no_chunks() -> None:
    assert list(chunks([], "partitions")) == []
    assert not is_large([], "partitions")
    assert is_large(topics_of([("a", list(range(1001)))]), "partitions")
    assert is_large(topics_of([("a", [])] * 1001), "partitions")
    assert not is_large(topics_of([("a", list(range(500))), ("b", list(range(500)))]), "partitions")
