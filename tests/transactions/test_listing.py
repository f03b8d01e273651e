"""DescribeTransactions and ListTransactions."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.core.errors import ErrorCode
from millstream.transactions.listing import merged
from millstream.transactions.shard import TransactionShard
from millstream.wire.messages import describe_transactions, list_transactions
from millstream.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
)
from millstream.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from support.transactions.samples import (
    A0,
    A1,
    B0,
    EARLIER_MS,
    EPOCH,
    ID,
    NOW_MS,
    PID,
    TIMEOUT_MS,
    S,
    answered,
    metadata,
    record,
    shard,
)


def test_describe_tells_state_producer_and_partitions() -> None:
    world = shard(metadata(S.ONGOING, partitions=frozenset({B0, A1, A0})))
    request = DescribeTransactionsRequest(transactional_ids=[ID, "unknown", ""])
    ongoing = describe_transactions.TransactionState(
        transactional_id=ID,
        transaction_state="Ongoing",
        transaction_timeout_ms=TIMEOUT_MS,
        transaction_start_time_ms=EARLIER_MS,
        producer_id=PID,
        producer_epoch=EPOCH,
        topics=[TopicData(topic="a", partitions=[0, 1]), TopicData(topic="b", partitions=[0])],
    )
    unknown = describe_transactions.TransactionState(
        error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id="unknown"
    )
    nameless = describe_transactions.TransactionState(error_code=ErrorCode.INVALID_REQUEST)
    response = DescribeTransactionsResponse(transaction_states=[ongoing, unknown, nameless])
    assert world.decide_describe_transactions(request, "waiter", now_ms=NOW_MS) == answered(
        response
    )


@pytest.fixture
def three() -> TransactionShard:
    world = shard()
    world.apply(record(metadata(S.EMPTY, producer_id=1), "orders-1"))
    world.apply(record(metadata(S.ONGOING, producer_id=2), "orders-2"))
    world.apply(record(metadata(S.COMPLETE_ABORT, producer_id=3), "shipping"))
    return world


ALL = ["orders-1", "orders-2", "shipping"]


@pytest.mark.parametrize(
    ("filters", "names", "unknown"),
    [
        ({}, ALL, []),
        ({"state_filters": ["Ongoing", "Empty"]}, ["orders-1", "orders-2"], []),
        ({"state_filters": ["Ongoing", "Sleeping"]}, ["orders-2"], ["Sleeping"]),
        ({"state_filters": ["Sleeping"]}, [], ["Sleeping"]),
        ({"producer_id_filters": [3, 4]}, ["shipping"], []),
        ({"state_filters": ["Ongoing"], "producer_id_filters": [3]}, [], []),
        ({"duration_filter": 4_999}, ALL, []),
        ({"duration_filter": 5_000}, ["orders-1"], []),
        ({"duration_filter": 0}, ALL, []),
        ({"transactional_id_pattern": "orders-.*"}, ["orders-1", "orders-2"], []),
        ({"transactional_id_pattern": "orders"}, [], []),
        ({"transactional_id_pattern": ""}, ALL, []),
    ],
)
def test_list_keeps_what_passes_every_filter(
    three: TransactionShard, filters: dict[str, Any], names: list[str], unknown: list[str]
) -> None:
    decision = three.decide_list_transactions(
        ListTransactionsRequest(**filters), "waiter", now_ms=NOW_MS
    )
    (reply,) = decision.effects
    assert [row.transactional_id for row in reply.response.transaction_states] == names
    assert reply.response.unknown_state_filters == unknown
    assert reply.response.error_code == 0


def test_a_row_names_id_producer_and_state() -> None:
    decision = shard(metadata(S.PREPARE_COMMIT)).decide_list_transactions(
        ListTransactionsRequest(), "waiter", now_ms=NOW_MS
    )
    row = list_transactions.TransactionState(
        transactional_id=ID, producer_id=PID, transaction_state="PrepareCommit"
    )
    assert decision == answered(ListTransactionsResponse(transaction_states=[row]))


@pytest.mark.parametrize("pattern", ["(", "[a", "*", "(?=a)", r"(a)\1", "(" * 200 + ")" * 200])
def test_a_pattern_that_is_none_is_refused(three: TransactionShard, pattern: str) -> None:
    request = ListTransactionsRequest(transactional_id_pattern=pattern)
    decision = three.decide_list_transactions(request, "waiter", now_ms=NOW_MS)
    assert decision == answered(
        ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    )


def test_the_parts_of_many_shards_make_one_answer(three: TransactionShard) -> None:
    request = ListTransactionsRequest(state_filters=["Ongoing", "Empty", "Odd"])
    parts = [
        world.decide_list_transactions(request, "waiter", now_ms=NOW_MS).effects[0].response
        for world in (three, shard(metadata(S.ONGOING)), shard())
    ]
    whole = merged(parts)
    assert [row.transactional_id for row in whole.transaction_states] == [
        "orders-1",
        "orders-2",
        ID,
    ]
    assert whole.unknown_state_filters == ["Odd"]
    assert merged([]) == ListTransactionsResponse()
    bad = ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    assert merged([*parts, bad]) == bad


def test_listing_by_ids_leaves_out_the_others_and_those_that_are_gone(
    three: TransactionShard,
) -> None:
    assert sorted(three.ids()) == sorted(ALL)
    decision = three.decide_list_transactions(
        ListTransactionsRequest(), "waiter", now_ms=NOW_MS, transactional_ids=["orders-2", "gone"]
    )
    (reply,) = decision.effects
    assert [row.transactional_id for row in reply.response.transaction_states] == ["orders-2"]
