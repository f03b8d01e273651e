"""The states of a transactional id, and which may follow which."""

from __future__ import annotations

from enum import IntEnum


class TransactionState(IntEnum):
    """The number is what records carry, ``title`` what DescribeTransactions and ListTransactions call it."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    # The id has expired: written as a tombstone, so never seen in a record.
    DEAD = 6
    # An epoch is bumped to shut a producer out; it leads to PREPARE_ABORT within one decision, so never seen in a record.
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        return _TITLES[self]


_TITLES = {state: "".join(word.capitalize() for word in state.name.split("_")) for state in TransactionState}
BY_TITLE = {title: state for state, title in _TITLES.items()}

_S = TransactionState

# state -> the states it may follow. Under transaction.version 2 an abort may come without a transaction (KIP-890): a client that
# does not know whether its first produce arrived must be able to end what may not have begun.
PREDECESSORS: dict[TransactionState, frozenset[TransactionState]] = {
    _S.EMPTY: frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.ONGOING: frozenset({_S.ONGOING, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.PREPARE_COMMIT: frozenset({_S.ONGOING}),
    _S.PREPARE_ABORT: frozenset(
        {_S.ONGOING, _S.PREPARE_EPOCH_FENCE, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}
    ),
    _S.COMPLETE_COMMIT: frozenset({_S.PREPARE_COMMIT}),
    _S.COMPLETE_ABORT: frozenset({_S.PREPARE_ABORT}),
    _S.DEAD: frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.PREPARE_EPOCH_FENCE: frozenset({_S.ONGOING}),
}

# An outcome is decided and its markers are on their way.
PREPARED = frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT})
# No transaction is open: a transactional id may expire here.
IDLE = PREDECESSORS[_S.DEAD]
COMPLETED_BY = {_S.PREPARE_COMMIT: _S.COMPLETE_COMMIT, _S.PREPARE_ABORT: _S.COMPLETE_ABORT}


class IllegalTransition(Exception):
    """A decision would have broken the table: a defect of the coordinator, never a client's fault."""

    def __init__(self, before: TransactionState, after: TransactionState) -> None:
        super().__init__(f"{after.title} may not follow {before.title}")
