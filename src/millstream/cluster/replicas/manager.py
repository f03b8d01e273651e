"""The partitions hosted here: found by name or id, created, deleted and reconfigured as the image says.

The image decides what should exist; ``follow`` makes it so, in slices short enough that the event loop keeps answering.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol

from millstream.cluster.events import NO_LISTENER, ReplicaEvents
from millstream.cluster.membership import adoption
from millstream.cluster.replicas.log_configs import LogConfigs
from millstream.cluster.replicas.partition import Partition
from millstream.cluster.replicas.pending_sequences import ProducerGaps, sent_by
from millstream.control.image import Change, ClusterImage, TopicImage
from millstream.control.znodes import PartitionState
from millstream.core.config import BrokerConfig
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import NO_LEADER, TopicPartition
from millstream.log.errors import StorageError
from millstream.log.housekeeping import Housekeeping
from millstream.log.manager import LogManager
from millstream.log.partition_log import PartitionLog
from millstream.log.rate_limited_logging import RateLimitedLog
from millstream.log.state import LogState
from millstream.ports.clock import Clock, steady_ms

log = logging.getLogger("millstream.replicas")

# How long a slice of work on many partitions may hold the loop.
_SLICE_S = 0.004
_TRY_AGAIN_S = 1.0
_LOOK_AGAIN_S = 0.5


class Fetchers(Protocol):
    """Whoever brings the records of replicas that other brokers lead."""

    def follow(self, partition: Partition) -> None:
        """From its leader, in its epoch; what was fetched for an older epoch no longer counts."""

    def forget(self, tp: TopicPartition) -> None:
        """It is led here, or by nobody, or gone."""


class _NoFetchers:
    def follow(self, partition: Partition) -> None:
        pass

    def forget(self, tp: TopicPartition) -> None:
        pass


_NO_FETCHERS = _NoFetchers()


class ReplicaManager:
    """Owns every Partition of this broker."""

    def __init__(
        self,
        node_id: int,
        image: ClusterImage,
        config: BrokerConfig,
        logs: LogManager,
        housekeeping: Housekeeping,
        clock: Clock,
        *,
        log_configs: LogConfigs,
        fetchers: Fetchers = _NO_FETCHERS,
        events: ReplicaEvents = NO_LISTENER,
    ) -> None:
        """``fetchers`` bring the records of replicas that another broker leads."""
        self._steady_ms = partial(steady_ms, clock)
        self._rate_limited = RateLimitedLog(log)
        self.gaps = ProducerGaps(self._steady_ms)
        self._node_id = node_id
        self._image = image
        self._config = config
        self._logs = logs
        self._housekeeping = housekeeping
        self._topics: dict[str, dict[int, Partition]] = {}
        self._log_configs = log_configs
        self._fetchers = fetchers
        self._events = events
        self._starting = False
        self._offline: set[TopicPartition] = set()
        self._with_followers: dict[TopicPartition, Partition] = {}
        self._uncreated: dict[TopicPartition, float] = {}  # and when it was tried last

    # ---- finding ---------------------------------------------------------------------------------

    def leader(self, topic: str, index: int) -> Partition:
        """The partition, if this broker leads it; else the ApiError that sends the client elsewhere."""
        partition = self.replica(topic, index)
        if partition.leader != self._node_id:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER if partition.log else ErrorCode.KAFKA_STORAGE_ERROR
            raise ApiError(code)
        return partition

    def leader_by_id(self, topic_id: bytes, index: int) -> Partition:
        return self.leader(self.name_of(topic_id), index)

    def replica(self, topic: str, index: int) -> Partition:
        """The partition, if this broker has it, whoever leads it. The image may be ahead of what is hosted: what is left of an earlier topic of that
        name is not the one that is asked for, be it by its name or by its id."""
        try:
            partition, known = self._topics[topic][index], self._image.topics[topic]
        except KeyError:
            raise ApiError(self._absence(topic, index)) from None
        if partition.topic_id != known.topic_id:
            raise ApiError(self._absence(topic, index))
        if partition.log is None and partition.tp in self._uncreated:
            self._try_again(partition)
        return partition

    def hosted(self, topic: str, index: int) -> Partition | None:
        """The same without a reason why not."""
        return self._topics.get(topic, {}).get(index)

    def _absence(self, topic: str, index: int) -> ErrorCode:
        """Why there is no such partition here: others have it, or nobody."""
        known = self._image.topics.get(topic)
        if known is not None and index in known.replicas:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def current_leader(self, topic: str, index: int) -> tuple[int, int] | None:
        """Who leads it, and the epoch, as far as is known here."""
        known = self.hosted(topic, index)
        if known is not None:
            return known.leader, known.leader_epoch
        elsewhere = self._image.topics.get(topic)
        state = elsewhere.states.get(index) if elsewhere is not None else None
        return (state.leader, state.leader_epoch) if state is not None else None

    def name_of(self, topic_id: bytes) -> str:
        name = self._image.names_by_id.get(topic_id)
        if name is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        return name

    def exists(self, topic: str, index: int) -> bool:
        return index in self._topics.get(topic, {})

    def is_online(self, topic: str, index: int, node: int) -> bool:
        """Whether a replica can serve: of those of other brokers the controller tells."""
        if node != self._node_id:
            unserved = self._image.offline.get(node, ())
            return node in self._image.brokers and TopicPartition(topic, index) not in unserved
        partition = self.hosted(topic, index)
        return partition is not None and partition.log is not None

    def offline(self) -> Collection[TopicPartition]:
        """Replicas that should be here and cannot be served; those that could not be made are tried again."""
        for tp in list(self._uncreated):
            self._try_again(self._topics[tp.topic][tp.partition])
        return self._offline

    def full(self) -> Collection[TopicPartition]:
        """Return the replicas in directories without room, of partitions that have other replicas."""
        paths = self._logs.full.paths
        if not paths:
            return ()
        return [
            tp
            for tp, log_ in self._logs.logs.items()
            if log_.log_dir in paths
            and (topic := self._image.topics.get(tp.topic)) is not None
            and len(topic.replicas.get(tp.partition, ())) > 1
        ]

    def is_gone(self, tp: TopicPartition) -> bool:
        """Whether no broker has such a partition any more."""
        topic = self._image.topics.get(tp.topic)
        return topic is None or tp.partition not in topic.replicas

    def __len__(self) -> int:
        return sum(len(partitions) for partitions in self._topics.values())

    # ---- appending -------------------------------------------------------------------------------

    def note_refusal(self, topic: str | bytes, index: int, records: memoryview, error: ApiError) -> None:
        """A batch that did not get to its partition, which may not be here yet; whatever is behind it is told the same."""
        sent = sent_by(records)
        if sent is not None:
            name = self._image.names_by_id.get(topic, topic) if isinstance(topic, bytes) else topic
            self.gaps.refused(name, index, sent, error)

    async def flush_if_due(self, partition: Partition) -> None:
        """flush.messages: what is acknowledged is on disk."""
        log = partition.online_log
        if log.flush_due:
            await self._housekeeping.flush(log)

    def flushed(self, log: LogState) -> None:
        """Advance the high watermark of a leader: it waits for the flush of its own log, too."""
        partition = self._led(log)
        if partition is not None:
            partition.advance_either()

    def truncation_finished(self, log: LogState) -> None:
        """Start the leader epoch that an interrupted truncation had held up."""
        partition = self._led(log)
        if partition is not None:
            partition.begin_epoch()
            partition.wake()

    def _led(self, log: LogState) -> Partition | None:
        """The partition of a log, where this broker leads it: a follower's high watermark is what its leader says, however much it has."""
        partition = self._topics.get(log.tp.topic, {}).get(log.tp.partition)
        leads = partition is not None and partition.log is log and partition.leader == self._node_id
        return partition if leads else None

    async def log_starts_durable(self) -> None:
        """A deletion of records that was answered is not undone by a crash."""
        await self._housekeeping.log_starts_durable()

    async def wait_high_watermark(
        self, partition: Partition, offset: int, reign: int, timeout_s: float
    ) -> None:
        """Until the high watermark has passed what was appended at an offset in a leader's reign; raises ApiError when time runs out, the log goes
        offline, or another reign has begun, be it before this call: the offset may then hold somebody else's records, and whether ours survived is
        not known here."""
        reached: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def look() -> None:
            if reached.done():
                return
            log_ = partition.log
            if log_ is None or partition.reign != reign:
                reached.set_result(False)
            elif log_.high_watermark > offset:
                reached.set_result(True)

        partition.wait(look)
        try:
            look()
            async with asyncio.timeout(max(timeout_s, 0)):
                survived = await reached
        except TimeoutError:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT) from None
        finally:
            partition.forget(look)
        needed = min(partition.online_log.config.min_insync_replicas, partition.replica_count)
        if not survived:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if len(partition.isr) < needed:
            raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    def low_watermark(self, partition: Partition) -> int:
        """The smallest log start of the replicas whose brokers are there."""
        start = partition.online_log.log_start_offset
        followers = partition.followers
        return start if followers is None else followers.low_watermark(start, self._image.brokers.keys())

    async def wait_low_watermark(
        self, partition: Partition, offset: int, reign: int, timeout_s: float
    ) -> None:
        """Until no replica that is there has anything before this offset; raises ApiError when time runs out or this has not been
        the leader ever since it was deleted: whoever leads now may not have heard of it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            if partition.leader != self._node_id or partition.reign != reign:
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if self.low_watermark(partition) >= offset:
                return
            left_s = deadline - loop.time()
            if left_s <= 0:
                raise ApiError(ErrorCode.REQUEST_TIMED_OUT)
            # Brokers that go, and so need not be waited for, tell nobody here.
            await _woken(partition, min(left_s, _LOOK_AGAIN_S))

    # ---- following the image ---------------------------------------------------------------------

    async def load(self) -> None:
        """At start: what the image has and the directories hold. A partition that neither is found nor is new stays
        offline while a directory is: it may be there, and a second, empty one would hide it."""
        self._starting = True
        await self.follow([Change(name) for name in self._image.topics])
        self._starting = False

    async def follow(self, changes: Sequence[Change]) -> None:
        """Creates, reconfigures and deletes what the image changed; of a partition alone, who leads it."""
        slices = _Slices()
        deleted = []
        whole = {change.topic for change in changes if change.topic and change.partition is None}
        for name, index in changes:
            if name and index is not None and name not in whole:
                self._follow_state(name, index)
                await slices.breathe()
        for name in whole:
            self._log_configs.forget(name)
            topic = self._image.topics.get(name)
            held = self._topics.get(name)
            if held and (topic is None or next(iter(held.values())).topic_id != topic.topic_id):
                await self._remove(name, slices)
                deleted.append(name)
            if topic is None:
                self._logs.forget_preferred(name)
            else:
                await self._host(topic, slices)
        if deleted:
            await asyncio.get_running_loop().run_in_executor(None, self._sync_directories)

    def _follow_state(self, name: str, index: int) -> None:
        topic, partition = self._image.topics.get(name), self._topics.get(name, {}).get(index)
        if topic is None or partition is None or partition.topic_id != topic.topic_id:
            return
        replicas = topic.replicas.get(index)
        if replicas is not None and self._node_id in replicas:
            self._lead(partition, topic)
        elif replicas is not None:
            self._moved_away(partition, topic)

    def _sync_directories(self) -> None:
        """A deletion that is forgotten everywhere else must not come back from the disk."""
        for log_dir in self._logs.online_dirs():
            self._logs.files.sync_dir(log_dir.path)

    async def _host(self, topic: TopicImage, slices: _Slices) -> None:
        config = self._log_configs.of(topic.name)
        partitions = self._topics.setdefault(topic.name, {})
        for index, replicas in topic.replicas.items():
            partition = partitions.get(index)
            if self._node_id not in replicas:
                if partition is not None:
                    self._moved_away(partition, topic)
                continue
            if partition is None:
                partition = self._open(topic, index)
                partitions[index] = partition
            elif partition.log is not None and partition.log.config != config:
                partition.log.update_config(config)
            self._lead(partition, topic)
            await slices.breathe()

    def _moved_away(self, partition: Partition, topic: TopicImage) -> None:
        """Other brokers have it now. Not so while its state names this one: then the assignment is an older one, of which a snapshot that was made while
        it changed tells once more, and what is true comes behind it."""
        index = partition.tp.partition
        state = topic.states.get(index)
        if state is not None and self._node_id in (state.leader, *state.isr):
            return
        older = self._is_older(partition, state)
        del self._topics[topic.name][index]
        self._let_go(partition)
        self._take_away(partition.tp, self._logs.put_aside if older else self._logs.delete)

    def _lead(self, partition: Partition, topic: TopicImage) -> None:
        """Takes the role that the image gives this replica."""
        index = partition.tp.partition
        state = topic.states.get(index)
        if state is None:
            return  # its state comes with a later change
        if self._is_older(partition, state):
            return  # to lead or follow in it would cut off what was acknowledged since
        if partition.log is not None:
            # A replica that is away may lack them, and would bring back what they deleted.
            partition.log.may_forget_deletions = set(topic.replicas[index]) <= set(state.isr)
        if state.leader == self._node_id:
            self._become_leader(partition, state, topic.replicas[index])
        else:
            self._become_follower(partition, state)

    @staticmethod
    def _is_older(partition: Partition, state: PartitionState | None) -> bool:
        """Than what this broker knows of the partition. Epochs only grow, so this is metadata that was put back from a copy."""
        if state is None or state.leader_epoch >= partition.leader_epoch:
            return False
        log.error(
            "%s has leader epoch %d in the metadata, and had %d before: that is not followed, and its replica is kept",
            partition.tp,
            state.leader_epoch,
            partition.leader_epoch,
        )
        return True

    def _become_leader(self, partition: Partition, state: PartitionState, replicas: Sequence[int]) -> None:
        self._fetchers.forget(partition.tp)
        partition.lead(
            self._node_id,
            state,
            replicas,
            steady_ms=self._steady_ms,
            max_lag_ms=self._config.integer("replica.lag.time.max.ms"),
            eligible=partial(self._may_be_in_sync, partition.tp),
        )
        if partition.followers is not None:
            self._with_followers[partition.tp] = partition
        else:
            self._with_followers.pop(partition.tp, None)
        if partition.log is not None:
            self._events.led(partition)

    def _become_follower(self, partition: Partition, state: PartitionState) -> None:
        was_leader = partition.leader == self._node_id
        partition.follow(state)
        self._with_followers.pop(partition.tp, None)
        if was_leader:
            self._events.lost(partition.tp)
        if state.leader == NO_LEADER or partition.log is None:
            self._fetchers.forget(partition.tp)
        else:
            self._fetchers.follow(partition)

    def _may_be_in_sync(self, tp: TopicPartition, node: int, broker_epoch: int) -> bool:
        image = self._image
        registered = image.brokers.get(node)
        if registered is None or registered.epoch != broker_epoch or node in image.stopping:
            return False
        # A follower without room waits for it, unless this leader has none either.
        return tp not in image.full.get(node, ()) or tp in image.full.get(self._node_id, ())

    @property
    def with_followers(self) -> Collection[Partition]:
        """The partitions that this broker leads for others."""
        return self._with_followers.values()

    def _open(self, topic: TopicImage, index: int) -> Partition:
        """A partition with its log; without one when its directory failed, so that the others go on."""
        tp = TopicPartition(topic.name, index)
        try:
            opened = self._find_or_create(topic, tp)
        except ApiError as error:
            reason = error.message.removeprefix(f"{tp} is offline: ")
            if isinstance(error, StorageError) and error.passing:  # one for each partition of a new topic
                self._rate_limited.log(logging.ERROR, "offline", f"{tp} is offline: {reason}")
            else:
                log.error("%s is offline: %s", tp, reason)
            opened = None
            if tp not in self._logs.offline:
                self._uncreated[tp] = asyncio.get_running_loop().time()
        if opened is None:
            self._offline.add(tp)
        return Partition(tp, topic.topic_id, opened, self.gaps)

    def _find_or_create(self, topic: TopicImage, tp: TopicPartition) -> PartitionLog | None:
        found = self._of_this_topic(self._logs.get(tp), topic)
        if found is None:
            return self._create(topic, tp)
        found.assign_topic_id(uuid.UUID(bytes=topic.topic_id))
        found.update_config(self._log_configs.of(topic.name))
        return found

    def _of_this_topic(self, found: PartitionLog | None, topic: TopicImage) -> PartitionLog | None:
        """Not a log that was left by an earlier topic of the same name, which was deleted while this broker was away."""
        if found is None or found.topic_id is None or found.topic_id.bytes == topic.topic_id:
            return found
        log.warning("%s belongs to an earlier topic of the same name and is put aside", found.directory)
        self._logs.put_aside(found.tp)
        return None

    def _try_again(self, partition: Partition) -> None:
        """A log that could not be made, or be given its topic's id, on a full disk for instance, is when there is room again."""
        topic, now = self._image.topics.get(partition.tp.topic), asyncio.get_running_loop().time()
        if topic is None or topic.topic_id != partition.topic_id:
            return  # it goes, and its place is the next one's
        if now - self._uncreated[partition.tp] < _TRY_AGAIN_S:
            return
        self._uncreated[partition.tp] = now
        try:
            partition.log = self._find_or_create(topic, partition.tp)
        except ApiError as error:
            text = f"{partition.tp} is still offline: {error.message}"
            self._rate_limited.log(logging.ERROR, "still offline", text)
            return
        del self._uncreated[partition.tp]
        self._offline.discard(partition.tp)
        self._lead(partition, topic)

    def _create(self, topic: TopicImage, tp: TopicPartition) -> PartitionLog | None:
        if self._starting:
            offline = [log_dir.path for log_dir in self._logs.dirs.values() if not log_dir.online]
            if offline:
                log.error("%s is offline: it may be in %s, which failed", tp, ", ".join(offline))
                return None
            log.warning("%s has no directory and begins empty", tp)
        return self._logs.create(tp, uuid.UUID(bytes=topic.topic_id))

    async def _remove(self, name: str, slices: _Slices) -> None:
        """A topic that is not in the image any more, or another incarnation of it. That it was deleted is noted there until every broker that has
        replicas of it knows. Where it is not, nobody has meant it: its logs are not served any more, and are otherwise left alone. Should the topic be
        there again one day, they are what they were."""
        noted = self._image.being_deleted.get(name, ())
        for partition in self._topics.pop(name).values():
            self._let_go(partition)
            if partition.topic_id in noted:
                self._take_away(partition.tp, self._logs.delete)
            else:
                log.error("%s is not in the metadata any more, and nobody has deleted it", partition.tp)
                adoption.preserve(self._logs, partition.tp)
            await slices.breathe()

    def _let_go(self, partition: Partition) -> None:
        """Of a replica that this broker no longer has."""
        tp = partition.tp
        self._fetchers.forget(tp)
        if partition.leader == self._node_id:
            self._events.lost(tp)
        partition.log = partition.followers = None
        self._with_followers.pop(tp, None)
        self._uncreated.pop(tp, None)
        self._offline.discard(tp)
        self._events.gone(tp)
        partition.wake()

    def _take_away(self, tp: TopicPartition, how: Callable[[TopicPartition], None]) -> None:
        try:
            how(tp)
        except ApiError as error:
            log.error("cannot remove %s: %s", tp, error.message)

    async def reconfigure_all(self) -> None:
        """After a change of broker settings that stand behind topic settings."""
        await self.follow([Change(name) for name in self._topics])

    def others_in_sync(self, tp: TopicPartition) -> bool:
        """Whether another broker has all of the partition, and could lead it."""
        partition = self._topics.get(tp.topic, {}).get(tp.partition)
        isr = partition.isr if partition is not None else ()
        return any(node != self._node_id and self.is_online(*tp, node) for node in isr)

    def went_offline(self, partitions: Sequence[TopicPartition]) -> None:
        """Their directory failed, or they are damaged."""
        for tp in partitions:
            partition = self._topics.get(tp.topic, {}).get(tp.partition)
            if partition is not None:
                partition.log = None
                self._offline.add(tp)
                partition.wake()


async def _woken(partition: Partition, timeout_s: float) -> None:
    """At the next change of the partition, or after this time."""
    changed = asyncio.Event()
    partition.wait(changed.set)
    try:
        async with asyncio.timeout(timeout_s):
            await changed.wait()
    except TimeoutError:
        pass
    finally:
        partition.forget(changed.set)


class _Slices:
    """Gives the loop a turn whenever this piece of work has held it long enough."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + _SLICE_S

    async def breathe(self) -> None:
        if self._loop.time() >= self._until:
            await asyncio.sleep(0)
            self._until = self._loop.time() + _SLICE_S
