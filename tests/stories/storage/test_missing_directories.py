"""A broker of a cluster whose data directory is not mounted: ZooKeeper knows the id of the missing
one (KIP-858).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.broker.app import StartError
from support.clusters import InProcessCluster

InProcess = Callable[..., InProcessCluster]


def test_empty_directory_is_refused_if_zookeeper_knows_the_missing_one(
    in_process_cluster: InProcess,
) -> None:
    with in_process_cluster(2) as cluster:
        cluster.create_topic("orders", at={0: (0, 1)})
        broker = cluster.brokers[1]
        (data,) = map(Path, broker.run(lambda: list(broker.broker.parts.logs.dirs)))
        broker.stop()
        unmounted = data.with_name("unmounted")
        shutil.move(data, unmounted)
        data.mkdir()
        with pytest.raises(
            StartError, match=rf"{data.name} is empty, .* is missing: is its disk mounted"
        ):
            broker.start()
        shutil.rmtree(data)
        shutil.move(unmounted, data)
        broker.start()
        assert cluster.in_sync("orders") >= 1
