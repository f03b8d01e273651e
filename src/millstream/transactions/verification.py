"""Errors for a producer whose transaction could not be verified or joined.

Produce and TxnOffsetCommit ask the coordinator before a partition gets its first record of a
transaction. The coordinator's error is converted to one that the client's version can handle
(KIP-890).
"""

from __future__ import annotations

from enum import Enum

from millstream.core.errors import ErrorCode


class Operation(Enum):
    """The capabilities of the client of a request."""

    VERIFY_CLASSIC = "knows none of the new errors"
    VERIFY = "knows TRANSACTION_ABORTABLE"
    JOIN = "adds its partitions with the request (transaction.version 2)"

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


# The coordinator was not reachable, or did not check this partition because another partition of
# the request is unknown to it. Producers retry NOT_ENOUGH_REPLICAS without a metadata refresh.
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
    """Convert the coordinator's error for a partition of a produce response."""
    if code in _UNREACHABLE:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if code is ErrorCode.CONCURRENT_TRANSACTIONS and operation.verify_only:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return _understood(code, operation)


def offset_commit_error(code: ErrorCode, operation: Operation) -> ErrorCode:
    """Convert the coordinator's error for the partitions of a TxnOffsetCommit response."""
    if code is ErrorCode.NETWORK_EXCEPTION:
        # Clients retry this error without looking up the coordinator again.
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return _understood(code, operation)


def _understood(code: ErrorCode, operation: Operation) -> ErrorCode:
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and operation is Operation.VERIFY_CLASSIC:
        return ErrorCode.INVALID_TXN_STATE
    return code
