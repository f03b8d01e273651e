"""Large requests are carried out in slices, with the same answers, in order, and within bounds."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.broker.handlers import describe_configs, fetch, offset_fetch
from millstream.broker.handlers import produce as produce_handler
from millstream.broker.net import dispatch
from millstream.broker.requests import chunks
from millstream.core.errors import ApiError, ErrorCode
from millstream.ports import turns
from millstream.sim.world.disk import SimDisk
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from millstream.wire.messages.describe_groups import DescribeGroupsRequest
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from millstream.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from millstream.wire.records.batch import Record, build_batch
from support.in_process import InProcessBroker
from support.processes import wait_until
from support.raw import Closed, RawClient, api_of, create_topic, framed, produce, request_frame

PARTITIONS = 20
SETTINGS: dict[str, object] = {
    "log.dirs": "/data",
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
}
BATCH = build_batch([Record(0, -1, None, b"v", ())])
BROKER = 4
GROUP = 32


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def broker(disk: SimDisk) -> Iterator[InProcessBroker]:
    with InProcessBroker(SETTINGS, files=disk) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "wide", PARTITIONS)
        for key_type in (0, 1):
            client.call(FindCoordinatorRequest(key_type=key_type, coordinator_keys=["g"]), 4)
        yield broker


@pytest.fixture
def client(broker: InProcessBroker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap) as client:
        yield client


@pytest.fixture
def sliced(monkeypatch: pytest.MonkeyPatch) -> None:
    slice_everything(monkeypatch)


def slice_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request is a large one, and one step is all that fits into a turn."""
    monkeypatch.setattr(dispatch, "LARGE_BYTES", 0)
    monkeypatch.setattr(fetch, "_MANY", 0)
    monkeypatch.setattr(chunks, "MAX_PER_CHUNK", 3)
    monkeypatch.setattr(turns, "_QUANTUM_S", 0.0)
    monkeypatch.setattr(turns, "_SLICE_S", 0.0)


def fetch_all(
    offsets: dict[int, int], *, session: tuple[int, int] = (0, -1), **more: Any
) -> FetchRequest:
    rows = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1000)
        for index, offset in offsets.items()
    ]
    values = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20} | more
    topics = [FetchTopic(topic="wide", partitions=rows)] if rows else []
    return FetchRequest(session_id=session[0], session_epoch=session[1], topics=topics, **values)


def sizes(answer: Any) -> dict[int, int]:
    assert answer.error_code == 0
    return {
        row.partition_index: len(row.records or b"")
        for topic in answer.responses
        for row in topic.partitions
        if not row.error_code
    }


# ---- the way through the broker ----


@pytest.mark.usefixtures("sliced")
def test_answers_behind_a_large_request_come_in_order(client: RawClient) -> None:
    sent = [
        client.send(DescribeGroupsRequest(groups=[f"g{n}" for n in range(100)]), 5),
        client.send(MetadataRequest(topics=None), 9),
        client.send(DescribeConfigsRequest(resources=[resource(BROKER, "0")] * 3), 4),
        client.send(MetadataRequest(topics=None), 9),
    ]
    answers = [client.receive() for _ in sent]
    assert [correlation_id for correlation_id, _ in answers] == sent
    assert len(answers[0][1].groups) == 100 and len(answers[2][1].results) == 3
    assert answers[1][1] == answers[3][1]


def test_large_request_that_cannot_be_read_closes_its_connection(client: RawClient) -> None:
    request = DescribeGroupsRequest(groups=["g" * 20] * 2000)
    whole = request_frame(api_of(request), 5, request)[4:]
    client.write(framed(whole[:-10]))  # the last group is not whole
    with pytest.raises(Closed):
        client.read_frame()


