"""Background work on logs: compaction, scrubbing, relocation between directories."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millstream.broker.background import BackgroundTasks
from millstream.broker.configs.storage import cleaner_settings, scrub_settings
from millstream.core.config import BrokerConfig
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.log.management.housekeeping import Housekeeping
from millstream.log.management.manager import LogManager
from millstream.ports.workers import JobRunner, NewWorker

if TYPE_CHECKING:
    from millstream.log.cleaner.background import Cleaner
    from millstream.log.directories.relocation import Relocator


class Maintenance:
    """Begins with ``start``, when clients are served. Its code is imported only then."""

    def __init__(
        self,
        config: BrokerConfig,
        logs: LogManager,
        housekeeping: Housekeeping,
        new_worker: NewWorker,
    ) -> None:
        self._config = config
        self._logs = logs
        self._housekeeping = housekeeping
        self._new_worker = new_worker
        self._cleaner_worker: JobRunner | None = None
        self.cleaner: Cleaner | None = None
        self.mover: Relocator | None = None

    def start(self, background: BackgroundTasks) -> None:
        from millstream.log.directories.relocation import Relocator
        from millstream.log.integrity.scrubber import Scrubber

        config = self._config
        self.mover = Relocator(
            self._logs,
            self._housekeeping,
            lambda: config.number("replica.alter.log.dirs.io.max.bytes.per.second"),
        )
        # In the next turn, when housekeeping runs.
        asyncio.get_running_loop().call_soon(self.mover.resume)
        scrubber = Scrubber(self._logs, lambda: scrub_settings(config), self._housekeeping.blocking)
        background.run("scrub", scrubber.run())
        if config.flag("log.cleaner.enable"):
            self._start_cleaner(background)

    def _start_cleaner(self, background: BackgroundTasks) -> None:
        from millstream.log.cleaner.background import Cleaner, cleaner_worker

        self._cleaner_worker = cleaner_worker(self._new_worker)
        self.cleaner = Cleaner(self._logs, self._cleaner_worker, cleaner_settings(self._config))
        background.run("compaction", self.cleaner.run())

    def begin_relocation(self, tp: TopicPartition, path: str) -> None:
        """Relocate a replica to another data directory; raise ApiError if that is not possible."""
        if self.mover is None:
            raise ApiError(ErrorCode.REPLICA_NOT_AVAILABLE)
        self.mover.begin(tp, path)

    def reconfigure(self) -> None:
        if self.cleaner is not None:
            self.cleaner.settings = cleaner_settings(self._config)
            self.cleaner.wake()

    def forget(self, tp: TopicPartition) -> None:
        """Drop the cleaner's state of a log that is about to be deleted."""
        if self.cleaner is not None:
            self.cleaner.forget(tp)

    def directory_failed(self, path: str) -> None:
        if self.cleaner is not None:
            self.cleaner.abort_directory(path)

    async def close(self) -> None:
        if self._cleaner_worker is not None:
            await self._cleaner_worker.close()
