"""The states of groups and transactions and the types of groups, by the names that the protocol gives them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TypeVar

from millstream.client.errors import ClientError


class GroupState(StrEnum):
    """PreparingRebalance and CompletingRebalance of classic groups only; Assigning and Reconciling of the consumer protocol."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class GroupType(StrEnum):
    CLASSIC = "classic"
    CONSUMER = "consumer"


class TransactionState(StrEnum):
    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


OPEN = (TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

Name = TypeVar("Name", bound=StrEnum)


def named(kind: type[Name], names: Iterable[str]) -> set[Name]:
    """The members of these names, whatever their capitals; ClientError for one that there is not."""
    known = {one.value.lower(): one for one in kind}
    for name in names:
        if name.lower() not in known:
            raise ClientError(f"{name!r} is not one of {', '.join(kind)}", hint="use one of these names")
    return {known[name.lower()] for name in names}
