"""What Metadata tells of replicas that whoever asks cannot reach: those of dead brokers, and of
brokers without the listener.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from millstream.core.errors import ErrorCode as E
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from support.clusters import InProcessCluster
from support.processes import wait_until
from support.raw import RawClient

TOPIC = "told"


def partitions(bootstrap: str, version: int) -> list[Any]:
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
    with RawClient(bootstrap) as client:
        (topic,) = client.call(asked, version).topics
    return sorted(topic.partitions, key=lambda row: row.partition_index)


def test_version_0_leaves_out_replicas_of_dead_brokers(
    in_process_cluster: Callable[..., InProcessCluster],
) -> None:
    """Its clients look for the address of every replica among the brokers."""
    with in_process_cluster(2, {"min.insync.replicas": 1}) as cluster:
        cluster.create_topic(TOPIC, at={0: (0, 1)})
        bootstrap = cluster.bootstrap_of(0)
        # A busy machine may keep a broker from its session for a moment.
        wait_until(lambda: _told(bootstrap, 0) == (0, 0, [0, 1]), "both replicas")
        cluster.brokers[1].stop()
        wait_until(lambda: partitions(bootstrap, 5)[0].offline_replicas == [1], "the broker to go")
        (row,) = partitions(bootstrap, 0)
        assert (row.error_code, row.leader_id, row.replica_nodes, row.isr_nodes) == (
            E.REPLICA_NOT_AVAILABLE,
            0,
            [0],
            [0],
        )
        assert _told(bootstrap, 1) == (0, 0, [0, 1])


def _told(bootstrap: str, version: int) -> tuple[int, int, list[int]]:
    (row,) = partitions(bootstrap, version)
    return row.error_code, row.leader_id, list(row.replica_nodes)


def test_a_leader_without_the_listener_is_none(
    in_process_cluster: Callable[..., InProcessCluster],
) -> None:
    more = {
        "listeners": "PLAINTEXT://127.0.0.1:0,OTHER://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT",
    }
    with in_process_cluster(2, each=lambda node: more if node == 0 else {}) as cluster:
        cluster.create_topic(TOPIC, at={0: (0, 1), 1: (1, 0)})
        (other,) = [one for one in cluster.brokers[0].broker.bound if one.name == "OTHER"]
        bootstrap = f"{other.host}:{other.port}"
        for version, code in (
            (12, E.LISTENER_NOT_FOUND),
            (6, E.LISTENER_NOT_FOUND),
            (5, E.LEADER_NOT_AVAILABLE),
        ):
            here, there = partitions(bootstrap, version)
            assert (here.error_code, here.leader_id, here.offline_replicas) == (0, 0, [1])
            assert (there.error_code, there.leader_id, there.replica_nodes) == (code, -1, [1, 0])
        here, there = partitions(bootstrap, 0)
        assert (here.error_code, here.leader_id, here.replica_nodes) == (
            E.REPLICA_NOT_AVAILABLE,
            0,
            [0],
        )
        assert (there.error_code, there.leader_id, there.replica_nodes) == (
            E.LEADER_NOT_AVAILABLE,
            -1,
            [0],
        )
        assert [row.error_code for row in partitions(cluster.bootstrap_of(0), 12)] == [0, 0]


def test_every_broker_tells_of_replicas_on_a_failed_directory(
    in_process_cluster: Callable[..., InProcessCluster], tmp_path: Path
) -> None:
    directories = [str(tmp_path / name) for name in ("a", "b")]
    settings = {"min.insync.replicas": 1}
    with in_process_cluster(
        3, settings, each=lambda node: {"log.dirs": ",".join(directories)} if node == 1 else {}
    ) as cluster:
        cluster.create_topic(TOPIC, at={0: (0, 1), 1: (0, 1)})
        failing: Any = cluster.brokers[1].broker.parts
        (lost,) = [
            row
            for row in (0, 1)
            if failing.replicas.replica(TOPIC, row).log.log_dir == directories[0]
        ]
        cluster.brokers[1].run(
            lambda: failing.logs.failures.fail_directory(directories[0], "broken")
        )
        wanted = [[1] if index == lost else [] for index in (0, 1)]
        for node in range(3):
            bootstrap = cluster.bootstrap_of(node)
            wait_until(lambda at=bootstrap: offline(at) == wanted, f"broker {node} to tell")  # type: ignore[misc]
        cluster.brokers[1].stop()
        cluster.brokers[1].start()
        for node in range(3):
            bootstrap = cluster.bootstrap_of(node)
            wait_until(lambda at=bootstrap: offline(at) == [[], []], f"broker {node} to tell")  # type: ignore[misc]


def offline(bootstrap: str) -> list[list[int]]:
    return [list(row.offline_replicas) for row in partitions(bootstrap, 12)]
