"""AlterReplicaLogDirs in a cluster: followers move between the data directories of their broker as
leaders do, while records come and leaders change; a replica that is not there yet is made where
it was asked for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from millstream.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millstream.wire.records.batch import Record, build_batch
from support.clusters import InProcessCluster
from support.processes import wait_until
from support.raw import Closed, produce_request

TOPIC = "moved"
REPLICA_NOT_AVAILABLE, UNKNOWN_TOPIC, LOG_DIR_NOT_FOUND = 9, 3, 57


def two_directories(tmp_path: Path) -> Callable[[int], dict[str, object]]:
    return lambda node: {"log.dirs": ",".join(directories(tmp_path, node))}


def directories(tmp_path: Path, node: int) -> list[str]:
    return [str(tmp_path / f"data-{node}-{name}") for name in ("a", "b")]


def move(cluster: InProcessCluster, node: int, path: str, topic: str = TOPIC) -> int:
    """The error code."""
    wanted = AlterReplicaLogDir(
        path=path, topics=[AlterReplicaLogDirTopic(name=topic, partitions=[0])]
    )
    with cluster.client(node) as client:
        answer = client.call(AlterReplicaLogDirsRequest(dirs=[wanted]), 2)
    return int(answer.results[0].partitions[0].error_code)


def log_of(cluster: InProcessCluster, node: int) -> Any:
    broker: Any = cluster.brokers[node].broker.parts
    partition = broker.replicas.partitions.get(TOPIC, {}).get(0)
    return partition.log if partition is not None else None


def other_directory(tmp_path: Path, cluster: InProcessCluster, node: int) -> str:
    (other,) = [
        path for path in directories(tmp_path, node) if path != log_of(cluster, node).log_dir
    ]
    return other


@contextmanager
def producing(cluster: InProcessCluster) -> Iterator[list[bytes]]:
    """Records come all the time; those that were acknowledged."""
    acknowledged: list[bytes] = []
    stop = threading.Event()

    def produce() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            value = b"%d." % number + bytes(2000)
            leader = cluster.leader(TOPIC)
            if leader < 0:
                time.sleep(0.01)
                continue
            records = build_batch([Record(0, time.time_ns() // 1_000_000, None, value, ())])
            try:
                with cluster.client(leader) as client:
                    answer = client.call(produce_request(TOPIC, 0, records, acks=-1), 9)
            except (OSError, Closed):
                continue
            if answer.responses[0].partition_responses[0].error_code == 0:
                acknowledged.append(value)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield acknowledged
    finally:
        stop.set()
        thread.join()


def raw(cluster: InProcessCluster, node: int) -> bytes:
    """All batches of a replica."""

    def read() -> bytes:
        log = log_of(cluster, node)
        parts, offset = [], log.log_start_offset
        while offset < log.log_end_offset:
            found = log.read(offset, 1 << 20, upto=log.log_end_offset, may_block=True)
            parts.append(found.slice.read())
            offset = found.end_offset
        return b"".join(parts)

    return cluster.brokers[node].run(read)  # type: ignore[no-any-return]


def test_followers_move_under_load_and_leaders_change_meanwhile(
    in_process_cluster: Callable[..., InProcessCluster], tmp_path: Path
) -> None:
    settings = {"auto.leader.rebalance.enable": "false"}
    with in_process_cluster(3, settings, each=two_directories(tmp_path)) as cluster:
        cluster.create_topic(TOPIC, at={0: (0, 1, 2)}, internal_segment_bytes=100_000)
        with producing(cluster) as acknowledged:
            wait_until(lambda: len(acknowledged) > 50, "records")
            for leader in (1, 2, 0):
                targets = {node: other_directory(tmp_path, cluster, node) for node in range(3)}
                for node, path in targets.items():
                    assert move(cluster, node, path) == 0
                cluster.move_leader(TOPIC, 0, leader)
                for node, path in targets.items():
                    wait_until(lambda n=node, at=path: log_of(cluster, n).log_dir == at, "the move")  # type: ignore[misc]
                enough = len(acknowledged) + 30
                wait_until(lambda n=enough: len(acknowledged) > n, "more records")  # type: ignore[misc]
        wait_until(lambda: cluster.in_sync(TOPIC) == 3, "all replicas")
        wait_until(
            lambda: len({log_of(cluster, n).log_end_offset for n in range(3)}) == 1, "the same end"
        )
        replicas = [raw(cluster, node) for node in range(3)]
        assert replicas[0] == replicas[1] == replicas[2]
        assert all(value in replicas[0] for value in acknowledged)
        for node in range(3):
            wait_until(
                lambda n=node: not cluster.brokers[n].broker.parts.logs.moves.left_behind,
                "old directories to go",
            )  # type: ignore[misc]
            assert (
                sum((Path(path) / f"{TOPIC}-0").exists() for path in directories(tmp_path, node))
                == 1
            )


def test_a_replica_is_made_where_it_was_asked_for(
    in_process_cluster: Callable[..., InProcessCluster], tmp_path: Path
) -> None:
    """As kafka-reassign-partitions.sh does it with log_dirs: first the directory,
    then the replica.
    """
    with in_process_cluster(
        2, {"min.insync.replicas": 1}, each=two_directories(tmp_path)
    ) as cluster:
        cluster.create_topic(TOPIC, at={0: (0,)})
        wanted = directories(tmp_path, 1)[1]
        assert move(cluster, 1, wanted) == REPLICA_NOT_AVAILABLE
        assert move(cluster, 1, wanted, "nothing") == UNKNOWN_TOPIC
        assert move(cluster, 1, str(tmp_path)) == LOG_DIR_NOT_FOUND
        cluster.reassign(TOPIC, {0: [0, 1]})
        wait_until(lambda: log_of(cluster, 1) is not None, "the replica")
        assert log_of(cluster, 1).log_dir == wanted
        assert move(cluster, 1, wanted) == 0  # it is there


def limit_copies(cluster: InProcessCluster, node: str, rate: int) -> None:
    config = AlterableConfig(
        name="replica.alter.log.dirs.io.max.bytes.per.second", config_operation=0, value=str(rate)
    )
    resource = AlterConfigsResource(resource_type=4, resource_name=node, configs=[config])
    with cluster.client() as client:
        (row,) = client.call(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
    assert row.error_code == 0, row


def test_copies_keep_to_the_rate_of_the_operator(
    in_process_cluster: Callable[..., InProcessCluster], tmp_path: Path
) -> None:
    with in_process_cluster(2, each=two_directories(tmp_path)) as cluster:
        cluster.create_topic(TOPIC, at={0: (0, 1)})
        records = build_batch([Record(0, time.time_ns() // 1_000_000, None, bytes(500_000), ())])
        with cluster.client(0) as client:
            for _ in range(6):
                client.call(produce_request(TOPIC, 0, records, acks=-1), 9)
        movers: list[Any] = [
            cluster.brokers[node].broker.parts.maintenance.mover for node in range(2)
        ]
        limit_copies(cluster, "", 1)
        limit_copies(cluster, "0", 1 << 40)
        wait_until(lambda: [m._max_bytes_per_s() for m in movers] == [1 << 40, 1], "the rates")
        for node in range(2):
            assert move(cluster, node, other_directory(tmp_path, cluster, node)) == 0
        wait_until(
            lambda: not cluster.brokers[0].broker.parts.logs.futures,
            "the broker with a rate of its own",
        )
        assert 0 < next(iter(cluster.brokers[1].broker.parts.logs.futures.values())).size < 500_000
        limit_copies(cluster, "", 1 << 40)
        wait_until(lambda: not cluster.brokers[1].broker.parts.logs.futures, "the other one")
