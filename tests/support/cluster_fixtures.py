"""Clusters on a real ZooKeeper, one server for all tests of a session.

Tests that use them are skipped where there is no Java or there are no jars.

- ``process_cluster(n, settings)`` is a context manager of n broker processes, to kill and restart.
- ``in_process_cluster(n, settings)`` runs the brokers inside this process, to inspect them.
- ``shared_cluster`` is an in-process cluster for all tests of a file.

Each cluster has its own chroot and directories (``support/clusters.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.local.zookeeper import LocalZooKeeper
from support.clusters import TICK_MS, InProcessCluster, ProcessCluster
from support.zookeeper import skip_without_zookeeper

Processes = Callable[..., ProcessCluster]
InProcess = Callable[..., InProcessCluster]


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalZooKeeper]:
    skip_without_zookeeper()
    server = LocalZooKeeper(tmp_path_factory.mktemp("zookeeper"), tick_ms=TICK_MS)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def process_cluster(zookeeper: LocalZooKeeper, tmp_path: Path) -> Processes:
    def make(*arguments: Any, **more: Any) -> ProcessCluster:
        return ProcessCluster(tmp_path, zookeeper, *arguments, **more)

    return make


@pytest.fixture(scope="module")
def shared_cluster(
    zookeeper: LocalZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[InProcessCluster]:
    """Three brokers in three racks, for tests that keep to topics, groups and ids of their own and
    stop nobody.
    """
    settings = {
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        "auto.leader.rebalance.enable": "false",
        "offsets.commit.timeout.ms": 1000,
    }
    directory = tmp_path_factory.mktemp("shared-cluster")
    racks = ("north", "east", "south")
    with InProcessCluster(
        directory, zookeeper, 3, settings, each=lambda node: {"broker.rack": racks[node]}
    ) as cluster:
        yield cluster


@pytest.fixture
def in_process_cluster(zookeeper: LocalZooKeeper, tmp_path: Path) -> InProcess:
    def make(*arguments: Any, **more: Any) -> InProcessCluster:
        return InProcessCluster(tmp_path, zookeeper, *arguments, **more)

    return make
