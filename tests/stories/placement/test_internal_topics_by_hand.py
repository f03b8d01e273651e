"""Internal topics get more replicas when there are brokers for them, but not against the word of an
operator.
"""

from __future__ import annotations

from pathlib import Path

from millstream.client import Admin
from millstream.core.types import TopicPartition
from millstream.local.zookeeper import LocalZooKeeper
from support.clusters import InProcessCluster
from support.processes import wait_until

OFFSETS = "__consumer_offsets"


def replicas(admin: Admin) -> dict[TopicPartition, list[int]]:
    return {tp: list(nodes) for tp, nodes in admin.reassignments.current([OFFSETS]).items()}


def look_after(cluster: InProcessCluster) -> None:
    """What the controller does every second."""
    (controller,) = [one for one in cluster.brokers if one.broker.parts.member.state.active]
    controller.wait(controller.broker.parts.member.housekeeping.grow_internal_topics())


def test_who_takes_replicas_away_does_not_get_them_back(
    tmp_path: Path, zookeeper: LocalZooKeeper
) -> None:
    with InProcessCluster(tmp_path, zookeeper) as cluster, Admin(cluster.bootstrap) as admin:
        cluster.coordinator("g")
        wait_until(
            lambda: {len(nodes) for nodes in replicas(admin).values()} == {3}, "three replicas"
        )
        for wanted in (2, 3, 1):
            plan = {tp: [0, 1, 2][:wanted] for tp in replicas(admin)}
            assert admin.reassignments.start(plan) == {}
            wait_until(lambda: not admin.reassignments.moving(), "the end of the move")
            look_after(cluster)
            assert not admin.reassignments.moving()
            assert {len(nodes) for nodes in replicas(admin).values()} == {wanted}
