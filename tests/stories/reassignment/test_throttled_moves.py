"""Throttles of replication: what is moved comes at the rate that the operator allows, what is in
sync is never held back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millstream.wire.records.batch import Record, build_batch
from support.clusters import InProcessCluster, describe
from support.processes import wait_until
from support.raw import produce_request

TOPIC = "moved"
TOPIC_SETTINGS, BROKER_SETTINGS = 2, 4
SET, DELETE = 0, 1
SIZE = 200_000
MUCH, LITTLE = 1 << 40, 1


def alter(
    cluster: InProcessCluster, kind: int, name: str, operation: int = SET, **settings: object
) -> None:
    configs = [
        AlterableConfig(name=key.replace("_", "."), config_operation=operation, value=str(value))
        for key, value in settings.items()
    ]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    with cluster.client() as client:
        (row,) = client.call(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
    assert row.error_code == 0, row


def write(cluster: InProcessCluster, node: int = 0) -> int:
    """A batch of SIZE bytes; its error code."""
    record = Record(0, time.time_ns() // 1_000_000, None, bytes(SIZE), ())
    with cluster.client(node) as client:
        answer = client.call(produce_request(TOPIC, 0, build_batch([record]), acks=-1), 9)
    return int(answer.responses[0].partition_responses[0].error_code)


def end_at(cluster: InProcessCluster, node: int) -> int:
    broker: Any = cluster.brokers[node].broker.parts
    partition = broker.replicas.partitions.get(TOPIC, {}).get(0)
    return (
        partition.log.log_end_offset if partition is not None and partition.log is not None else -1
    )


@pytest.mark.parametrize(("side", "listed"), [("leader", "0:0"), ("follower", "0:2")])
def test_a_move_is_held_back_and_the_others_are_not(
    in_process_cluster: Callable[..., InProcessCluster], side: str, listed: str
) -> None:
    """With a rate of next to nothing the new replica gets a first piece and no more, until the rate
    is raised.
    """
    settings = {
        "replica.fetch.max.bytes": SIZE,
        "min.insync.replicas": 2,
        "replica.lag.time.max.ms": 2000,
    }
    with in_process_cluster(3, settings) as cluster:
        cluster.create_topic(TOPIC, at={0: (0, 1)})
        throttled = 0 if side == "leader" else 2
        alter(cluster, TOPIC_SETTINGS, TOPIC, **{f"{side}_replication_throttled_replicas": listed})
        alter(
            cluster,
            BROKER_SETTINGS,
            str(throttled),
            **{f"{side}_replication_throttled_rate": LITTLE},
        )
        throttle = getattr(cluster.brokers[throttled].broker.parts, f"{side}_throttle")
        wait_until(lambda: throttle.active, "the rate")
        assert [write(cluster) for _ in range(10)] == [0] * 10
        cluster.reassign(TOPIC, {0: [0, 2]})
        wait_until(lambda: end_at(cluster, 2) > 0, "the first piece")
        # The replica in sync goes on: every write waits for it.
        assert [write(cluster) for _ in range(3)] == [0] * 3
        assert end_at(cluster, 2) < 10 and end_at(cluster, 1) == 13
        with cluster.client() as client:
            (row,) = describe(client, TOPIC).partitions
        assert set(row.isr_nodes) == {0, 1}
        alter(
            cluster, BROKER_SETTINGS, str(throttled), **{f"{side}_replication_throttled_rate": MUCH}
        )
        wait_until(lambda: moved(cluster), "the move")
        assert end_at(cluster, 2) == 13


def moved(cluster: InProcessCluster) -> bool:
    with cluster.client() as client:
        (row,) = describe(client, TOPIC).partitions
    return set(row.isr_nodes) == {0, 2} == set(row.replica_nodes)


def limits(cluster: InProcessCluster, side: str) -> list[float | None]:
    brokers: list[Any] = [running.broker.parts for running in cluster.brokers]
    return [getattr(broker, f"{side}_throttle")._rate.limit for broker in brokers]


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_rate_of_the_cluster_holds_for_brokers_without_one_of_their_own(
    in_process_cluster: Callable[..., InProcessCluster], side: str
) -> None:
    rate = f"{side}_replication_throttled_rate"
    with in_process_cluster(2) as cluster:
        alter(cluster, BROKER_SETTINGS, "", **{rate: 1000})
        wait_until(lambda: limits(cluster, side) == [1000, 1000], "the rate of the cluster")
        alter(cluster, BROKER_SETTINGS, "1", **{rate: 50})
        wait_until(lambda: limits(cluster, side) == [1000, 50], "a rate of its own")
        alter(cluster, BROKER_SETTINGS, "", **{rate: 2000})
        wait_until(lambda: limits(cluster, side) == [2000, 50], "another rate of the cluster")
        alter(cluster, BROKER_SETTINGS, "1", operation=DELETE, **{rate: ""})
        wait_until(lambda: limits(cluster, side) == [2000, 2000], "the rate of the cluster again")
