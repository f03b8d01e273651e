"""The logs of a broker by partition: those in service, and the reasons of those that are not."""

from __future__ import annotations

import logging

from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.log.directories.log_directory import LogDir
from millstream.log.partition_log import PartitionLog

logger = logging.getLogger("millstream.log.manager")


class LogRegistry:
    """`logs` are in service, `offline` has the reason of every other partition."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.offline: dict[TopicPartition, str] = {}
        self.isolated: dict[TopicPartition, LogDir] = {}  # damaged, in a directory that works

    def get(self, tp: TopicPartition) -> PartitionLog | None:
        """Return the log, or None if there is none.

        Raise ApiError(KAFKA_STORAGE_ERROR) if it is offline.
        """
        log = self.logs.get(tp)
        if log is None and tp in self.offline:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{tp} is offline: {self.offline[tp]}")
        return log

    def in_directory(self, path: str) -> list[PartitionLog]:
        return [log for log in self.logs.values() if log.log_dir == path]

    def isolate(self, log_dir: LogDir, tp: TopicPartition, reason: str) -> None:
        """Record that a partition is offline on its own."""
        logger.error("the partition %s stays offline: %s", tp, reason)
        self.offline[tp] = reason
        self.isolated[tp] = log_dir
