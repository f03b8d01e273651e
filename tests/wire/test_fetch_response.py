"""The hand-written fetch response against the generated codec, for every version."""

from __future__ import annotations

import pytest

from millstream.wire import fetch_response
from millstream.wire.fetch_response import PartitionData
from millstream.wire.frames import begin_response, finish_response
from millstream.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
)
from millstream.wire.messages.fetch import NodeEndpoint as DeclaredNode
from millstream.wire.messages.fetch import PartitionData as DeclaredPartition
from millstream.wire.node_endpoints import NodeEndpoint

ROWS: list[PartitionData[bytes]] = [
    PartitionData(0, 0, 10, 9, 1, b"abc" * 100, 300),
    PartitionData(1, 0, 10, 9, 1, None, 0, aborted=[(7, 3), (8, 4)], preferred_read_replica=2),
    PartitionData(2, 1, -1, -1, -1, None, 0, aborted=[]),
    PartitionData(3, 6, -1, -1, -1, None, 0, diverging=(4, 77), current_leader=(1, 5)),
    PartitionData(4, 0, 5, 5, 0, b"z", 1),
]


def declared(row: PartitionData[bytes]) -> DeclaredPartition:
    made = DeclaredPartition(
        partition_index=row.partition,
        error_code=row.error_code,
        high_watermark=row.high_watermark,
        last_stable_offset=row.last_stable_offset,
        log_start_offset=row.log_start_offset,
        preferred_read_replica=row.preferred_read_replica,
        records=row.records or b"",
        aborted_transactions=None
        if row.aborted is None
        else [AbortedTransaction(producer_id=p, first_offset=o) for p, o in row.aborted],
    )
    if row.diverging is not None:
        made.diverging_epoch = EpochEndOffset(epoch=row.diverging[0], end_offset=row.diverging[1])
    if row.current_leader is not None:
        made.current_leader = LeaderIdAndEpoch(
            leader_id=row.current_leader[0], leader_epoch=row.current_leader[1]
        )
    return made


@pytest.mark.parametrize("version", range(19))
@pytest.mark.parametrize(
    "nodes", [(), (NodeEndpoint(1, "one", 9092), NodeEndpoint(2, "two", 9093, "r"))]
)
def test_bytes_equal_those_of_the_generated_codec(
    version: int, nodes: tuple[NodeEndpoint, ...]
) -> None:
    name: str | bytes = bytes(range(16)) if version >= fetch_response.BY_ID else "orders"
    topics = [(name, ROWS), (name, ROWS[:1])]
    parts = fetch_response.encode(version, 99, topics, session_id=12, error_code=0, nodes=nodes)
    reference = begin_response(fetch_response.FETCH_KEY, version, 99)
    FetchResponse(
        session_id=12,
        responses=[
            FetchableTopicResponse(
                topic=name if isinstance(name, str) else "",
                topic_id=name if isinstance(name, bytes) else bytes(16),
                partitions=[declared(row) for row in rows],
            )
            for _, rows in topics
        ],
        node_endpoints=[DeclaredNode(**node._asdict()) for node in nodes],
    ).encode(version, reference)
    assert b"".join(parts) == bytes(finish_response(reference))


@pytest.mark.parametrize("version", [7, 12, 18])
def test_an_answer_that_is_only_an_error(version: int) -> None:
    parts = fetch_response.encode(version, 5, [], error_code=70)
    reference = begin_response(fetch_response.FETCH_KEY, version, 5)
    FetchResponse(error_code=70).encode(version, reference)
    assert b"".join(parts) == bytes(finish_response(reference))
