"""What producers of each generation hear of the coordinator's answers."""

from __future__ import annotations

import pytest

from millstream.core.errors import ErrorCode as E
from millstream.transactions.verification import (
    Operation,
    offset_commit_error,
    operation_of_produce,
    operation_of_txn_offset_commit,
    produce_error,
)

CLASSIC, VERIFY, JOIN = Operation.VERIFY_CLASSIC, Operation.VERIFY, Operation.JOIN


@pytest.mark.parametrize(
    ("version", "operation"), [(3, CLASSIC), (10, CLASSIC), (11, VERIFY), (12, JOIN), (13, JOIN)]
)
def test_produce_versions(version: int, operation: Operation) -> None:
    assert operation_of_produce(version) is operation


@pytest.mark.parametrize(
    ("version", "operation"), [(0, CLASSIC), (3, CLASSIC), (4, VERIFY), (5, JOIN)]
)
def test_txn_offset_commit_versions(version: int, operation: Operation) -> None:
    assert operation_of_txn_offset_commit(version) is operation


@pytest.mark.parametrize(
    ("code", "classic", "verify", "join"),
    [
        (E.NONE, E.NONE, E.NONE, E.NONE),
        (E.PRODUCER_FENCED, *[E.INVALID_PRODUCER_EPOCH] * 3),
        (
            E.TRANSACTION_ABORTABLE,
            E.INVALID_TXN_STATE,
            E.TRANSACTION_ABORTABLE,
            E.TRANSACTION_ABORTABLE,
        ),
        (
            E.CONCURRENT_TRANSACTIONS,
            E.NOT_ENOUGH_REPLICAS,
            E.NOT_ENOUGH_REPLICAS,
            E.CONCURRENT_TRANSACTIONS,
        ),
        (E.COORDINATOR_LOAD_IN_PROGRESS, *[E.NOT_ENOUGH_REPLICAS] * 3),
        (E.COORDINATOR_NOT_AVAILABLE, *[E.NOT_ENOUGH_REPLICAS] * 3),
        (E.NOT_COORDINATOR, *[E.NOT_ENOUGH_REPLICAS] * 3),
        (E.NETWORK_EXCEPTION, *[E.NOT_ENOUGH_REPLICAS] * 3),
        (E.OPERATION_NOT_ATTEMPTED, *[E.NOT_ENOUGH_REPLICAS] * 3),
        (E.INVALID_PRODUCER_ID_MAPPING, *[E.INVALID_PRODUCER_ID_MAPPING] * 3),
    ],
)
def test_a_produce_answer(code: E, classic: E, verify: E, join: E) -> None:
    assert [produce_error(code, op) for op in (CLASSIC, VERIFY, JOIN)] == [classic, verify, join]


@pytest.mark.parametrize(
    ("code", "classic", "verify", "join"),
    [
        (E.PRODUCER_FENCED, *[E.INVALID_PRODUCER_EPOCH] * 3),
        (
            E.TRANSACTION_ABORTABLE,
            E.INVALID_TXN_STATE,
            E.TRANSACTION_ABORTABLE,
            E.TRANSACTION_ABORTABLE,
        ),
        (E.CONCURRENT_TRANSACTIONS, *[E.CONCURRENT_TRANSACTIONS] * 3),
        (E.NETWORK_EXCEPTION, *[E.COORDINATOR_LOAD_IN_PROGRESS] * 3),
        (E.NOT_COORDINATOR, *[E.NOT_COORDINATOR] * 3),
    ],
)
def test_an_offset_commit_answer(code: E, classic: E, verify: E, join: E) -> None:
    assert [offset_commit_error(code, op) for op in (CLASSIC, VERIFY, JOIN)] == [
        classic,
        verify,
        join,
    ]
