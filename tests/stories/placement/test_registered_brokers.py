"""Brokers that are away but registered: they get replicas of new topics, until an operator
unregisters them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from millstream.control import znodes
from millstream.core.errors import ErrorCode
from millstream.ports.coordination import Delete
from millstream.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from millstream.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from millstream.wire.messages.describe_cluster import DescribeClusterRequest
from millstream.wire.messages.unregister_broker import UnregisterBrokerRequest
from millstream.wire.records.batch import Record, build_batch
from support.clusters import InProcessCluster, describe
from support.processes import wait_until
from support.raw import RawClient, produce_request

InProcess = Callable[..., InProcessCluster]


def stop(cluster: InProcessCluster, node: int) -> None:
    """Stop a broker; return once the controller has noticed."""
    cluster.brokers[node].stop()
    wait_until(lambda: node not in live(cluster), f"broker {node} to be gone")


def live(cluster: InProcessCluster) -> set[int]:
    with cluster.client() as client:
        return {row.broker_id for row in client.call(DescribeClusterRequest(), 2).brokers}


def with_fenced(cluster: InProcessCluster) -> dict[int, bool]:
    """Every registered broker, and whether it is away."""
    with cluster.client() as client:
        rows = client.call(DescribeClusterRequest(include_fenced_brokers=True), 2).brokers
    return {row.broker_id: row.is_fenced for row in rows}


def create(
    cluster: InProcessCluster,
    name: str,
    replicas: int = 3,
    at: Mapping[int, Sequence[int]] | None = None,
) -> Any:
    topic = CreatableTopic(
        name=name,
        num_partitions=-1 if at else 4,
        replication_factor=-1 if at else replicas,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(nodes))
            for index, nodes in (at or {}).items()
        ],
    )
    with cluster.client() as client:
        return client.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7).topics[0]


def grow(
    cluster: InProcessCluster, name: str, count: int, at: Sequence[Sequence[int]] | None = None
) -> int:
    rows = (
        None if at is None else [CreatePartitionsAssignment(broker_ids=list(nodes)) for nodes in at]
    )
    topic = CreatePartitionsTopic(name=name, count=count, assignments=rows)
    with cluster.client() as client:
        (result,) = client.call(
            CreatePartitionsRequest(topics=[topic], timeout_ms=10_000), 3
        ).results
    return int(result.error_code)


def unregister(cluster: InProcessCluster, node: int, asked: int | None = None) -> int:
    with cluster.client(asked) as client:
        return int(client.call(UnregisterBrokerRequest(broker_id=node), 0).error_code)


def partitions(cluster: InProcessCluster, name: str) -> list[Any]:
    with cluster.client() as client:
        return sorted(describe(client, name).partitions, key=lambda row: row.partition_index)


def write(cluster: InProcessCluster, name: str, index: int) -> int:
    batch = build_batch([Record(0, 0, None, b"value", ())])
    with RawClient(cluster.bootstrap_of(cluster.leader(name, index))) as client:
        answer = client.call(produce_request(name, index, batch, acks=-1), 9)
    return int(answer.responses[0].partition_responses[0].error_code)


def test_topic_created_while_a_broker_is_away_includes_it(in_process_cluster: InProcess) -> None:
    with in_process_cluster(3) as cluster:
        stop(cluster, 1)
        assert with_fenced(cluster) == {0: False, 1: True, 2: False}
        assert create(cluster, "orders").error_code == ErrorCode.NONE
        assert grow(cluster, "orders", 6) == ErrorCode.NONE
        rows = partitions(cluster, "orders")
        assert len(rows) == 6
        for row in rows:
            assert set(row.replica_nodes) == {0, 1, 2}
            assert set(row.isr_nodes) == {0, 2}
            assert row.leader_id == row.replica_nodes[0]
            assert row.offline_replicas == [1]
        assert {row.leader_id for row in rows} == {0, 2}
        assert [write(cluster, "orders", index) for index in range(6)] == [ErrorCode.NONE] * 6

        cluster.brokers[1].start()
        wait_until(lambda: cluster.in_sync("orders") == 3, "broker 1 in sync")
        assert with_fenced(cluster) == {0: False, 1: False, 2: False}


def test_live_brokers_come_first_in_placement(in_process_cluster: InProcess) -> None:
    with in_process_cluster(3) as cluster:
        stop(cluster, 2)
        assert create(cluster, "orders", replicas=2).error_code == ErrorCode.NONE
        assert {tuple(sorted(row.replica_nodes)) for row in partitions(cluster, "orders")} == {
            (0, 1)
        }
        assert (
            create(cluster, "four", replicas=4).error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        )


def test_assignment_needs_one_live_broker(in_process_cluster: InProcess) -> None:
    with in_process_cluster(3) as cluster:
        stop(cluster, 2)
        assert create(cluster, "orders", at={0: (2, 0)}).error_code == ErrorCode.NONE
        (row,) = partitions(cluster, "orders")
        assert (row.replica_nodes, row.leader_id, row.isr_nodes) == ([2, 0], 0, [0])
        refused = create(cluster, "away", at={0: (2,)})
        assert refused.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert "partition 0 are fenced or in controlled shutdown" in refused.error_message
        unknown = create(cluster, "unknown", at={0: (0, 9)})
        assert unknown.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert "no such broker is registered" in unknown.error_message
        assert grow(cluster, "orders", 2, [(2, 1)]) == ErrorCode.NONE
        assert grow(cluster, "orders", 3, [(2, 9)]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_partition_may_be_reassigned_to_a_broker_that_is_away(
    in_process_cluster: InProcess,
) -> None:
    with in_process_cluster(3) as cluster:
        cluster.create_topic("orders", at={0: (0, 1)})
        stop(cluster, 2)
        cluster.reassign("orders", {0: (0, 2)})
        cluster.brokers[2].start()
        wait_until(
            lambda: partitions(cluster, "orders")[0].replica_nodes == [0, 2],
            "the reassignment to complete",
        )


def test_unregistered_broker_no_longer_counts(in_process_cluster: InProcess) -> None:
    with in_process_cluster(3) as cluster:
        assert unregister(cluster, 2) == ErrorCode.INVALID_REQUEST, "it is running"
        assert unregister(cluster, 7) == ErrorCode.BROKER_ID_NOT_REGISTERED
        stop(cluster, 2)
        assert unregister(cluster, 2, asked=0) == ErrorCode.NONE
        assert unregister(cluster, 2, asked=1) == ErrorCode.BROKER_ID_NOT_REGISTERED
        wait_until(lambda: with_fenced(cluster) == {0: False, 1: False}, "both brokers to know")
        refused = create(cluster, "orders")
        assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        assert "only 2 broker(s) are registered" in refused.error_message

        cluster.brokers[2].start()
        assert create(cluster, "orders").error_code == ErrorCode.NONE


def test_next_controller_knows_registered_brokers(in_process_cluster: InProcess) -> None:
    with in_process_cluster(3) as cluster:
        (controller,) = [
            n for n, one in enumerate(cluster.brokers) if one.broker.parts.member.state.active
        ]
        stop(cluster, controller)
        assert create(cluster, "orders").error_code == ErrorCode.NONE
        assert all(controller not in row.isr_nodes for row in partitions(cluster, "orders"))


def test_cluster_of_an_earlier_version_has_no_list_of_registered_brokers(
    in_process_cluster: InProcess,
) -> None:
    """A rolling upgrade: the node is missing, and the controller that restarts is away when its
    successor reads the tree.
    """
    with in_process_cluster(3) as cluster:
        (controller,) = [
            n for n, one in enumerate(cluster.brokers) if one.broker.parts.member.state.active
        ]
        old = cluster.brokers[controller]

        async def forget() -> None:
            await old.broker.parts.coordination.multi([Delete(znodes.REGISTERED)])

        old.wait(forget())
        stop(cluster, controller)
        assert create(cluster, "orders").error_code == ErrorCode.NONE
        assert all(len(row.replica_nodes) == 3 for row in partitions(cluster, "orders"))
        old.start()
        wait_until(lambda: cluster.in_sync("orders") == 3, "all in sync")
        assert set(with_fenced(cluster)) == {0, 1, 2}
