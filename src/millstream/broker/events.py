"""Connects the events of replicas and logs with the parts of a broker that handle them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from millstream.broker.coordinators import Coordinators
from millstream.broker.maintenance import Maintenance
from millstream.cluster.replicas.manager import ReplicaManager
from millstream.cluster.replicas.partition import Partition
from millstream.core.types import TopicPartition
from millstream.log.management.manager import LogDir, LogManager

logger = logging.getLogger("millstream.broker")


class ReplicaListeners:
    """Passes ``cluster.events.ReplicaEvents`` to the coordinators and to the cleaner."""

    def __init__(self, coordinators: Coordinators, maintenance: Maintenance) -> None:
        self._coordinators = coordinators
        self._maintenance = maintenance

    def led(self, partition: Partition) -> None:
        self._coordinators.led(partition)

    def lost(self, tp: TopicPartition) -> None:
        self._coordinators.lost(tp)

    def gone(self, tp: TopicPartition) -> None:
        self._maintenance.forget(tp)


class LogListeners:
    """Passes failures of directories to the replicas and to the cleaner."""

    def __init__(
        self,
        logs: LogManager,
        replicas: ReplicaManager,
        maintenance: Maintenance,
        fail: Callable[[str], None],
    ) -> None:
        self._logs = logs
        self._replicas = replicas
        self._maintenance = maintenance
        self._fail = fail

    def directory_failed(self, log_dir: LogDir, partitions: list[TopicPartition]) -> None:
        logger.error(
            "the data directory %s is offline with %d partitions: %s",
            log_dir.path,
            len(partitions),
            log_dir.reason,
        )
        self._replicas.went_offline(partitions)
        self._maintenance.directory_failed(log_dir.path)
        if not self._logs.online_dirs():
            self._fail("every data directory has failed; the log above says why")
