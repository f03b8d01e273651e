"""Checks whether a cluster has converged after the faults: expected state against actual state.

Plain data in, violations out. Differences are normal while clients write and topics are created and
deleted. A difference that remains after all of that is stuck.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from millstream.sim.checks.history import Key, Offset
from millstream.sim.checks.history_checks import Violation


class Assigned(NamedTuple):
    """A partition as ZooKeeper has it."""

    key: Key
    topic_id: bytes
    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    reassigning: bool = False


class Hosted(NamedTuple):
    """A replica as its broker has it. Without a log it has no offsets."""

    node: int
    key: Key
    topic_id: bytes
    leader: int
    leader_epoch: int
    high_watermark: Offset | None
    log_end: Offset | None


def unsettled(assigned: Iterable[Assigned], hosted: Iterable[Hosted]) -> Iterator[Violation]:
    """Yield every difference from a converged cluster.

    Every partition has a leader, all replicas are in sync and equally long, everything is below the
    high watermark, every broker knows it, and no broker has anything else.
    """
    by_place = {(replica.key, replica.topic_id, replica.node): replica for replica in hosted}
    for partition in assigned:
        replicas = {
            node: by_place.pop((partition.key, partition.topic_id, node), None)
            for node in partition.replicas
        }
        yield from _unsettled_roles(partition)
        leading = replicas.get(partition.leader)
        end = leading.log_end if leading is not None else None
        for node, replica in replicas.items():
            if difference := _difference(partition, replica, end):
                yield Violation("not-converged", partition.key, f"broker {node} {difference}")
    for left in by_place.values():
        detail = f"broker {left.node} still has a replica of it, but is not assigned one"
        yield Violation("not-converged", left.key, detail)


def _unsettled_roles(partition: Assigned) -> Iterator[Violation]:
    if partition.leader not in partition.replicas:
        yield Violation(
            "not-converged", partition.key, f"leader {partition.leader} is not one of its replicas"
        )
    if set(partition.isr) != set(partition.replicas):
        detail = f"only {list(partition.isr)} of {list(partition.replicas)} are in sync"
        yield Violation("not-converged", partition.key, detail)
    if partition.reassigning:
        detail = f"the reassignment to {list(partition.replicas)} does not end"
        yield Violation("not-converged", partition.key, detail)


def _difference(partition: Assigned, replica: Hosted | None, leader_end: Offset | None) -> str:
    """Return how a replica differs from its partition; empty if it does not."""
    if replica is None:
        return "does not have its replica"
    if (replica.leader, replica.leader_epoch) != (partition.leader, partition.leader_epoch):
        return (
            f"has leader {replica.leader} of epoch {replica.leader_epoch}, "
            f"not {partition.leader} of {partition.leader_epoch}"
        )
    if replica.log_end is None:
        return "does not serve its replica"
    if replica.log_end != leader_end or replica.high_watermark != replica.log_end:
        return (
            f"has high watermark {replica.high_watermark} and end {replica.log_end};"
            f" the leader's log ends at {leader_end}"
        )
    return ""


def replication_factor_kept(assigned: Iterable[Assigned], factor: int) -> Iterator[Violation]:
    """Check that every partition has the number of replicas it was created with.

    Every reassignment names the same number.
    """
    for partition in assigned:
        if len(set(partition.replicas)) != factor or len(partition.replicas) != factor:
            detail = f"its replicas are {list(partition.replicas)}, expected {factor}"
            yield Violation("replication-factor", partition.key, detail)
