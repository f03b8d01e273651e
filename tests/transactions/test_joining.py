"""AddPartitionsToTxn, its verification, AddOffsetsToTxn."""

from __future__ import annotations

import pytest

from millstream.core.decisions import Arm, Decision, Reply
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition
from millstream.transactions import answers
from millstream.transactions.metadata import NO_TIMEOUT_MS
from millstream.transactions.states import TransactionState
from millstream.transactions.timers import deadline_key
from millstream.wire.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from millstream.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from support.transactions.samples import (
    A0,
    A1,
    B0,
    EARLIER_MS,
    EPOCH,
    ID,
    NOW_MS,
    OFFSETS,
    PID,
    S,
    add_offsets,
    answered,
    join,
    joined,
    metadata,
    record,
    shard,
)

# The grid of the deadlines is ten seconds: behind NOW_MS + 60 s.
DEADLINE = Arm(deadline_key(ID), 1_000_070_000)


@pytest.mark.parametrize(("version", "client_version"), [(0, 0), (3, 0), (4, 2), (5, 2)])
@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_the_first_partitions_begin_the_transaction(
    state: TransactionState, version: int, client_version: int
) -> None:
    decision = shard(metadata(state)).decide_add_partitions(
        join(A0, A1), version, "waiter", now_ms=NOW_MS
    )
    ongoing = metadata(
        S.ONGOING,
        partitions=frozenset({A0, A1}),
        start_ms=NOW_MS,
        last_update_ms=NOW_MS,
        client_transaction_version=client_version,
    )
    assert decision == Decision((record(ongoing),), (DEADLINE, Reply("waiter", joined(a0=0, a1=0))))


def test_further_partitions_join_without_moving_the_deadline() -> None:
    decision = shard(metadata(S.ONGOING)).decide_add_partitions(
        join(A0, A1), 3, "waiter", now_ms=NOW_MS
    )
    grown = metadata(S.ONGOING, partitions=frozenset({A0, A1, B0}), last_update_ms=NOW_MS)
    assert grown.start_ms == EARLIER_MS
    assert decision == Decision((record(grown),), (Reply("waiter", joined(a0=0, a1=0)),))


def test_partitions_that_are_in_already_cost_no_record() -> None:
    decision = shard(metadata(S.ONGOING)).decide_add_partitions(
        join(B0), 5, "waiter", now_ms=NOW_MS
    )
    assert decision == answered(joined(b0=0))


def test_a_transaction_of_an_outer_coordinator_has_no_deadline() -> None:
    world = shard(metadata(timeout_ms=NO_TIMEOUT_MS))
    decision = world.decide_add_partitions(join(A0), 5, "waiter", now_ms=NOW_MS)
    assert decision.effects == (Reply("waiter", joined(a0=0)),)


@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
@pytest.mark.parametrize("producer", [(PID, EPOCH), (PID, EPOCH + 1), (99, 0)])
def test_while_markers_are_written_nothing_joins(
    state: TransactionState, producer: tuple[int, int]
) -> None:
    """Whoever asks: after a roll-over it may be the rightful producer under its next id."""
    asked = join(A0, producer_id=producer[0], producer_epoch=producer[1])
    decision = shard(metadata(state)).decide_add_partitions(asked, 5, "waiter", now_ms=NOW_MS)
    assert decision == answered(joined(a0=ErrorCode.CONCURRENT_TRANSACTIONS))


def test_verification_tells_partition_by_partition() -> None:
    asked = join(A0, A1, verify_only=True)
    decision = shard(metadata(S.ONGOING)).decide_add_partitions(asked, 4, "waiter", now_ms=NOW_MS)
    assert decision == answered(joined(a0=0, a1=ErrorCode.TRANSACTION_ABORTABLE))


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_verification_finds_no_partition_where_nothing_is_open(state: TransactionState) -> None:
    asked = join(A0, verify_only=True)
    decision = shard(metadata(state)).decide_add_partitions(asked, 4, "waiter", now_ms=NOW_MS)
    assert decision == answered(joined(a0=ErrorCode.TRANSACTION_ABORTABLE))


def test_the_offsets_of_a_group_join_as_their_partition() -> None:
    decision = shard(metadata()).decide_add_offsets(
        add_offsets(), 3, "waiter", offsets_partition=OFFSETS, now_ms=NOW_MS
    )
    ongoing = metadata(
        S.ONGOING, partitions=frozenset({OFFSETS}), start_ms=NOW_MS, last_update_ms=NOW_MS
    )
    reply = Reply("waiter", AddOffsetsToTxnResponse())
    assert decision == Decision((record(ongoing),), (DEADLINE, reply))


def test_offsets_that_are_in_already_cost_no_record() -> None:
    world = shard(metadata(S.ONGOING, partitions=frozenset({OFFSETS})))
    decision = world.decide_add_offsets(
        add_offsets(), 3, "waiter", offsets_partition=OFFSETS, now_ms=NOW_MS
    )
    assert decision == answered(AddOffsetsToTxnResponse())


# ---- the request around the transactions ----


def test_versions_up_to_3_carry_one_transaction() -> None:
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=ID,
        v3_and_below_producer_id=PID,
        v3_and_below_producer_epoch=EPOCH,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name="a", partitions=[0, 1])],
    )
    assert answers.transactions_of(request, 3) == [join(A0, A1)]
    result = joined(a0=0, a1=0)
    assert answers.add_partitions([result], 3) == AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=result.topic_results
    )


def test_versions_from_4_carry_many() -> None:
    two = [join(A0), join(B0, transactional_id="other", verify_only=True)]
    assert answers.transactions_of(AddPartitionsToTxnRequest(transactions=two), 4) == two
    results = [joined(a0=0), joined(b0=0)]
    assert answers.add_partitions(results, 4) == AddPartitionsToTxnResponse(
        results_by_transaction=results
    )


def test_one_bad_partition_refuses_the_others() -> None:
    codes = {TopicPartition("b", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert answers.partition_results(join(A0, B0), codes) == joined(a0=55, b0=3)
