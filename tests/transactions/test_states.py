"""The table of states is Kafka's, and no step leaves it."""

from __future__ import annotations

import pytest

from millstream.transactions.states import (
    BY_TITLE,
    PREDECESSORS,
    IllegalTransition,
    TransactionState,
)
from support.transactions.samples import metadata

# From Kafka's documentation of the transaction protocol: each state and what it may follow.
KAFKA = {
    "Empty": {"Empty", "CompleteCommit", "CompleteAbort"},
    "Ongoing": {"Ongoing", "Empty", "CompleteCommit", "CompleteAbort"},
    "PrepareCommit": {"Ongoing"},
    "PrepareAbort": {"Ongoing", "PrepareEpochFence", "Empty", "CompleteCommit", "CompleteAbort"},
    "CompleteCommit": {"PrepareCommit"},
    "CompleteAbort": {"PrepareAbort"},
    "Dead": {"Empty", "CompleteAbort", "CompleteCommit"},
    "PrepareEpochFence": {"Ongoing"},
}
NUMBERS = {
    "Empty": 0,
    "Ongoing": 1,
    "PrepareCommit": 2,
    "PrepareAbort": 3,
    "CompleteCommit": 4,
    "CompleteAbort": 5,
    "Dead": 6,
    "PrepareEpochFence": 7,
}


def test_predecessors_are_kafkas() -> None:
    ours = {state.title: {before.title for before in rows} for state, rows in PREDECESSORS.items()}
    assert ours == KAFKA


def test_numbers_and_names_are_kafkas() -> None:
    assert {title: int(state) for title, state in BY_TITLE.items()} == NUMBERS


@pytest.mark.parametrize("before", TransactionState)
@pytest.mark.parametrize("after", TransactionState)
def test_a_step_that_the_table_does_not_know_is_never_taken(
    before: TransactionState, after: TransactionState
) -> None:
    if before.title in KAFKA[after.title]:
        assert metadata(before).transition(after).state is after
    else:
        with pytest.raises(IllegalTransition):
            metadata(before).transition(after)
