"""Answers of the feed with many nodes come compressed, and are read as if they were not."""

from __future__ import annotations

import pytest

from millstream.wire.messages.controller_feed import (
    PACKED_FROM_NODES,
    ControllerFeedResponse,
    FeedNode,
    nodes_of,
    pack,
)
from millstream.wire.schema import DecodeError


def answer(count: int) -> ControllerFeedResponse:
    nodes = [
        FeedNode(path=f"/brokers/topics/t/{n}", data=b'{"leader":1}', version=n)
        for n in range(count)
    ]
    return ControllerFeedResponse(position=7, nodes=nodes)


def sent(message: ControllerFeedResponse) -> ControllerFeedResponse:
    return ControllerFeedResponse.decode(memoryview(bytes(message.encode(0))), 0)[0]


@pytest.mark.parametrize("count", [0, 1, PACKED_FROM_NODES - 1, PACKED_FROM_NODES, 2000])
def test_nodes_arrive_as_they_were(count: int) -> None:
    packed = pack(answer(count))
    assert (packed.packed_nodes is not None) == (count >= PACKED_FROM_NODES)
    assert list(nodes_of(sent(packed))) == answer(count).nodes
    assert sent(packed).position == 7


def test_many_nodes_take_a_fraction_of_their_bytes() -> None:
    assert len(pack(answer(2000)).encode(0)) * 5 < len(answer(2000).encode(0))


def test_damaged_nodes_are_refused() -> None:
    packed = pack(answer(100))
    assert packed.packed_nodes is not None
    for damaged in (packed.packed_nodes[:-9], b"nonsense", b""):
        with pytest.raises(DecodeError):
            nodes_of(ControllerFeedResponse(packed_nodes=damaged))
