"""The states of groups and transactions and the types of groups, named as in the protocol."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TypeVar

from millstream.client.errors import ClientError


class GroupState(StrEnum):
    """The state of a group.

    PreparingRebalance and CompletingRebalance belong to classic groups, Assigning and Reconciling
    to the consumer protocol.
    """

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
    """Return the members of these names, ignoring case; ClientError for an unknown name."""
    known = {member.value.lower(): member for member in kind}
    for name in names:
        if name.lower() not in known:
            raise ClientError(
                f"{name!r} is not one of {', '.join(kind)}", hint="use one of these names"
            )
    return {known[name.lower()] for name in names}