def test_client_that_goes_leaves_nothing_of_its_large_request(
    broker: InProcessBroker, sliced: None
) -> None:
    client = RawClient(broker.bootstrap)
    client.send(DescribeGroupsRequest(groups=[f"g{n}" for n in range(50_000)]), 5)
    client.close()
    with RawClient(broker.bootstrap) as other:
        other.call(MetadataRequest(topics=None), 9)
    memory = broker.broker.parts.request_memory
    wait_until(lambda: broker.run(lambda: memory.used) == 0, "the request to be given up")


# ---- repeated resources, bounded answers ----


def resource(kind: int, name: str) -> DescribeConfigsResource:
    return DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)


def test_repeated_resource_is_described_once_and_answered_as_often(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    described: list[tuple[int, str]] = []
    entries = describe_configs._entries

    def counting(broker: Any, kind: int, name: str) -> Any:
        described.append((kind, name))
        return entries(broker, kind, name)

    monkeypatch.setattr(describe_configs, "_entries", counting)
    asked = [
        resource(BROKER, "0"),
        resource(GROUP, "a"),
        resource(GROUP, "b"),
        resource(BROKER, "0"),
    ]
    results = client.call(DescribeConfigsRequest(resources=asked), 4).results
    assert [(row.resource_type, row.resource_name) for row in results] == [
        (one.resource_type, one.resource_name) for one in asked
    ]
    assert results[0] == results[3] and results[1].configs == results[2].configs
    # Two groups without settings of their own share theirs.
    assert described == [(BROKER, "0"), (GROUP, "a")]


def test_answer_beyond_the_bound_closes_the_connection_and_no_other(
    broker: InProcessBroker,
    client: RawClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "millstream")
    monkeypatch.setattr(dispatch, "MAX_RESPONSE_BYTES", 1_000_000)
    client.send(DescribeConfigsRequest(resources=[resource(BROKER, "0")] * 5000), 4)
    with RawClient(broker.bootstrap) as other:
        other.call(MetadataRequest(topics=None), 9)
    with pytest.raises(Closed):
        client.read_frame()
    assert (
        "the response to DescribeConfigs has more than 1000000 bytes; request less at a time"
        in caplog.text
    )


# ---- coordinators: in chunks ----


@pytest.mark.usefixtures("sliced")
def test_offsets_of_many_partitions_are_committed_and_fetched(client: RawClient) -> None:
    rows = [
        OffsetCommitRequestPartition(partition_index=n, committed_offset=100 + n) for n in range(25)
    ]
    commit = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        topics=[
            OffsetCommitRequestTopic(name="wide", partitions=rows),
            OffsetCommitRequestTopic(name="none", partitions=rows[:4]),
        ],
    )
    wide, none = client.call(commit, 8).topics
    expected = [ErrorCode.NONE] * PARTITIONS + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 5
    assert [(row.partition_index, row.error_code) for row in wide.partitions] == list(
        enumerate(expected)
    )
    assert {row.error_code for row in none.partitions} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    asked = OffsetFetchRequestGroup(
        group_id="g",
        member_id=None,
        member_epoch=-1,
        topics=[OffsetFetchRequestTopics(name="wide", partition_indexes=list(range(25)))],
    )
    whole = OffsetFetchRequestGroup(group_id="g", member_id=None, member_epoch=-1, topics=None)
    answer = client.call(OffsetFetchRequest(groups=[asked, whole, whole]), 9)
    assert [group.group_id for group in answer.groups] == ["g"] * 3
    (topic,) = answer.groups[0].topics
    offsets = {row.partition_index: row.committed_offset for row in topic.partitions}
    assert offsets == {n: 100 + n if n < PARTITIONS else -1 for n in range(25)}
    for group in answer.groups[1:]:
        assert sorted(row.committed_offset for row in group.topics[0].partitions) == list(
            range(100, 120)
        )


