"""Partition reassignment under traffic (KIP-455): add replicas, then remove the old ones.

During a reassignment a partition has the target replicas followed by those to remove. The old ones
are removed once all target replicas are in sync. The functions are pure: each takes the current
assignment and returns the next, or raises ApiError as Kafka's controller would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millstream.control.election import Brokers, elect
from millstream.control.znodes import Assignment, PartitionState
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import NO_LEADER


def begin(current: Assignment, target: Sequence[int]) -> Assignment:
    """Return the assignment that starts a reassignment to ``target``.

    A reassignment in progress gets a new target. The replicas that it added for the old target are
    then both in ``adding`` and in ``removing``. So they stay until the new ones are in sync, and a
    cancellation still knows the original replicas.
    """
    origin = current.origin
    kept = tuple(target)
    removing = tuple(node for node in (*origin, *current.adding) if node not in kept)
    return Assignment(
        kept + removing,
        adding=tuple(node for node in (*kept, *removing) if node not in origin),
        removing=removing,
    )


def is_complete(current: Assignment, state: PartitionState) -> bool:
    """Return whether all target replicas are in sync, so that the old ones can be removed.

    With only some of them in sync (KAFKA-15665) the partition could end up with fewer copies than
    it had.
    """
    return current.reassigning and set(current.target) <= set(state.isr)


def complete(
    current: Assignment, state: PartitionState, brokers: Brokers
) -> tuple[Assignment, PartitionState]:
    """Return the target assignment; a leader outside of it hands over to a target replica."""
    return Assignment(current.target), _within(current.target, current, state, brokers)


def cancel(
    current: Assignment, state: PartitionState, brokers: Brokers
) -> tuple[Assignment, PartitionState]:
    """Return the assignment before the reassignment."""
    if not current.reassigning:
        raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    if not set(current.origin) & set(state.isr):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "None of the original replicas is in sync; to cancel now would lose acknowledged records.",
        )
    return Assignment(current.origin), _within(current.origin, current, state, brokers)


def _within(
    replicas: Sequence[int], before: Assignment, state: PartitionState, brokers: Brokers
) -> PartitionState:
    """Return the state with only these replicas, in a new leader epoch if a replica was removed.

    As in Kafka's controller, the epoch rises even if the leader stays. The replica may be added
    again before its broker has processed the removal and deleted the log. Fetches of the old log
    must not count for the new replica, which starts empty.
    """
    isr = tuple(node for node in state.isr if node in replicas)
    leader = state.leader if state.leader in replicas else NO_LEADER
    after = elect(replace(state, leader=leader, isr=isr), replicas, brokers, unclean=False)
    # Raise the epoch by one, even if there are two reasons.
    rises = after.leader != state.leader or not set(before.replicas) <= set(replicas)
    return replace(after, leader_epoch=state.leader_epoch + rises)
