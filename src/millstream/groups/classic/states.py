"""The states of a classic group, and what each of them allows and answers, as tables."""

from __future__ import annotations

from enum import Enum

from millstream.core.errors import ErrorCode


class State(Enum):
    """As clients see it in DescribeGroups and ListGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"

    # Members are singletons: identity is as good as the default hash of the name, and much faster.
    __hash__ = object.__hash__


# Dead is a group that is no more: its tombstone was written, and the table of groups has no row for it.
NEXT: dict[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.PREPARING_REBALANCE, State.DEAD}),
    State.PREPARING_REBALANCE: frozenset({State.COMPLETING_REBALANCE, State.EMPTY, State.DEAD}),
    State.COMPLETING_REBALANCE: frozenset({State.STABLE, State.PREPARING_REBALANCE, State.DEAD}),
    State.STABLE: frozenset({State.PREPARING_REBALANCE, State.DEAD}),
    State.DEAD: frozenset(),
}

# What a member's heartbeat hears when its id and generation are right. A member may begin to send them before it has synced.
HEARTBEAT: dict[State, ErrorCode] = {
    State.EMPTY: ErrorCode.UNKNOWN_MEMBER_ID,
    State.PREPARING_REBALANCE: ErrorCode.REBALANCE_IN_PROGRESS,
    State.COMPLETING_REBALANCE: ErrorCode.NONE,
    State.STABLE: ErrorCode.NONE,
    State.DEAD: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}

# A commit by a member of the current generation. Before the rebalance the member may still save what it has read (that is what the
# time of PreparingRebalance is for); after it, it must sync first.
COMMIT: dict[State, ErrorCode] = {
    State.EMPTY: ErrorCode.NONE,
    State.PREPARING_REBALANCE: ErrorCode.NONE,
    State.COMPLETING_REBALANCE: ErrorCode.REBALANCE_IN_PROGRESS,
    State.STABLE: ErrorCode.NONE,
    State.DEAD: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}

# DeleteGroups.
DELETE: dict[State, ErrorCode] = {
    State.EMPTY: ErrorCode.NONE,
    State.PREPARING_REBALANCE: ErrorCode.NON_EMPTY_GROUP,
    State.COMPLETING_REBALANCE: ErrorCode.NON_EMPTY_GROUP,
    State.STABLE: ErrorCode.NON_EMPTY_GROUP,
    State.DEAD: ErrorCode.GROUP_ID_NOT_FOUND,
}

# A commit by a member keeps its session alive in these.
COMMIT_KEEPS_SESSION = frozenset({State.STABLE, State.PREPARING_REBALANCE})
