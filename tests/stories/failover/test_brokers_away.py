"""Broker processes that are killed, frozen or lose a disk while the cluster continues, and their
state after the restart.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millstream.log.directories import file_names
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millstream.wire.messages.describe_cluster import DescribeClusterRequest
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millstream.wire.records.batch import Record, build_batch
from support.clusters import ProcessCluster, describe
from support.processes import complaints, wait_until
from support.raw import Closed, RawClient, fetch_request, produce_request

Processes = Callable[..., ProcessCluster]
TOPIC = "orders"


def state(cluster: ProcessCluster, node: int, topic: str, index: int = 0) -> Any:
    """Return a partition as one broker describes it."""
    with RawClient(cluster.bootstrap_of(node)) as client:
        (row,) = [p for p in describe(client, topic).partitions if p.partition_index == index]
    return row


def write(cluster: ProcessCluster, node: int, topic: str, index: int = 0, size: int = 10) -> int:
    """Write one record with acks=all and return the error code."""
    batch = build_batch([Record(0, time.time_ns() // 1_000_000, None, bytes(size), ())])
    with RawClient(cluster.bootstrap_of(node)) as client:
        answer = client.call(produce_request(topic, index, batch, acks=-1), 9)
    return int(answer.responses[0].partition_responses[0].error_code)


def written_through(cluster: ProcessCluster, node: int, topic: str, index: int = 0) -> bool:
    """Return whether the leader that this broker names accepts a record."""
    try:
        leader = state(cluster, node, topic, index).leader_id
        return leader >= 0 and write(cluster, leader, topic, index) == 0
    except (OSError, Closed):
        return False


def end_of(cluster: ProcessCluster, node: int, topic: str) -> int:
    """Return the high watermark of a partition from its leader."""
    with RawClient(cluster.bootstrap_of(node)) as client:
        answer = client.call(fetch_request(topic), 12)
    return int(answer.responses[0].partitions[0].high_watermark)


def controller(cluster: ProcessCluster, node: int) -> int:
    with RawClient(cluster.bootstrap_of(node)) as client:
        return int(client.call(DescribeClusterRequest(), 0).controller_id)


def test_returning_broker_drops_deleted_topics_and_leads_again(
    process_cluster: Processes,
) -> None:
    with process_cluster(3, {"leader.imbalance.check.interval.seconds": 1}) as cluster:
        cluster.create_topic("deleted", at={0: (1, 0)})
        cluster.create_topic("moved", at={0: (1, 2)})
        cluster.create_topic("kept", at={0: (1, 2, 0)})
        assert [write(cluster, 1, topic) for topic in ("deleted", "moved", "kept")] == [0, 0, 0]
        data = cluster.brokers[1].data_dir
        assert (data / "deleted-0").is_dir() and (data / "moved-0").is_dir()
        cluster.brokers[1].kill()
        wait_until(lambda: state(cluster, 0, "kept").leader_id == 2, "another leader")
        wait_until(lambda: state(cluster, 0, "moved").leader_id == 2, "another leader")
        with cluster.client(0) as client:
            request = DeleteTopicsRequest(
                topics=[DeleteTopicState(name="deleted")], timeout_ms=10_000
            )
            assert client.call(request, 6).responses[0].error_code == 0
        cluster.reassign("moved", {0: (2, 0)})
        wait_until(lambda: set(state(cluster, 0, "moved").isr_nodes) == {0, 2}, "the move")
        cluster.create_topic("deleted", at={0: (0, 2)})  # another topic of the same name
        assert write(cluster, 0, "deleted") == 0

        cluster.brokers[1].start()
        cluster.reassign("deleted", {0: (0, 1, 2)})
        wait_until(
            lambda: set(state(cluster, 0, "deleted").isr_nodes) == {0, 1, 2},
            "the new topic in sync",
        )
        wait_until(lambda: not (data / "moved-0").exists(), "the moved replica to go")
        wait_until(
            lambda: state(cluster, 0, "kept").leader_id == 1, "the preferred leader to lead again"
        )
        assert write(cluster, 1, "kept") == 0
        assert complaints(cluster.logs()) == []


def test_partitions_of_a_failed_directory_get_another_leader(
    process_cluster: Processes, tmp_path: Path
) -> None:
    """The leader's directory vanishes; the other directory of the same broker continues."""

    def two(node: int) -> dict[str, str]:
        return {"log.dirs": ",".join(str(tmp_path / f"disk-{node}-{which}") for which in "ab")}

    with process_cluster(3, each=two) as cluster:
        cluster.create_topic(TOPIC, at={0: (1, 0, 2), 1: (1, 0, 2)}, segment_bytes=1024 * 1024)
        assert [write(cluster, 1, TOPIC, index) for index in (0, 1)] == [0, 0]
        directories = {path.name: path.parent for path in tmp_path.glob(f"disk-1-*/{TOPIC}-*")}
        assert directories[f"{TOPIC}-0"] != directories[f"{TOPIC}-1"], "one partition on each disk"
        lost = directories[f"{TOPIC}-0"]
        shutil.rmtree(lost)

        def handed_over() -> bool:
            # A new segment cannot be created in a missing directory.
            return (
                state(cluster, 0, TOPIC).leader_id != 1
                or write(cluster, 1, TOPIC, size=600_000) < 0
            )

        wait_until(handed_over, "another leader")
        assert state(cluster, 0, TOPIC).leader_id == 0
        wait_until(lambda: set(state(cluster, 0, TOPIC).isr_nodes) == {0, 2}, "the others in sync")
        wait_until(lambda: written_through(cluster, 0, TOPIC), "writes to go on")
        other = state(cluster, 0, TOPIC, 1)
        assert (other.leader_id, set(other.isr_nodes)) == (1, {0, 1, 2})
        assert write(cluster, 1, TOPIC, 1) == 0

        lost.mkdir(exist_ok=True)
        (lost / file_names.ACCEPT_LOSS).touch()  # an empty disk replaces it, on purpose
        cluster.brokers[1].restart(kill=True)
        for index in (0, 1):
            wait_until(
                lambda at=index: len(state(cluster, 0, TOPIC, at).isr_nodes) == 3, "all in sync"
            )  # type: ignore[misc]
        assert complaints(cluster.logs()) == []


