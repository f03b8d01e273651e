"""The hand-written produce codec against the generated one, for every version,
good bytes and bad.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from millstream.wire import produce_codec
from millstream.wire.compiler import MAX_TAGS, write_uvarint
from millstream.wire.frames import begin_response, finish_response
from millstream.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from millstream.wire.messages.produce import NodeEndpoint as DeclaredNode
from millstream.wire.node_endpoints import NodeEndpoint
from millstream.wire.produce_codec import PartitionResult
from millstream.wire.schema import DecodeError

VERSIONS = range(14)


def request(version: int) -> ProduceRequest:
    def topic(name: str, data: list[PartitionProduceData]) -> TopicProduceData:
        return TopicProduceData(
            name=name, topic_id=name.encode().ljust(16, b"\x01")[:16], partition_data=data
        )

    return ProduceRequest(
        transactional_id="tx" if version >= 3 else None,
        acks=-1,
        timeout_ms=1234,
        topic_data=[
            topic(
                "orders", [PartitionProduceData(index=i, records=b"r" * (i * 70)) for i in range(4)]
            ),
            topic("x" * 200, [PartitionProduceData(index=7, records=None)]),
            topic("none", []),
        ],
    )


def as_tuples(message: ProduceRequest, version: int) -> produce_codec.ProduceRequest:
    return produce_codec.ProduceRequest(
        message.transactional_id,
        message.acks,
        message.timeout_ms,
        [
            (
                topic.topic_id if version >= 13 else topic.name,
                [(data.index, data.records) for data in topic.partition_data],  # type: ignore[misc]
            )
            for topic in message.topic_data
        ],
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_are_read_as_the_generated_codec_reads_them(version: int) -> None:
    data = b"head" + bytes(request(version).encode(version))
    assert produce_codec.decode(memoryview(data), 4, version) == as_tuples(
        request(version), version
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_truncated_requests_are_refused(version: int) -> None:
    data = bytes(request(version).encode(version))
    for cut in range(len(data)):
        with pytest.raises(DecodeError):
            produce_codec.decode(memoryview(data[:cut]), 0, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_damaged_requests_are_refused_or_read_like_the_generated_codec(version: int) -> None:
    rng = random.Random(version)
    original = bytes(request(version).encode(version))
    for _ in range(400):
        data = bytearray(original)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            expected = as_tuples(ProduceRequest.decode(memoryview(data), version)[0], version)
        except DecodeError:
            with pytest.raises(DecodeError):
                produce_codec.decode(memoryview(data), 0, version)
        else:
            assert produce_codec.decode(memoryview(data), 0, version) == expected


ANSWERS = [
    PartitionResult(0, 0, 17, -1, 3),
    PartitionResult(1, 2, -1, -1, -1, (), "corrupt"),
    PartitionResult(2, 87, -1, 55, -1, ((0, "null key"), (300, "é" * 90)), None),
    PartitionResult(3, 6, message="led elsewhere", current_leader=(2, 9)),
    PartitionResult(4, 6, current_leader=(2, 10)),
]
NODES = [NodeEndpoint(2, "two.example", 9092), NodeEndpoint(3, "h" * 200, 70_000, "rack")]


def declared(answer: PartitionResult) -> PartitionProduceResponse:
    leader = answer.current_leader or (-1, -1)
    return PartitionProduceResponse(
        index=answer.partition,
        error_code=answer.error_code,
        base_offset=answer.base_offset,
        log_append_time_ms=answer.append_time_ms,
        log_start_offset=answer.log_start_offset,
        record_errors=[
            BatchIndexAndErrorMessage(batch_index=i, batch_index_error_message=m)
            for i, m in answer.record_errors
        ],
        error_message=answer.message,
        current_leader=LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1]),
    )


def reference(
    version: int,
    topics: list[tuple[str | bytes, list[PartitionResult]]],
    nodes: Sequence[NodeEndpoint] = (),
) -> bytes:
    out = begin_response(0, version, 42)
    ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=key if isinstance(key, str) else "",
                topic_id=key if isinstance(key, bytes) else bytes(16),
                partition_responses=[declared(answer) for answer in answers],
            )
            for key, answers in topics
        ],
        node_endpoints=[DeclaredNode(**node._asdict()) for node in nodes],
    ).encode(version, out)
    return bytes(finish_response(out))


def test_tagged_fields_count_like_partitions() -> None:
    """Those of all partitions together take as long to skip as they are many."""
    one = b"\0\0\0\0" + b"\x00" + bytes((MAX_TAGS,)) + bytes(2 * MAX_TAGS)
    assert MAX_TAGS < 128
    for count, ok in ((100, True), (200, False)):
        size = bytearray()
        write_uvarint(size, count + 1)
        data = (
            b"\0"
            + b"\xff\xff"
            + bytes(4)
            + b"\x02"
            + b"\x02t"
            + bytes(size)
            + one * count
            + b"\0\0"
        )
        if ok:
            ((_, partitions),) = produce_codec.decode(memoryview(data), 0, 9).topics
            assert len(partitions) == count
        else:
            with pytest.raises(DecodeError, match="tagged fields"):
                produce_codec.decode(memoryview(data), 0, 9)


@pytest.mark.parametrize("version", VERSIONS)
def test_responses_have_the_bytes_of_the_generated_codec(version: int) -> None:
    key: str | bytes = bytes(range(16)) if version >= 13 else "orders"
    topics = [(key, ANSWERS), (key, [])]
    assert bytes(produce_codec.encode(version, 42, topics)) == reference(version, topics)
    assert bytes(produce_codec.encode(version, 42, topics, NODES)) == reference(
        version, topics, NODES
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("name", ["t", "t" * 126, "t" * 127, "t" * 249])
def test_an_answer_for_one_partition_has_a_shortcut_with_the_same_bytes(
    version: int, answer: PartitionResult, name: str
) -> None:
    key: str | bytes = name.encode()[:16].ljust(16) if version >= 13 else name
    topics = [(key, [answer])]
    assert bytes(produce_codec.encode(version, 42, topics)) == reference(version, topics)
