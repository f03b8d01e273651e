"""A power cut removed the file with a log's topic id, and the disk is full.

The replica waits, and is served when there is room.
"""

from __future__ import annotations

import asyncio
import uuid

import pytest

from millstream.cluster.replicas import log_opening
from millstream.cluster.replicas.log_configs import LogConfigs
from millstream.cluster.replicas.manager import ReplicaManager
from millstream.control.image import ClusterImage, TopicImage
from millstream.control.znodes import PartitionState
from millstream.core.config import BrokerConfig
from millstream.core.types import TopicPartition
from millstream.log.config import LogConfig
from millstream.log.directories import file_names
from millstream.log.management.housekeeping import Housekeeping
from millstream.log.management.manager import LogManager
from millstream.ports.clock import SystemClock
from millstream.sim.world.disk import SimDisk, no_space
from millstream.wire.records.batch import Record, build_batch

TP = TopicPartition("orders", 0)
TOPIC_ID = uuid.UUID(int=1)
HERE, OTHER = 1, 2
BEFORE, NOW = 3, 4  # leader epochs


def opened(disk: SimDisk) -> LogManager:
    logs = LogManager(disk, ["/a"], config_for=lambda topic: LogConfig(), clock=lambda: 0)
    logs.open()
    list(logs.load())
    return logs


def with_a_nameless_log() -> SimDisk:
    """A directory with a log that has a record of an earlier epoch, and no topic id."""
    disk = SimDisk(1)
    logs = opened(disk)
    logs.identify("cluster", HERE)
    log = logs.create(TP, TOPIC_ID)
    records = build_batch([Record(0, 0, None, b"v")])
    log.append(memoryview(bytearray(records)), leader_epoch=BEFORE, now_ms=0)
    disk.kill()
    disk.unlink(f"/a/{file_names.directory_name(TP)}/{file_names.PARTITION_METADATA}")
    return disk


@pytest.mark.parametrize("replicas", [(HERE,), (HERE, OTHER)])
def test_a_log_gets_its_topic_id_when_there_is_room(
    replicas: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_opening, "_RETRY_S", 0.0)

    async def story() -> None:
        disk = with_a_nameless_log()
        logs, image = opened(disk), ClusterImage()
        state = PartitionState(HERE, NOW, replicas)
        image.topics[TP.topic] = TopicImage(TP.topic, TOPIC_ID.bytes, {0: replicas}, {0: state})
        config = BrokerConfig(static={})
        manager = ReplicaManager(
            HERE,
            image,
            config,
            logs,
            Housekeeping(logs),
            SystemClock(),
            log_configs=LogConfigs(image, config),
        )
        disk.fault = lambda what, path: (
            no_space(path) if file_names.PARTITION_METADATA in path else None
        )
        await manager.hosting.load()
        assert list(manager.replica_logs.offline()) == [TP]
        assert manager.replica(*TP).log is None

        disk.fault = lambda what, path: None
        assert list(manager.replica_logs.offline()) == []
        log = manager.leader(*TP).online_log
        assert (log.topic_id, log.log_end_offset) == (TOPIC_ID, 1)
        # Followers of the epochs in between learn correctly where it starts.
        assert (log.epochs.epochs, log.epochs.starts) == ([BEFORE, NOW], [0, 1])

    asyncio.run(story())
