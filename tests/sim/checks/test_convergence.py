"""The checks detect a cluster that does not converge, and one that converges with other replicas
than requested.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pytest

from millstream.control import reassignment
from millstream.control.election import Brokers
from millstream.control.znodes import Assignment, PartitionState
from millstream.replication.leader import IsrProposal, LeaderReplicas
from millstream.sim import run, single
from millstream.sim.checks.convergence import Assigned, Hosted, replication_factor_kept, unsettled
from millstream.sim.checks.history_checks import Violation
from millstream.sim.checks.observe import assigned, hosted, image_in
from support.sim.stories import Story, play

ID, OTHER_ID = bytes(16), bytes([1] * 16)
PARTITION = Assigned("k-0", ID, (1, 2, 3), 2, 5, (2, 1, 3))


def replica(node: int, *, high_watermark: int | None = 9, end: int | None = 9) -> Hosted:
    return Hosted(node, "k-0", ID, 2, 5, high_watermark, end)


ALL = [replica(1), replica(2), replica(3)]


def test_a_cluster_at_rest_has_nothing_left_to_do() -> None:
    assert list(unsettled([PARTITION], ALL)) == []
    assert list(unsettled([], [])) == []


@pytest.mark.parametrize(
    "partition, replicas, reported",
    [
        (PARTITION._replace(leader=-1), ALL, "leader -1 is not one of its replicas"),
        (PARTITION._replace(isr=(2, 1)), ALL, "only [2, 1] of [1, 2, 3] are in sync"),
        (PARTITION._replace(reassigning=True), ALL, "does not end"),
        (PARTITION, ALL[:2], "broker 3 does not have its replica"),
        (
            PARTITION,
            [*ALL[:2], ALL[2]._replace(topic_id=OTHER_ID)],
            "broker 3 does not have its replica",
        ),
        (
            PARTITION,
            [*ALL[:2], replica(3, high_watermark=None, end=None)],
            "broker 3 does not serve",
        ),
        (PARTITION, [*ALL[:2], ALL[2]._replace(leader=1)], "broker 3 has leader 1 of epoch 5"),
        (
            PARTITION,
            [*ALL[:2], ALL[2]._replace(leader_epoch=4)],
            "broker 3 has leader 2 of epoch 4",
        ),
        (
            PARTITION,
            [*ALL[:2], replica(3, high_watermark=8)],
            "broker 3 has high watermark 8 and end 9",
        ),
        (PARTITION, [*ALL[:2], replica(3, high_watermark=8, end=8)], "the leader's log ends at 9"),
        (PARTITION, [*ALL, replica(4)], "broker 4 still has a replica"),
        (PARTITION, [*ALL, ALL[2]._replace(topic_id=OTHER_ID)], "broker 3 still has a replica"),
    ],
)
def test_every_difference_is_reported(
    partition: Assigned, replicas: list[Hosted], reported: str
) -> None:
    violations = list(unsettled([partition], replicas))
    assert {violation.kind for violation in violations} == {"not-converged"}
    assert any(reported in violation.detail for violation in violations)


@pytest.mark.parametrize("replicas", [(1, 2), (1, 2, 3, 4), (1, 2, 2)])
def test_wrong_number_of_replicas_is_reported(replicas: tuple[int, ...]) -> None:
    (violation,) = replication_factor_kept([PARTITION._replace(replicas=replicas)], 3)
    assert violation.kind == "replication-factor"
    assert list(replication_factor_kept([PARTITION], 3)) == []


def test_replicas_that_never_rejoin_the_isr_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    propose = LeaderReplicas.propose_expansion

    def leave_out_one(self: LeaderReplicas, node: int, *more: int) -> IsrProposal | None:
        return propose(self, node, *more) if node != 3 else None

    monkeypatch.setattr(LeaderReplicas, "propose_expansion", leave_out_one)
    monkeypatch.setattr(single, "_CONVERGE_S", 10.0)
    result = run.run_seed(3, scenario="replication", quick=True, only=["kill"])
    assert {violation.kind for violation in result.violations} == {"not-converged"}


class MoveCalledOff(Story):
    """The new replica is partitioned: the reassignment is in progress when it is cancelled."""

    others: ClassVar = (4, 5)
    requests: ClassVar[Sequence[list[int] | None]] = ([1, 2, 4], None)

    async def tell(self) -> list[Violation]:
        for node in self.others:
            self.cut(1, node)
        for request in self.requests:
            await self.reassign(request)
        self.world.network.heal()
        await self.until(lambda: not self._unsettled())
        return list(replication_factor_kept(assigned(image_in(self.zookeeper)), 3))

    def _unsettled(self) -> list[Violation]:
        return list(unsettled(assigned(image_in(self.zookeeper)), hosted(self.brokers.values())))


def test_cancelled_reassignment_keeps_the_number_of_replicas() -> None:
    assert play(MoveCalledOff) == []


class MoveOfTwoMinds(MoveCalledOff):
    """The same after a second reassignment with other target brokers."""

    requests: ClassVar = ([1, 2, 4], [1, 2, 5], None)


def test_cancelled_reassignment_keeps_the_replication_factor() -> None:
    assert play(MoveOfTwoMinds) == []


def test_replica_left_behind_by_a_reassignment_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget_who_came(
        current: Assignment, state: PartitionState, brokers: Brokers
    ) -> tuple[Assignment, PartitionState]:
        return Assignment(current.replicas), state

    monkeypatch.setattr(reassignment, "cancel", forget_who_came)
    assert play(MoveCalledOff) == ["replication-factor"]
