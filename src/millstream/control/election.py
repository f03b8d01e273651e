"""Who leads a partition: pure functions from what is known (replicas, ISR, live brokers) to its next state.

Only a member of the ISR may lead, the first live one in assignment order, unless the topic allows an unclean election: then any
live replica, and what it does not have is lost. The ISR is never empty: when its last members go, they stay in it, because they
alone are known to have everything that was acknowledged.

A replica whose directory is full can neither lead nor follow writes. It leaves the ISR while another member has room.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from millstream.control.znodes import PartitionState
from millstream.core.types import NO_LEADER


@dataclass(frozen=True, slots=True)
class Brokers:
    """Which brokers may serve. ``stopping`` are live ones that hand over what they lead."""

    live: frozenset[int]
    stopping: frozenset[int] = frozenset()

    def can_lead(self, node: int) -> bool:
        return node in self.live and node not in self.stopping


def elect(
    state: PartitionState,
    replicas: Sequence[int],
    brokers: Brokers,
    *,
    unclean: bool,
    offline: Collection[int] = (),
    full: Collection[int] = (),
) -> PartitionState:
    """The next state after brokers went, came or began to stop; the same one when nothing has to change.

    ``offline`` are replicas whose broker is live but whose log directory failed, ``full`` those whose directory has no room.
    """
    able = [node for node in replicas if brokers.can_lead(node) and node not in offline]
    isr = _without_the_gone(state, brokers, offline)
    in_sync = [node for node in able if node in state.isr]
    with_room = [node for node in in_sync if node not in full]
    if with_room:
        in_sync, isr = with_room, tuple(node for node in isr if node not in full)
    if state.leader in in_sync:
        return state if isr == state.isr else _next(state, state.leader, isr)
    if in_sync:
        return _next(state, in_sync[0], tuple(node for node in isr if node in state.isr))
    if state.leader in brokers.stopping and state.leader in brokers.live and state.leader not in offline:
        return state  # it hands over to nobody: better served until the last moment
    if unclean and able:
        return _next(state, able[0], (able[0],))
    return state if state.leader == NO_LEADER and isr == state.isr else _next(state, NO_LEADER, isr)


def elect_preferred(
    state: PartitionState, replicas: Sequence[int], brokers: Brokers, *, offline: Collection[int] = ()
) -> PartitionState:
    """The first of the replicas leads, if it is live and in sync; else nothing changes."""
    first = replicas[0]
    if state.leader == first or first not in state.isr or first in offline or not brokers.can_lead(first):
        return state
    return _next(state, first, state.isr)


def elect_unclean(
    state: PartitionState, replicas: Sequence[int], brokers: Brokers, *, offline: Collection[int] = ()
) -> PartitionState:
    """An operator's word: a partition without a leader takes any live replica; from the ISR where possible."""
    if state.leader != NO_LEADER:
        return state
    return elect(state, replicas, brokers, unclean=True, offline=offline)


def _without_the_gone(state: PartitionState, brokers: Brokers, offline: Collection[int]) -> tuple[int, ...]:
    """Stopping brokers leave the ISR too: they will not fetch any more, and acks=all must not wait for them."""
    kept = tuple(node for node in state.isr if brokers.can_lead(node) and node not in offline)
    return kept or state.isr


def _next(state: PartitionState, leader: int, isr: tuple[int, ...]) -> PartitionState:
    """A new leader is a new epoch. The ISR alone may change within one: the version of the node tells (KAFKA-15021)."""
    epoch = state.leader_epoch + (leader != state.leader)
    return replace(state, leader=leader, isr=isr, leader_epoch=epoch)