def test_frozen_controller_is_replaced_and_follows_after_it_resumes(
    process_cluster: Processes,
) -> None:
    """Its session expires but its connections stay open: the others must not wait for its
    responses.
    """
    with process_cluster(3, {"auto.leader.rebalance.enable": "false"}) as cluster:
        first = controller(cluster, 0)
        second, third = (node for node in range(3) if node != first)
        cluster.create_topic(TOPIC, at={0: (first, second, third)}, min_insync_replicas=2)
        assert write(cluster, first, TOPIC) == 0
        cluster.brokers[first].pause()
        try:
            wait_until(lambda: controller(cluster, second) not in (first, -1), "another controller")
            wait_until(
                lambda: state(cluster, second, TOPIC).leader_id not in (first, -1), "another leader"
            )
            wait_until(lambda: written_through(cluster, second, TOPIC), "writes to go on")
            leader = state(cluster, third, TOPIC).leader_id
            before = end_of(cluster, leader, TOPIC)
        finally:
            cluster.brokers[first].resume()
        wait_until(lambda: len(state(cluster, second, TOPIC).isr_nodes) == 3, "all in sync")
        wait_until(lambda: controller(cluster, first) != first, "the former controller to know")
        assert controller(cluster, first) == controller(cluster, second)
        assert end_of(cluster, leader, TOPIC) >= before >= 2
        assert complaints(cluster.logs()) == []


def test_allowing_unclean_elections_brings_a_partition_back(process_cluster: Processes) -> None:
    with process_cluster(3) as cluster:
        cluster.create_topic(TOPIC, at={0: (1, 2)}, min_insync_replicas=1)
        cluster.brokers[2].kill()
        wait_until(
            lambda: list(state(cluster, 0, TOPIC).isr_nodes) == [1], "the follower to be missed"
        )
        assert write(cluster, 1, TOPIC) == 0
        cluster.brokers[1].kill()
        wait_until(lambda: state(cluster, 0, TOPIC).leader_id == -1, "the leader to be missed")
        cluster.brokers[2].start()
        assert state(cluster, 2, TOPIC).leader_id == -1, "it lacks a record"
        unclean = AlterableConfig(
            name="unclean.leader.election.enable", config_operation=0, value="true"
        )
        resource = AlterConfigsResource(resource_type=2, resource_name=TOPIC, configs=[unclean])
        with cluster.client(0) as client:
            (row,) = client.call(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
        assert row.error_code == 0
        wait_until(lambda: written_through(cluster, 0, TOPIC), "a leader that lacks a record")
        assert state(cluster, 0, TOPIC).leader_id == 2
