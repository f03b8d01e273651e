"""Shards in a given state and the requests sent to them: what the transaction
tests have in common.
"""

from __future__ import annotations

from typing import Any

from millstream.core.decisions import CoordinatorRecord, Decision, Reply
from millstream.core.types import TopicPartition
from millstream.transactions.effects import SendMarkers
from millstream.transactions.metadata import TransactionMetadata
from millstream.transactions.records import record_of
from millstream.transactions.settings import TransactionSettings
from millstream.transactions.shard import TransactionShard
from millstream.transactions.states import TransactionState
from millstream.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from millstream.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from millstream.wire.messages.end_txn import EndTxnRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest

ID = "payments"
NOW_MS = 1_000_000_000
EARLIER_MS = NOW_MS - 5_000
TIMEOUT_MS = 60_000
PID = 7
EPOCH = 3
COORDINATOR_EPOCH = 12
LAST_EPOCH = 32766
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
OFFSETS = TopicPartition("__consumer_offsets", 17)
SETTINGS = TransactionSettings()
CLASSIC_SETTINGS = TransactionSettings(transaction_version=1)
TWO_PHASE_SETTINGS = TransactionSettings(transaction_two_phase_commit_enable=True)
S = TransactionState


def metadata(state: TransactionState = S.EMPTY, **changes: Any) -> TransactionMetadata:
    """An id as it was a little earlier; an open or ended transaction has partitions a-0 and b-0."""
    opened = state in (S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT)
    fields: dict[str, Any] = {
        "producer_id": PID,
        "producer_epoch": EPOCH,
        "state": state,
        "timeout_ms": TIMEOUT_MS,
        "last_update_ms": EARLIER_MS,
        "start_ms": -1 if state is S.EMPTY else EARLIER_MS,
        "partitions": frozenset({A0, B0}) if opened else frozenset(),
        "previous_producer_id": PID,
    }
    return TransactionMetadata(**(fields | changes))


def shard(
    known: TransactionMetadata | None = None,
    settings: TransactionSettings = SETTINGS,
    *,
    last_epoch: int = -1,
) -> TransactionShard:
    made = TransactionShard(COORDINATOR_EPOCH, settings)
    if known is not None:
        made.apply(record(known))
    if last_epoch != -1:
        made.state.last_epochs[ID] = last_epoch
    return made


def record(value: TransactionMetadata, transactional_id: str = ID) -> CoordinatorRecord:
    return record_of(transactional_id, value, 2)


def init(**fields: Any) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        **({"transactional_id": ID, "transaction_timeout_ms": TIMEOUT_MS} | fields)
    )


def end(committed: bool, **fields: Any) -> EndTxnRequest:
    named = {"transactional_id": ID, "producer_id": PID, "producer_epoch": EPOCH}
    return EndTxnRequest(committed=committed, **(named | fields))


def add_offsets(**fields: Any) -> AddOffsetsToTxnRequest:
    named = {"transactional_id": ID, "producer_id": PID, "producer_epoch": EPOCH, "group_id": "g"}
    return AddOffsetsToTxnRequest(**(named | fields))


def join(*partitions: TopicPartition, **fields: Any) -> AddPartitionsToTxnTransaction:
    named: dict[str, Any] = {"transactional_id": ID, "producer_id": PID, "producer_epoch": EPOCH}
    topics: dict[str, list[int]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(tp.partition)
    listed = [AddPartitionsToTxnTopic(name=name, partitions=rows) for name, rows in topics.items()]
    return AddPartitionsToTxnTransaction(topics=listed, **(named | fields))


def joined(**codes: int) -> AddPartitionsToTxnResult:
    """``joined(a0=0, b0=120)``: a result for a-0 and b-0."""
    topics: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
    for name, code in codes.items():
        row = AddPartitionsToTxnPartitionResult(
            partition_index=int(name[1:]), partition_error_code=code
        )
        topics.setdefault(name[0], []).append(row)
    results = [
        AddPartitionsToTxnTopicResult(name=n, results_by_partition=rows)
        for n, rows in topics.items()
    ]
    return AddPartitionsToTxnResult(transactional_id=ID, topic_results=results)


def markers(commit: bool, **fields: Any) -> SendMarkers:
    named: dict[str, Any] = {
        "transactional_id": ID,
        "producer_id": PID,
        "producer_epoch": EPOCH,
        "coordinator_epoch": COORDINATOR_EPOCH,
        "partitions": (A0, B0),
        "transaction_version": 0,
    }
    return SendMarkers(commit=commit, **(named | fields))


def answered(response: Any, waiter: Any = "waiter") -> Decision:
    """Nothing to persist, just an answer."""
    return Decision(effects=(Reply(waiter, response),))


def error_of(decision: Decision) -> int:
    """The error code of a decision's only reply; nothing else may happen."""
    assert decision.records == ()
    (reply,) = decision.effects
    return int(reply.response.error_code)
