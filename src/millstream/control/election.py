"""Leader election: pure functions from replicas, ISR and live brokers to the next partition state.

The leader is the first live member of the ISR in assignment order. If the topic allows an unclean
election, any live replica may lead, and the records that it does not have are lost. The ISR is
never empty: its last members stay in it when they go down, because only they are known to have all
acknowledged records.

A replica whose directory is full can neither lead nor replicate. It leaves the ISR while another
member has room.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from millstream.control.znodes import PartitionState
from millstream.core.types import NO_LEADER


@dataclass(frozen=True, slots=True)
class Brokers:
    """The live brokers. Those in ``stopping`` hand over their leaderships before they shut down."""

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
    """Return the state after a change of the brokers, or the same state if nothing has to change.

    ``offline`` are replicas whose broker is live but whose log directory failed. ``full`` are
    replicas whose directory has no room.
    """
    able = [node for node in replicas if brokers.can_lead(node) and node not in offline]
    isr = _available_isr(state, brokers, offline)
    in_sync = [node for node in able if node in state.isr]
    with_room = [node for node in in_sync if node not in full]
    if with_room:
        in_sync, isr = with_room, tuple(node for node in isr if node not in full)
    if state.leader in in_sync:
        return state if isr == state.isr else _next(state, state.leader, isr)
    if in_sync:
        return _next(state, in_sync[0], tuple(node for node in isr if node in state.isr))
    if (
        state.leader in brokers.stopping
        and state.leader in brokers.live
        and state.leader not in offline
    ):
        # No replica can take over: keep serving until the broker shuts down.
        return state
    if unclean and able:
        return _next(state, able[0], (able[0],))
    return state if state.leader == NO_LEADER and isr == state.isr else _next(state, NO_LEADER, isr)


def elect_preferred(
    state: PartitionState,
    replicas: Sequence[int],
    brokers: Brokers,
    *,
    offline: Collection[int] = (),
) -> PartitionState:
    """Let the first replica lead if it is live and in sync; else return the same state."""
    first = replicas[0]
    if (
        state.leader == first
        or first not in state.isr
        or first in offline
        or not brokers.can_lead(first)
    ):
        return state
    return _next(state, first, state.isr)


def elect_unclean(
    state: PartitionState,
    replicas: Sequence[int],
    brokers: Brokers,
    *,
    offline: Collection[int] = (),
) -> PartitionState:
    """Elect any live replica for a partition without a leader, from the ISR if possible.

    Only an operator requests this.
    """
    if state.leader != NO_LEADER:
        return state
    return elect(state, replicas, brokers, unclean=True, offline=offline)


def _available_isr(
    state: PartitionState, brokers: Brokers, offline: Collection[int]
) -> tuple[int, ...]:
    """Return the ISR without unavailable replicas, or the whole ISR if none is available.

    Stopping brokers leave the ISR too. They stop fetching, and acks=all must not wait for them.
    """
    kept = tuple(node for node in state.isr if brokers.can_lead(node) and node not in offline)
    return kept or state.isr


def _next(state: PartitionState, leader: int, isr: tuple[int, ...]) -> PartitionState:
    """Return the state with a new leader and ISR; only a new leader starts a new leader epoch.

    A change of the ISR alone is visible in the version of the node (KAFKA-15021).
    """
    epoch = state.leader_epoch + (leader != state.leader)
    return replace(state, leader=leader, isr=isr, leader_epoch=epoch)
