"""Racks: the replicas of a partition are spread over them, when a topic is made
and when it grows.
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from support.clusters import InProcessCluster, describe

TOPIC = "spread"


def test_every_partition_has_a_replica_in_each_rack(
    in_process_cluster: Callable[..., InProcessCluster],
) -> None:
    racks = ("north", "north", "south", "south")
    with in_process_cluster(4, each=lambda node: {"broker.rack": racks[node]}) as cluster:
        cluster.create_topic(TOPIC, partitions=4, replicas=2)
        with cluster.client() as client:
            more = CreatePartitionsTopic(name=TOPIC, count=8, assignments=None)
            (row,) = client.call(
                CreatePartitionsRequest(topics=[more], timeout_ms=10_000), 3
            ).results
            assert row.error_code == 0
            rows = describe(client, TOPIC).partitions
        assert len(rows) == 8
        assert all(
            {racks[node] for node in row.replica_nodes} == {"north", "south"} for row in rows
        )
        leaders = [row.leader_id for row in rows]
        assert sorted(leaders) == [0, 0, 1, 1, 2, 2, 3, 3], "and no broker leads more than another"
