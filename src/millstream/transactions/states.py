"""The states of a transactional id, and the valid transitions between them."""

from __future__ import annotations

from enum import IntEnum


class TransactionState(IntEnum):
    """The state of a transactional id.

    Records hold the number. DescribeTransactions and ListTransactions return ``title``.
    """

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    # The id has expired. Written as a tombstone, so it never appears in a record.
    DEAD = 6
    # The epoch is being bumped to fence a producer. It changes to PREPARE_ABORT within one
    # decision, so it never appears in a record.
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        return _TITLES[self]


_TITLES = {
    state: "".join(word.capitalize() for word in state.name.split("_"))
    for state in TransactionState
}
BY_TITLE = {title: state for state, title in _TITLES.items()}

_S = TransactionState

# State -> valid previous states. Under transaction.version 2 an abort is valid without a
# transaction (KIP-890): a client that does not know whether its first produce request arrived must
# be able to end a transaction that may not exist.
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

# The outcome is decided and its markers are in flight.
PREPARED = frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT})
# No transaction is open, so the transactional id may expire.
IDLE = PREDECESSORS[_S.DEAD]
COMPLETED_BY = {_S.PREPARE_COMMIT: _S.COMPLETE_COMMIT, _S.PREPARE_ABORT: _S.COMPLETE_ABORT}


class IllegalTransition(Exception):
    """A decision would have made an invalid transition: a bug in the coordinator."""

    def __init__(self, before: TransactionState, after: TransactionState) -> None:
        super().__init__(f"invalid transition from {before.title} to {after.title}")
