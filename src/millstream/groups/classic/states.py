"""The states of a classic group, and the responses of each state as tables.

The descriptions follow Kafka's ClassicGroupState.
"""

from __future__ import annotations

from enum import Enum

from millstream.core.errors import ErrorCode


class State(Enum):
    """A state of a classic group, with its name in DescribeGroups and ListGroups."""

    # The group has no members, but stays until its offsets have expired. Groups that use Kafka
    # only for offset commits and have no members are in this state as well.
    # action: respond normally to joins of new members;
    #         respond to sync, heartbeat and leave with UNKNOWN_MEMBER_ID;
    #         allow offset fetches, and commits without a member id
    # transition: a new member joins -> PREPARING_REBALANCE;
    #             last offsets expired, or DeleteGroups -> DEAD
    EMPTY = "Empty"
    # The group waits for its members to join.
    # action: respond to heartbeats and syncs with REBALANCE_IN_PROGRESS;
    #         remove a member that leaves;
    #         delay joins of new and existing members until all of them have joined;
    #         allow offset commits of the previous generation, and offset fetches
    # transition: some members have joined by the timeout -> COMPLETING_REBALANCE;
    #             all members have left -> EMPTY; the group is removed -> DEAD
    PREPARING_REBALANCE = "PreparingRebalance"
    # The group waits for the assignment of its leader.
    # action: respond normally to heartbeats;
    #         delay syncs of followers until the leader's sync brings the assignment;
    #         respond to offset commits with REBALANCE_IN_PROGRESS; allow offset fetches
    # transition: sync with the assignment from the leader -> STABLE;
    #             join of a new or changed member, or a member leaves, fails or does not
    #             sync in time -> PREPARING_REBALANCE; the group is removed -> DEAD
    COMPLETING_REBALANCE = "CompletingRebalance"
    # Every member has its assignment.
    # action: respond normally to heartbeats; respond to syncs with the current assignment;
    #         respond to joins of followers with unchanged protocols with the current generation;
    #         allow offset commits of this generation, and offset fetches
    # transition: a member fails or leaves, the leader joins, or a new or changed member
    #             joins -> PREPARING_REBALANCE; the group is removed -> DEAD
    STABLE = "Stable"
    # The group does not exist any more: its tombstone is written, and the shard has no entry
    # for it. Clients see this state only in the description of an unknown group.
    # action: respond as for an unknown group
    # transition: none
    DEAD = "Dead"

    # Enum members are singletons: hashing by identity is correct, and much faster than by name.
    __hash__ = object.__hash__


# State -> valid next states.
NEXT_STATES: dict[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.PREPARING_REBALANCE, State.DEAD}),
    State.PREPARING_REBALANCE: frozenset({State.COMPLETING_REBALANCE, State.EMPTY, State.DEAD}),
    State.COMPLETING_REBALANCE: frozenset({State.STABLE, State.PREPARING_REBALANCE, State.DEAD}),
    State.STABLE: frozenset({State.PREPARING_REBALANCE, State.DEAD}),
    State.DEAD: frozenset(),
}

# Response to a heartbeat with a valid member id and generation. A member may send heartbeats before
# it has synced.
HEARTBEAT: dict[State, ErrorCode] = {
    State.EMPTY: ErrorCode.UNKNOWN_MEMBER_ID,
    State.PREPARING_REBALANCE: ErrorCode.REBALANCE_IN_PROGRESS,
    State.COMPLETING_REBALANCE: ErrorCode.NONE,
    State.STABLE: ErrorCode.NONE,
    State.DEAD: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}

# Response to a commit by a member of the current generation. In PreparingRebalance a member may
# still commit the records it has read. In CompletingRebalance it must sync first.
COMMIT: dict[State, ErrorCode] = {
    State.EMPTY: ErrorCode.NONE,
    State.PREPARING_REBALANCE: ErrorCode.NONE,
    State.COMPLETING_REBALANCE: ErrorCode.REBALANCE_IN_PROGRESS,
    State.STABLE: ErrorCode.NONE,
    State.DEAD: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}

# Response to DeleteGroups.
DELETE: dict[State, ErrorCode] = {
    State.EMPTY: ErrorCode.NONE,
    State.PREPARING_REBALANCE: ErrorCode.NON_EMPTY_GROUP,
    State.COMPLETING_REBALANCE: ErrorCode.NON_EMPTY_GROUP,
    State.STABLE: ErrorCode.NON_EMPTY_GROUP,
    State.DEAD: ErrorCode.GROUP_ID_NOT_FOUND,
}

# States in which a commit by a member extends its session.
COMMIT_KEEPS_SESSION = frozenset({State.STABLE, State.PREPARING_REBALANCE})
