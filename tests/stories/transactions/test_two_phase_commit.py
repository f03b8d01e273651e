"""InitProducerId v6 (KIP-939) over the wire: offered with the setting alone, and then transactions
outlive clients and brokers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.core.errors import ErrorCode
from millstream.sim.world.disk import SimDisk
from millstream.wire.apis import BY_NAME
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.describe_transactions import DescribeTransactionsRequest
from millstream.wire.messages.end_txn import EndTxnRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.wire.records.batch import Record, build_batch, parse_header, read_marker
from support.in_process import InProcessBroker
from support.raw import Closed, RawClient, create_topic, fetch

ENABLED = "transaction.two.phase.commit.enable"
SETTINGS: dict[str, object] = {
    "log.dirs": "/data",
    "transaction.state.log.num.partitions": 2,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 20,
}
WAIT = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)
Producer = tuple[int, int]


def started(disk: SimDisk, enabled: bool = True) -> InProcessBroker:
    return InProcessBroker(SETTINGS | {ENABLED: enabled}, files=disk)


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with started(SimDisk()) as running:
        yield running


@pytest.fixture
def client(broker: InProcessBroker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap) as connected:
        create_topic(connected, "orders")
        yield connected


def offered(client: RawClient) -> int:
    rows = client.call(
        ApiVersionsRequest(client_software_name="t", client_software_version="1"), 4
    ).api_keys
    (newest,) = (row.max_version for row in rows if row.api_key == BY_NAME["InitProducerId"].key)
    return int(newest)


def patiently(client: RawClient, request: Any, version: int) -> Any:
    """The answer, when the coordinator has finished what it was at."""
    while True:
        answer = client.call(request, version)
        if answer.error_code not in WAIT:
            return answer


def init(client: RawClient, name: str | None, version: int = 6, **flags: Any) -> Any:
    if name:
        found = client.call(FindCoordinatorRequest(key_type=1, coordinator_keys=[name]), 4)
        assert found.coordinators[0].error_code == 0, found
    fields = {"transaction_timeout_ms": 60_000} | flags
    return patiently(client, InitProducerIdRequest(transactional_id=name, **fields), version)


def prepare(client: RawClient, name: str, **flags: Any) -> Producer:
    """A producer that has written one record in a transaction, and waits for its
    outer coordinator.
    """
    begun = init(client, name, enable_two_phase_commit=True, **flags)
    assert begun.error_code == 0, begun
    producer = begun.producer_id, begun.producer_epoch
    assert write(client, name, producer) == 0
    return producer


def write(client: RawClient, name: str, producer: Producer) -> int:
    batch = build_batch(
        [Record(0, time.time_ns() // 1_000_000, None, name.encode(), ())],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=0,
        transactional=True,
    )
    data = TopicProduceData(
        name="orders", partition_data=[PartitionProduceData(index=0, records=batch)]
    )
    asked = ProduceRequest(transactional_id=name, acks=-1, timeout_ms=10_000, topic_data=[data])
    return int(client.call(asked, 12).responses[0].partition_responses[0].error_code)


def end(client: RawClient, name: str, producer: Producer, *, commit: bool) -> Any:
    asked = EndTxnRequest(
        transactional_id=name, producer_id=producer[0], producer_epoch=producer[1], committed=commit
    )
    return patiently(client, asked, 5)


def state(client: RawClient, name: str) -> str:
    while True:  # after a restart the coordinator reads its log first
        (row,) = client.call(
            DescribeTransactionsRequest(transactional_ids=[name]), 0
        ).transaction_states
        if row.error_code not in WAIT:
            return str(row.transaction_state)


def outcomes(client: RawClient) -> list[bool]:
    """Which markers the partition holds, in order."""
    records = bytes(fetch(client, "orders").records or b"")
    found, position = [], 0
    while position < len(records):
        header = parse_header(records, position)
        if header.control:
            marker = read_marker(records[position : position + header.size])
            assert marker is not None
            found.append(marker.commit)
        position += header.size
    return found


def settled(client: RawClient, name: str, wanted: str) -> None:
    while state(client, name) != wanted:
        pass


# ---- the setting ----


@pytest.mark.parametrize(("enabled", "newest"), [(True, 6), (False, 5)])
def test_the_setting_decides_whether_version_6_is_offered(enabled: bool, newest: int) -> None:
    with started(SimDisk(), enabled) as broker, RawClient(broker.bootstrap) as client:
        assert offered(client) == newest


@pytest.mark.parametrize(
    "flags", [{}, {"enable_two_phase_commit": True}, {"keep_prepared_txn": True}]
)
def test_without_the_setting_version_6_is_not_served(flags: dict[str, bool]) -> None:
    """As every version that is not served: the connection is closed, and no flag was overlooked."""
    with started(SimDisk(), enabled=False) as broker, RawClient(broker.bootstrap) as client:
        client.send(
            InitProducerIdRequest(
                transactional_id="payments", transaction_timeout_ms=1000, **flags
            ),
            6,
        )
        with pytest.raises(Closed):
            client.receive()


def test_without_the_setting_a_kept_transaction_can_still_be_ended() -> None:
    disk = SimDisk()
    with started(disk) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "orders")
        prepare(client, "payments")
        kept = init(client, "payments", enable_two_phase_commit=True, keep_prepared_txn=True)
    with started(disk, enabled=False) as broker, RawClient(broker.bootstrap) as client:
        ended = end(client, "payments", (kept.producer_id, kept.producer_epoch), commit=True)
        assert ended.error_code == 0
        settled(client, "payments", "CompleteCommit")


# ---- what the flags mean ----


@pytest.mark.parametrize("flag", ["enable_two_phase_commit", "keep_prepared_txn"])
def test_flags_without_a_transactional_id_are_refused(client: RawClient, flag: str) -> None:
    assert init(client, None, **{flag: True}).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("timeout_ms", [-1, 0, 2**31 - 1])
def test_only_two_phase_producers_may_name_any_timeout(client: RawClient, timeout_ms: int) -> None:
    refused = init(client, "payments", transaction_timeout_ms=timeout_ms)
    assert refused.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert (refused.ongoing_txn_producer_id, refused.ongoing_txn_producer_epoch) == (-1, -1)
    begun = init(
        client, "payments", enable_two_phase_commit=True, transaction_timeout_ms=timeout_ms
    )
    assert begun.error_code == 0


def test_nothing_is_ongoing_for_a_producer_that_begins(client: RawClient) -> None:
    begun = init(client, "payments", enable_two_phase_commit=True, keep_prepared_txn=True)
    assert begun.error_code == 0
    assert (begun.ongoing_txn_producer_id, begun.ongoing_txn_producer_epoch) == (-1, -1)


def test_a_two_phase_transaction_is_never_timed_out(client: RawClient) -> None:
    prepare(client, "patient", transaction_timeout_ms=1)
    hasty = init(client, "hasty", transaction_timeout_ms=1)
    assert write(client, "hasty", (hasty.producer_id, hasty.producer_epoch)) == 0
    settled(client, "hasty", "CompleteAbort")
    assert state(client, "patient") == "Ongoing"


def test_without_the_flag_a_prepared_transaction_is_aborted_as_ever(client: RawClient) -> None:
    before = prepare(client, "payments")
    begun = init(client, "payments", enable_two_phase_commit=True)
    assert (begun.error_code, begun.producer_id) == (0, before[0])
    assert begun.producer_epoch > before[1]
    assert begun.ongoing_txn_producer_id == -1
    assert outcomes(client) == [False]


# ---- outliving clients and brokers ----


@pytest.mark.parametrize("commit", [True, False])
def test_a_prepared_transaction_outlives_its_client_and_the_broker(commit: bool) -> None:
    disk = SimDisk()
    with started(disk) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "orders")
        prepared = prepare(client, "payments")
    with started(disk) as broker, RawClient(broker.bootstrap) as client:
        kept = init(client, "payments", enable_two_phase_commit=True, keep_prepared_txn=True)
        assert (kept.ongoing_txn_producer_id, kept.ongoing_txn_producer_epoch) == prepared
        assert (
            end(client, "payments", prepared, commit=commit).error_code == ErrorCode.PRODUCER_FENCED
        )
    with started(disk) as broker, RawClient(broker.bootstrap) as client:
        assert state(client, "payments") == "Ongoing"
        owner = kept.producer_id, kept.producer_epoch
        assert write(client, "payments", owner) == ErrorCode.INVALID_TXN_STATE
        ended = end(client, "payments", owner, commit=commit)
        assert ended.error_code == 0
        following = ended.producer_id, ended.producer_epoch
        settled(client, "payments", "CompleteCommit" if commit else "CompleteAbort")
        assert outcomes(client) == [commit]
        assert (
            end(client, "payments", owner, commit=commit).error_code == 0
        )  # the answer may have been lost
        assert write(client, "payments", following) == 0


def test_one_take_over_after_another_leaves_the_transaction_as_it_is(client: RawClient) -> None:
    prepared = prepare(client, "payments")
    epochs = []
    for _ in range(3):
        kept = init(client, "payments", enable_two_phase_commit=True, keep_prepared_txn=True)
        assert (kept.ongoing_txn_producer_id, kept.ongoing_txn_producer_epoch) == prepared
        epochs.append(kept.producer_epoch)
    assert epochs == [prepared[1] + 1, prepared[1] + 2, prepared[1] + 3]
    for fenced in epochs[:2]:
        refused = end(client, "payments", (prepared[0], fenced), commit=True)
        assert refused.error_code == ErrorCode.PRODUCER_FENCED
    assert outcomes(client) == []