@pytest.mark.parametrize(
    ("group", "version"), [("g", 7), ("g", 8), ("unknown", 7), ("refused", 7), ("refused", 8)]
)
def test_offset_fetch_in_slices_answers_the_same(
    broker: InProcessBroker,
    client: RawClient,
    monkeypatch: pytest.MonkeyPatch,
    group: str,
    version: int,
) -> None:
    """Older versions have another form; a refusal names every partition."""
    rows = [
        OffsetCommitRequestPartition(partition_index=n, committed_offset=n)
        for n in range(PARTITIONS)
    ]
    commit = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name="wide", partitions=rows)],
    )
    client.call(commit, 8)
    if group == "refused":

        async def refuse(*what: Any, **more: Any) -> Any:
            raise ApiError(ErrorCode.NOT_COORDINATOR)

        monkeypatch.setattr(offset_fetch, "call_group", refuse)
    indexes = list(range(PARTITIONS))
    if version < 8:
        topics = [
            OffsetFetchRequestTopic(name=name, partition_indexes=indexes)
            for name in ("wide", "none")
        ]
        request = OffsetFetchRequest(group_id=group, topics=topics)
    else:
        asked = [
            OffsetFetchRequestTopics(name=name, partition_indexes=indexes)
            for name in ("wide", "none")
        ]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=asked)])
    expected = client.call(request, version)
    found = expected.topics if version < 8 else expected.groups[0].topics
    offsets = indexes if group == "g" else [-1] * PARTITIONS
    assert [row.committed_offset for row in found[0].partitions] == offsets
    code = ErrorCode.NOT_COORDINATOR if group == "refused" else ErrorCode.NONE
    assert {row.error_code for topic in found for row in topic.partitions} == {code}
    slice_everything(monkeypatch)
    assert client.call(request, version) == expected


@pytest.mark.usefixtures("sliced")
def test_offsets_of_a_transaction_are_committed_in_chunks(client: RawClient) -> None:
    made = client.call(
        InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000), 4
    )
    assert made.error_code == 0
    rows = [
        TxnOffsetCommitRequestPartition(partition_index=n, committed_offset=n)
        for n in range(PARTITIONS)
    ]
    request = TxnOffsetCommitRequest(
        transactional_id="t",
        group_id="g",
        producer_id=made.producer_id,
        producer_epoch=made.producer_epoch,
        topics=[TxnOffsetCommitRequestTopic(name="wide", partitions=rows)],
    )
    (topic,) = client.call(request, 5).topics
    assert [(row.partition_index, row.error_code) for row in topic.partitions] == [
        (n, 0) for n in range(PARTITIONS)
    ]


# ---- produce and fetch ----


def test_produce_that_runs_out_of_time_appends_the_rest_later(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_handler, "_APPEND_S", 0.0)
    rows = [PartitionProduceData(index=n % PARTITIONS, records=BATCH) for n in range(50)]
    request = ProduceRequest(
        acks=1, timeout_ms=10_000, topic_data=[TopicProduceData(name="wide", partition_data=rows)]
    )
    sent = [client.send(request, 9), client.send(request, 9)]
    for correlation_id, first in zip(sent, (0, 50), strict=True):
        got, answer = client.receive()
        assert got == correlation_id
        offsets = [row.base_offset for row in answer.responses[0].partition_responses]
        each = [sum(m % PARTITIONS == n % PARTITIONS for m in range(n)) for n in range(50)]
        total = [sum(m % PARTITIONS == n % PARTITIONS for m in range(50)) for n in range(50)]
        assert offsets == [
            before + (count if first else 0) for before, count in zip(each, total, strict=True)
        ]


