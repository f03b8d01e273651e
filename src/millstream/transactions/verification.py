"""What a producer hears when its transaction could not be verified or joined on the way of its records.

Produce and TxnOffsetCommit ask the coordinator before a partition sees its first record of a transaction. What it answers is put
into words that each generation of clients handles (KIP-890).
"""

from __future__ import annotations

from enum import Enum

from millstream.core.errors import ErrorCode


class Operation(Enum):
    """What the client behind a request can do."""

    VERIFY_CLASSIC = "it knows none of the new errors"
    VERIFY = "it knows TRANSACTION_ABORTABLE"
    JOIN = "its partitions join with the request (transaction.version 2)"

    @property
    def verify_only(self) -> bool:
        return self is not Operation.JOIN


def operation_of_produce(version: int) -> Operation:
    return _operation(version, knows_abortable=11, joins=12)


def operation_of_txn_offset_commit(version: int) -> Operation:
    return _operation(version, knows_abortable=4, joins=5)


def _operation(version: int, *, knows_abortable: int, joins: int) -> Operation:
    if version >= joins:
        return Operation.JOIN
    return Operation.VERIFY if version >= knows_abortable else Operation.VERIFY_CLASSIC


# The coordinator could not be asked, or did not get as far as this partition because it has not heard of another one yet. Producers retry
# NOT_ENOUGH_REPLICAS without looking for new metadata.
_UNREACHABLE = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
)


def produce_error(code: ErrorCode, operation: Operation) -> ErrorCode:
    """The coordinator's answer as a partition of a produce answer."""
    if code in _UNREACHABLE:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if code is ErrorCode.CONCURRENT_TRANSACTIONS and operation.verify_only:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return _understood(code, operation)


def offset_commit_error(code: ErrorCode, operation: Operation) -> ErrorCode:
    """The coordinator's answer as the partitions of a TxnOffsetCommit answer."""
    if code is ErrorCode.NETWORK_EXCEPTION:
        # Makes clients retry without looking for the coordinator again.
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return _understood(code, operation)


def _understood(code: ErrorCode, operation: Operation) -> ErrorCode:
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and operation is Operation.VERIFY_CLASSIC:
        return ErrorCode.INVALID_TXN_STATE
    return code
