"""One broker of a cluster has a full disk: partitions are led, and stay writable, where there is
room.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from millstream.core.errors import ErrorCode
from millstream.ports.files import Buffer, File, RealFile, RealFiles
from millstream.wire.records.batch import Record, build_batch
from support.clusters import InProcessCluster, describe
from support.processes import wait_until
from support.raw import RawClient, fetch_request, produce_request

InProcess = Callable[..., InProcessCluster]
TOPIC = "orders"
# A replica that lags leaves the ISR only because its disk is full.
SETTINGS = {"replica.lag.time.max.ms": 3_600_000, "auto.leader.rebalance.enable": "false"}


class Disk(RealFiles):
    """A disk that can be full."""

    full = False

    def check(self, path: str) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def open(self, path: str, *, create: bool = False) -> File:
        if create and not os.path.exists(path):
            self.check(path)
        return DiskFile(self, path, create)

    def makedirs(self, path: str) -> None:
        self.check(path)
        super().makedirs(path)

    def write_bytes(self, path: str, data: Buffer) -> None:
        self.check(path)
        super().write_bytes(path, data)

    def write_atomic(self, path: str, data: Buffer) -> None:
        self.check(path)
        super().write_atomic(path, data)


class DiskFile(RealFile):
    __slots__ = ("_disk",)

    def __init__(self, disk: Disk, path: str, create: bool) -> None:
        self._disk = disk
        super().__init__(path, create=create)

    def append(self, views: Sequence[Buffer]) -> None:
        self._disk.check(self.path)
        super().append(views)


def disks(cluster: InProcessCluster) -> list[Disk]:
    """Give every broker a disk of its own. For a cluster that has not started."""
    made = [Disk() for _ in cluster.brokers]
    for broker, disk in zip(cluster.brokers, made, strict=True):
        broker._files = disk
    return made


def partition(cluster: InProcessCluster, index: int) -> Any:
    with cluster.client() as client:
        return next(
            row for row in describe(client, TOPIC).partitions if row.partition_index == index
        )


def write(cluster: InProcessCluster, node: int, index: int) -> int:
    batch = build_batch([Record(0, time.time_ns() // 1_000_000, None, b"value", ())])
    with RawClient(cluster.bootstrap_of(node)) as client:
        answer = client.call(produce_request(TOPIC, index, batch, acks=-1), 9)
    return int(answer.responses[0].partition_responses[0].error_code)


def test_partitions_of_a_full_disk_are_led_elsewhere_and_stay_writable(
    in_process_cluster: InProcess,
) -> None:
    cluster = in_process_cluster(3, SETTINGS)
    full = disks(cluster)[1]
    with cluster:
        cluster.create_topic(
            TOPIC, at={0: (1, 0, 2), 1: (0, 1, 2), 2: (2, 1, 0)}, min_insync_replicas=2
        )
        assert [write(cluster, node, index) for index, node in enumerate((1, 0, 2))] == [0, 0, 0]
        full.full = True
        assert write(cluster, 1, 0) == ErrorCode.KAFKA_STORAGE_ERROR
        for index, leader in ((0, 0), (1, 0), (2, 2)):
            wait_until(
                lambda at=index: set(partition(cluster, at).isr_nodes) == {0, 2},  # type: ignore[misc]
                "the full replica to leave the ISR",
            )
            assert partition(cluster, index).leader_id == leader
            wait_until(lambda at=index, to=leader: write(cluster, to, at) == 0, "writes to go on")  # type: ignore[misc]

        full.full = False
        for index in range(3):
            wait_until(
                lambda at=index: set(partition(cluster, at).isr_nodes) == {0, 1, 2},  # type: ignore[misc]
                "the replica to be back in the ISR",
            )
        cluster.move_leader(TOPIC, 0, to=1)
        assert write(cluster, 1, 0) == 0


def test_write_that_waits_for_a_full_follower_is_acknowledged(
    in_process_cluster: InProcess,
) -> None:
    """The follower finds its disk full when it fetches the record, which is in the leader's log by
    then.
    """
    cluster = in_process_cluster(3, SETTINGS)
    full = disks(cluster)[1]
    with cluster:
        cluster.create_topic(TOPIC, at={0: (0, 1, 2)}, min_insync_replicas=2)
        assert write(cluster, 0, 0) == 0
        full.full = True
        assert write(cluster, 0, 0) == 0
        assert set(partition(cluster, 0).isr_nodes) == {0, 2}


def test_leader_stays_while_no_replica_has_room(in_process_cluster: InProcess) -> None:
    cluster = in_process_cluster(2, SETTINGS)
    made = disks(cluster)
    with cluster:
        cluster.create_topic(TOPIC, at={0: (0, 1)})
        assert write(cluster, 0, 0) == 0
        for disk in made:
            disk.full = True
        for broker in cluster.brokers:
            for path in list(broker.broker.parts.logs.dirs):
                broker.run(
                    lambda logs=broker.broker.parts.logs, at=path: logs.full.write_rejected(at)
                )  # type: ignore[misc]
        for broker in cluster.brokers:
            wait_until(
                lambda of=broker: set(of.broker.image.full) == {0, 1}, "both to be known as full"
            )  # type: ignore[misc]
        leader = partition(cluster, 0).leader_id
        assert leader in (0, 1)
        assert write(cluster, leader, 0) == ErrorCode.KAFKA_STORAGE_ERROR
        with RawClient(cluster.bootstrap_of(leader)) as client:
            (row,) = client.call(fetch_request(TOPIC), 12).responses[0].partitions
        assert (row.error_code, row.high_watermark) == (0, 1), "reads go on"

        for disk in made:
            disk.full = False
        wait_until(lambda: write(cluster, cluster.leader(TOPIC), 0) == 0, "writes to go on")
        wait_until(lambda: cluster.in_sync(TOPIC) == 2, "both in sync")
