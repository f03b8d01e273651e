"""Makes the replicas on this broker match the image: opened, reconfigured, and removed.

This happens in slices that are short enough for the event loop to keep responding.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from millstream.cluster.events import ReplicaEvents
from millstream.cluster.membership import adoption
from millstream.cluster.replicas.log_configs import LogConfigs
from millstream.cluster.replicas.log_opening import ReplicaLogs
from millstream.cluster.replicas.partition import Partition
from millstream.cluster.replicas.roles import ReplicaRoles, is_outdated
from millstream.control.image import Change, ClusterImage, TopicImage
from millstream.core.errors import ApiError
from millstream.core.types import TopicPartition
from millstream.log.management.manager import LogManager

log = logging.getLogger("millstream.replicas")

# Maximum time that work on many partitions may hold the event loop.
_SLICE_S = 0.004

# By topic and partition index.
HostedPartitions = dict[str, dict[int, Partition]]


class ReplicaHosting:
    """Adds partitions to those hosted here and removes them, as the image changes."""

    def __init__(
        self,
        node_id: int,
        image: ClusterImage,
        logs: LogManager,
        log_configs: LogConfigs,
        partitions: HostedPartitions,
        replica_logs: ReplicaLogs,
        roles: ReplicaRoles,
        events: ReplicaEvents,
    ) -> None:
        self._node_id = node_id
        self._image = image
        self._logs = logs
        self._log_configs = log_configs
        self._partitions = partitions
        self._replica_logs = replica_logs
        self._roles = roles
        self._events = events

    async def load(self) -> None:
        """Open all replicas of the image at startup.

        While a directory is offline, a partition without a log stays offline, unless it is new.
        """
        self._replica_logs.starting = True
        await self.follow([Change(name) for name in self._image.topics])
        self._replica_logs.starting = False

    async def reconfigure_all(self) -> None:
        """Apply a change of broker settings that are defaults of topic settings."""
        await self.follow([Change(name) for name in self._partitions])

    async def follow(self, changes: Sequence[Change]) -> None:
        """Follow changes of the image: of whole topics, or of the state of single partitions."""
        slices = _Slices()
        removed = False
        whole = {change.topic for change in changes if change.topic and change.partition is None}
        for name, index in changes:
            if name and index is not None and name not in whole:
                self._follow_state(name, index)
                await slices.pause_if_due()
        for name in whole:
            self._log_configs.forget(name)
            topic = self._image.topics.get(name)
            hosted = self._partitions.get(name)
            if hosted and (topic is None or next(iter(hosted.values())).topic_id != topic.topic_id):
                await self._remove_topic(name, slices)
                removed = True
            if topic is None:
                self._logs.forget_preferred(name)
                self._partitions.pop(name, None)  # empty: it had no replica here
            else:
                await self._host(topic, slices)
        if removed:
            await asyncio.get_running_loop().run_in_executor(None, self._sync_directories)

    def _follow_state(self, name: str, index: int) -> None:
        topic, partition = self._image.topics.get(name), self._partitions.get(name, {}).get(index)
        if topic is None or partition is None or partition.topic_id != topic.topic_id:
            return
        replicas = topic.replicas.get(index)
        if replicas is not None and self._node_id in replicas:
            self._roles.assume(partition, topic)
        elif replicas is not None:
            self._remove_reassigned(partition, topic)

    def _sync_directories(self) -> None:
        """Make deletions durable: the other brokers drop their record of them."""
        for log_dir in self._logs.online_dirs():
            self._logs.files.sync_dir(log_dir.path)

    async def _host(self, topic: TopicImage, slices: _Slices) -> None:
        config = self._log_configs.of(topic.name)
        partitions = self._partitions.setdefault(topic.name, {})
        for index, replicas in topic.replicas.items():
            partition = partitions.get(index)
            if self._node_id not in replicas:
                if partition is not None:
                    self._remove_reassigned(partition, topic)
                continue
            if partition is None:
                partition = self._replica_logs.open(topic, index)
                partitions[index] = partition
            elif partition.log is not None and partition.log.config != config:
                partition.log.update_config(config)
            self._roles.assume(partition, topic)
            await slices.pause_if_due()

    def _remove_reassigned(self, partition: Partition, topic: TopicImage) -> None:
        """Remove a replica that was reassigned to other brokers.

        Keep it while its state names this broker as leader or ISR member. Then the assignment is
        outdated: a snapshot that was built during the change repeats it, and the current one
        follows.
        """
        index = partition.tp.partition
        state = topic.states.get(index)
        if state is not None and self._node_id in (state.leader, *state.isr):
            return
        outdated = is_outdated(partition, state)
        del self._partitions[topic.name][index]
        self._release(partition)
        self._remove_log(partition.tp, self._logs.mark_stray if outdated else self._logs.delete)

    async def _remove_topic(self, name: str, slices: _Slices) -> None:
        """Remove the replicas of a topic that the image no longer has, or has with another id.

        A deletion is recorded in the image until every broker with replicas knows of it. Without a
        record the loss was not intended. Then the logs are no longer served, but kept unchanged. If
        the topic comes back one day, they are its logs.
        """
        deleted = self._image.being_deleted.get(name, ())
        for partition in self._partitions.pop(name).values():
            self._release(partition)
            if partition.topic_id in deleted:
                self._remove_log(partition.tp, self._logs.delete)
            else:
                log.error(
                    "%s has disappeared from the metadata without being deleted; its log is kept",
                    partition.tp,
                )
                adoption.preserve(self._logs, partition.tp)
            await slices.pause_if_due()

    def _release(self, partition: Partition) -> None:
        """Let go of a replica that this broker no longer has."""
        self._roles.release(partition)
        partition.log = partition.followers = None
        self._replica_logs.forget(partition.tp)
        self._events.gone(partition.tp)
        partition.waiters.wake()

    def _remove_log(self, tp: TopicPartition, remove: Callable[[TopicPartition], None]) -> None:
        try:
            remove(tp)
        except ApiError as error:
            log.error("cannot remove %s: %s", tp, error.message)


class _Slices:
    """Gives other tasks a turn whenever this work has held the event loop long enough."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + _SLICE_S

    async def pause_if_due(self) -> None:
        if self._loop.time() >= self._until:
            await asyncio.sleep(0)
            self._until = self._loop.time() + _SLICE_S
