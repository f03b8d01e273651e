"""Whether a cluster has come to rest after its troubles: what it should have, what its brokers have, and every difference.

Plain data in, violations out. While clients write and topics come and go there always is a difference; when all that is over and it
does not pass, something is stuck.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from millstream.sim.checks.history import Key, Offset
from millstream.sim.checks.history_checks import Violation


class Assigned(NamedTuple):
    """A partition as the coordination service has it."""

    key: Key
    topic_id: bytes
    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    moving: bool = False


class Hosted(NamedTuple):
    """A replica as its broker has it; without a log it has no offsets."""

    node: int
    key: Key
    topic_id: bytes
    leader: int
    leader_epoch: int
    high_watermark: Offset | None
    log_end: Offset | None


def unsettled(assigned: Iterable[Assigned], hosted: Iterable[Hosted]) -> Iterator[Violation]:
    """What is missing until every partition is led, all its replicas are in sync and equally long, everything is below the high
    watermark, everybody knows it, and nobody has anything else."""
    by_place = {(one.key, one.topic_id, one.node): one for one in hosted}
    for partition in assigned:
        replicas = {
            node: by_place.pop((partition.key, partition.topic_id, node), None) for node in partition.replicas
        }
        yield from _unsettled_roles(partition)
        leading = replicas.get(partition.leader)
        end = leading.log_end if leading is not None else None
        for node, replica in replicas.items():
            if told := _lacks(partition, replica, end):
                yield Violation("not-converged", partition.key, f"broker {node} {told}")
    for left in by_place.values():
        told = f"broker {left.node} still has a replica of it, which is none of its own"
        yield Violation("not-converged", left.key, told)


def _unsettled_roles(partition: Assigned) -> Iterator[Violation]:
    if partition.leader not in partition.replicas:
        yield Violation("not-converged", partition.key, f"is led by {partition.leader}, no replica of it")
    if set(partition.isr) != set(partition.replicas):
        told = f"only {list(partition.isr)} of {list(partition.replicas)} are in sync"
        yield Violation("not-converged", partition.key, told)
    if partition.moving:
        told = f"the move to {list(partition.replicas)} does not end"
        yield Violation("not-converged", partition.key, told)


def _lacks(partition: Assigned, replica: Hosted | None, leader_end: Offset | None) -> str:
    """What a replica has to do yet; empty where it has all."""
    if replica is None:
        return "does not have its replica"
    if (replica.leader, replica.leader_epoch) != (partition.leader, partition.leader_epoch):
        return (
            f"believes in leader {replica.leader} of epoch {replica.leader_epoch}, "
            f"not {partition.leader} of {partition.leader_epoch}"
        )
    if replica.log_end is None:
        return "does not serve its replica"
    if replica.log_end != leader_end or replica.high_watermark != replica.log_end:
        return (
            f"is at {replica.high_watermark} of {replica.log_end}, and the leader's log ends at {leader_end}"
        )
    return ""


def replicated_as_asked(assigned: Iterable[Assigned], factor: int) -> Iterator[Violation]:
    """Every partition has as many replicas as it was created with, and as every move since then has named."""
    for partition in assigned:
        if len(set(partition.replicas)) != factor or len(partition.replicas) != factor:
            told = f"its replicas are {list(partition.replicas)}, and there should be {factor}"
            yield Violation("replication-factor", partition.key, told)