@pytest.mark.usefixtures("sliced")
def test_large_fetch_reads_what_is_there(client: RawClient) -> None:
    for index in (3, 7):
        assert produce(client, "wide", index, BATCH).error_code == 0
    answer = client.call(fetch_all(dict.fromkeys(range(PARTITIONS + 1), 0)), 12)
    expected = {n: len(BATCH) if n in (3, 7) else 0 for n in range(PARTITIONS)}
    assert sizes(answer) == expected
    assert answer.responses[0].partitions[-1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.usefixtures("sliced")
def test_large_fetch_waits_until_there_is_something(
    broker: InProcessBroker, client: RawClient
) -> None:
    request = fetch_all(dict.fromkeys(range(PARTITIONS), 0), max_wait_ms=100_000)
    sent = client.send(request, 12)
    with RawClient(broker.bootstrap) as other:
        assert produce(other, "wide", 5, BATCH).error_code == 0
    got, answer = client.receive()
    assert got == sent and sizes(answer)[5] == len(BATCH)
    assert sum(sizes(answer).values()) == len(BATCH)


@pytest.mark.usefixtures("sliced")
def test_large_fetch_ends_its_wait_when_the_time_is_over(
    broker: InProcessBroker, client: RawClient
) -> None:
    answer = client.call(fetch_all(dict.fromkeys(range(PARTITIONS), 0), max_wait_ms=50), 12)
    assert sum(sizes(answer).values()) == 0 and len(sizes(answer)) == PARTITIONS
    partitions = broker.run(
        lambda: [broker.broker.parts.replicas.leader("wide", n) for n in range(PARTITIONS)]
    )
    assert (
        broker.run(lambda: [partition.waiters.watchers for partition in partitions])
        == [None] * PARTITIONS
    )


@pytest.mark.usefixtures("sliced")
def test_large_session_tells_only_what_is_new(client: RawClient) -> None:
    first = client.call(fetch_all(dict.fromkeys(range(PARTITIONS), 0), session=(0, 0)), 12)
    assert first.session_id and len(sizes(first)) == PARTITIONS
    assert produce(client, "wide", 4, BATCH).error_code == 0
    second = client.call(fetch_all({}, session=(first.session_id, 1)), 12)
    assert sizes(second) == {4: len(BATCH)}
    third = client.call(fetch_all({4: 1}, session=(first.session_id, 2)), 12)
    assert sum(sizes(third).values()) == 0


OLD = 3  # the last version of Fetch whose answers are converted


@pytest.mark.parametrize("cold", [False, True])
def test_large_fetch_of_an_old_client_reads_what_is_there(
    disk: SimDisk, client: RawClient, monkeypatch: pytest.MonkeyPatch, cold: bool
) -> None:
    for index in (3, 7):
        assert produce(client, "wide", index, BATCH).error_code == 0
    request = fetch_all(dict.fromkeys(range(PARTITIONS + 1), 0))
    expected = client.call(request, OLD)
    assert [index for index, size in sizes(expected).items() if size] == [3, 7]
    slice_everything(monkeypatch)
    disk.cold = cold
    assert client.call(request, OLD) == expected


@pytest.mark.usefixtures("sliced")
def test_large_fetch_of_an_old_client_waits_and_holds_the_requests_behind_it(
    broker: InProcessBroker, client: RawClient
) -> None:
    waiting = client.send(fetch_all(dict.fromkeys(range(PARTITIONS), 0), max_wait_ms=100_000), OLD)
    behind = client.send(MetadataRequest(topics=[]), 9)
    with RawClient(broker.bootstrap) as other:
        assert produce(other, "wide", 5, BATCH).error_code == 0
    got, answer = client.receive()
    assert got == waiting and [index for index, size in sizes(answer).items() if size] == [5]
    assert client.receive()[0] == behind


def test_requests_behind_a_large_fetch_that_waits_are_handled(
    broker: InProcessBroker, sliced: None
) -> None:
    """The fetch is decided; only its answer has to come first."""
    with RawClient(broker.bootstrap) as client:
        waiting = client.send(
            fetch_all(dict.fromkeys(range(PARTITIONS), 0), max_wait_ms=100_000), 12
        )
        rows = [PartitionProduceData(index=5, records=BATCH)]
        data = [TopicProduceData(name="wide", partition_data=rows)]
        behind = client.send(ProduceRequest(acks=1, timeout_ms=10_000, topic_data=data), 9)
        answers = dict(client.receive() for _ in range(2))
        assert sizes(answers[waiting])[5] == len(BATCH)
        assert answers[behind].responses[0].partition_responses[0].error_code == 0
