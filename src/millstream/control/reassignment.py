"""Moving replicas while traffic goes on (KIP-455): first more replicas than wanted, then, once the new ones are in sync, fewer.

While it moves, a partition has the wanted replicas followed by those that will go. Pure: each function takes what is and returns
what should be, or raises ApiError as Kafka's controller would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millstream.control.election import Brokers, elect
from millstream.control.znodes import Assignment, PartitionState
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import NO_LEADER


def begin(current: Assignment, target: Sequence[int]) -> Assignment:
    """Towards ``target``. A reassignment under way is given another goal: what it added for the old one is on its way in and out at once,
    so that it is there until the new ones are, and a cancellation still knows where all this began."""
    origin = current.origin
    wanted = tuple(target)
    going = tuple(node for node in (*origin, *current.adding) if node not in wanted)
    return Assignment(
        wanted + going,
        adding=tuple(node for node in (*wanted, *going) if node not in origin),
        removing=going,
    )


def is_complete(current: Assignment, state: PartitionState) -> bool:
    """Whether all that are wanted are in sync, so that those that go may. With only some of them (KAFKA-15665) the partition could be left
    with fewer copies than it had."""
    return current.moving and set(current.target) <= set(state.isr)


def complete(
    current: Assignment, state: PartitionState, brokers: Brokers
) -> tuple[Assignment, PartitionState]:
    """Only the target is left; a leader that goes hands over to one that stays."""
    return Assignment(current.target), _within(current.target, current, state, brokers)


def cancel(current: Assignment, state: PartitionState, brokers: Brokers) -> tuple[Assignment, PartitionState]:
    """Back to where it came from."""
    if not current.moving:
        raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    if not set(current.origin) & set(state.isr):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "None of the replicas to go back to is in sync; to cancel now would lose what was acknowledged.",
        )
    return Assignment(current.origin), _within(current.origin, current, state, brokers)


def _within(
    replicas: Sequence[int], before: Assignment, state: PartitionState, brokers: Brokers
) -> PartitionState:
    """Where a replica goes a new epoch begins, also when the leader stays, as with Kafka's controller. The replica may be added again before its
    broker has heard of all this and deleted it: what it still fetches until then must not count for the one that begins empty."""
    isr = tuple(node for node in state.isr if node in replicas)
    leader = state.leader if state.leader in replicas else NO_LEADER
    after = elect(replace(state, leader=leader, isr=isr), replicas, brokers, unclean=False)
    # Once, whatever the reasons are.
    rises = after.leader != state.leader or not set(before.replicas) <= set(replicas)
    return replace(after, leader_epoch=state.leader_epoch + rises)
