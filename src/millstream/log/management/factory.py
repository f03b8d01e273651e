"""Creates and opens logs with the settings of the broker and of their topics."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import NamedTuple

from millstream.core.types import TopicPartition
from millstream.log.config import LogConfig
from millstream.log.directories.log_directory import CHECKPOINTS, LogDir
from millstream.log.partition_log import PartitionLog
from millstream.log.recovery import opening
from millstream.log.segments.open_files import OpenFiles
from millstream.log.state import LogServices


class ManagerSettings(NamedTuple):
    """Broker settings that concern all logs."""

    producer_expiration_ms: int = 24 * 3600 * 1000
    verify_transactions: bool = False
    verify_reads: bool = True
    max_open_segments: int = 1024
    max_index_bytes: int = 64 << 20
    writeback_bytes: int = 8 << 20
    flush_bytes: int = 64 << 20
    delete_delay_ms: int = 60_000  # log.segment.delete.delay.ms, for whole partitions


class LogFactory:
    """Creates the logs of one broker. `settings` may be replaced at any time."""

    def __init__(
        self,
        host: LogServices,
        settings: ManagerSettings,
        config_for: Callable[[str], LogConfig],
        clock: Callable[[], int],
    ) -> None:
        self._host = host
        self.settings = settings
        self._config_for = config_for
        self._clock = clock
        self.pool = OpenFiles(settings.max_open_segments, settings.max_index_bytes)

    def create(
        self, path: str, tp: TopicPartition, topic_id: uuid.UUID, start_offset: int
    ) -> PartitionLog:
        """Create an empty log. Raises StorageError."""
        log = PartitionLog.create(
            self._host, self.pool, path, tp, self._config_for(tp.topic),
            topic_id=topic_id, start_offset=start_offset, now_ms=self._clock(),
        )  # fmt: skip
        return self.configure(log)

    def open(self, log_dir: LogDir, path: str, tp: TopicPartition) -> PartitionLog:
        """Open the log in a directory, with the offsets of the checkpoints. Waits for the disk."""
        points, starts, watermarks, cleaned = (log_dir.checkpoints[name] for name in CHECKPOINTS)
        settings = self.settings
        log = opening.load(
            self._host, self.pool, path, tp, self._config_for(tp.topic), clean=log_dir.clean,
            power_lost=log_dir.power_lost, recovery_point=points.get(tp, 0), log_start=starts.get(tp, 0),
            now_ms=self._clock(), producer_expiration_ms=settings.producer_expiration_ms,
            verify_reads=settings.verify_reads, log_start_known=log_dir.log_starts_known,
        )  # fmt: skip
        log.restore_high_watermark(watermarks.get(tp, 0))
        log.cleaned_offset = cleaned.get(tp, -1)
        return self.configure(log)

    def configure(self, log: PartitionLog) -> PartitionLog:
        """Apply the broker's settings to a log."""
        log.producer_expiration_ms = self.settings.producer_expiration_ms
        log.verify_transactions = self.settings.verify_transactions
        return log
