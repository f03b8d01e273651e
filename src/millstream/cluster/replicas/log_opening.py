"""The logs of replicas that the image assigns to this broker: found on disk, or created."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Collection
from typing import NamedTuple

from millstream.cluster.replicas.log_configs import LogConfigs
from millstream.cluster.replicas.partition import Partition
from millstream.cluster.replicas.pending_sequences import PendingSequences
from millstream.cluster.replicas.roles import ReplicaRoles
from millstream.control.image import ClusterImage, TopicImage
from millstream.core.errors import ApiError
from millstream.core.types import TopicPartition
from millstream.log.errors import StorageError
from millstream.log.management.manager import LogManager
from millstream.log.partition_log import PartitionLog
from millstream.log.rate_limited_logging import RateLimitedLog

log = logging.getLogger("millstream.replicas")

_RETRY_S = 1.0


class _FailedCreation(NamedTuple):
    """A replica whose log could not be created, and when the last attempt was."""

    partition: Partition
    attempted_s: float


class ReplicaLogs:
    """Opens logs, and knows which replicas are offline."""

    def __init__(
        self,
        image: ClusterImage,
        logs: LogManager,
        log_configs: LogConfigs,
        pending: PendingSequences,
        roles: ReplicaRoles,
    ) -> None:
        self._image = image
        self._logs = logs
        self._log_configs = log_configs
        self._pending = pending
        self._roles = roles
        self._rate_limited = RateLimitedLog(log)
        self._offline: set[TopicPartition] = set()
        self._failed: dict[TopicPartition, _FailedCreation] = {}
        # Set while the replicas are opened for the first time.
        self.starting = False

    def open(self, topic: TopicImage, index: int) -> Partition:
        """Return a partition with its log, or without one if its directory failed.

        One failed directory must not affect the other partitions.
        """
        tp = TopicPartition(topic.name, index)
        failed = False
        try:
            opened = self._find_or_create(topic, tp)
        except ApiError as error:
            reason = error.message.removeprefix(f"{tp} is offline: ")
            if isinstance(error, StorageError) and error.temporary:
                # Rate-limited: there is one for each partition of a new topic.
                self._rate_limited.log(logging.ERROR, "offline", f"{tp} is offline: {reason}")
            else:
                log.error("%s is offline: %s", tp, reason)
            opened = None
            failed = tp not in self._logs.offline
        partition = Partition(tp, topic.topic_id, opened, self._pending)
        if failed:
            self._failed[tp] = _FailedCreation(partition, asyncio.get_running_loop().time())
        if opened is None:
            self._offline.add(tp)
        return partition

    def offline(self) -> Collection[TopicPartition]:
        """Return the assigned replicas that cannot be served, after a retry of failed creations."""
        for failed in list(self._failed.values()):
            self.retry(failed.partition)
        return self._offline

    def went_offline(self, partition: Partition) -> None:
        """Take the log from a replica whose directory failed, or that is damaged."""
        partition.log = None
        self._offline.add(partition.tp)
        partition.waiters.wake()

    def forget(self, tp: TopicPartition) -> None:
        """Drop the state of a replica that this broker no longer has."""
        self._failed.pop(tp, None)
        self._offline.discard(tp)

    def retry(self, partition: Partition) -> None:
        """Retry to create a log, or to assign its topic id, for example after a full disk."""
        tp = partition.tp
        failed = self._failed.get(tp)
        if failed is None:
            return
        topic, now_s = self._image.topics.get(tp.topic), asyncio.get_running_loop().time()
        if topic is None or topic.topic_id != partition.topic_id:
            return  # the topic was deleted, and the directory belongs to the next one
        if now_s - failed.attempted_s < _RETRY_S:
            return
        self._failed[tp] = _FailedCreation(partition, now_s)
        try:
            partition.log = self._find_or_create(topic, tp)
        except ApiError as error:
            text = f"{tp} is still offline: {error.message}"
            self._rate_limited.log(logging.ERROR, "still offline", text)
            return
        self.forget(tp)
        self._roles.assume(partition, topic)

    def _find_or_create(self, topic: TopicImage, tp: TopicPartition) -> PartitionLog | None:
        existing = self._of_this_topic(self._logs.get(tp), topic)
        if existing is None:
            return self._create(topic, tp)
        existing.assign_topic_id(uuid.UUID(bytes=topic.topic_id))
        existing.update_config(self._log_configs.of(topic.name))
        return existing

    def _of_this_topic(
        self, existing: PartitionLog | None, topic: TopicImage
    ) -> PartitionLog | None:
        """Move away the log of an earlier topic, deleted while this broker was down."""
        if (
            existing is None
            or existing.topic_id is None
            or existing.topic_id.bytes == topic.topic_id
        ):
            return existing
        log.warning(
            "%s belongs to an earlier topic of the same name and is renamed to -stray",
            existing.directory,
        )
        self._logs.mark_stray(existing.tp)
        return None

    def _create(self, topic: TopicImage, tp: TopicPartition) -> PartitionLog | None:
        """Create an empty log; at startup only if no directory is offline.

        The log may be in an offline directory, and an empty second one would hide it.
        """
        if self.starting:
            offline = [log_dir.path for log_dir in self._logs.dirs.values() if not log_dir.online]
            if offline:
                log.error("%s is offline: it may be in %s, which failed", tp, ", ".join(offline))
                return None
            log.warning("%s has no directory and starts empty", tp)
        return self._logs.create(tp, uuid.UUID(bytes=topic.topic_id))
