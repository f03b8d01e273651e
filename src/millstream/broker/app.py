"""The composition root: makes every part of a broker, starts them in order, and stops them in reverse."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.broker.auto_creation import AutoCreation
from millstream.broker.coordinators import Coordinators
from millstream.broker.migration import notes as move_notes
from millstream.broker.net.connection import Handle
from millstream.broker.net.dispatch import Dispatcher
from millstream.broker.net.listeners import Endpoint, advertised, listener_specs
from millstream.broker.net.request_memory import RequestMemory, limit_of
from millstream.broker.net.server import Server
from millstream.broker.produce.fast_path import UsualProduce
from millstream.cluster.controller.client import ControllerClient
from millstream.cluster.coordinators.producer_ids import ProducerIds
from millstream.cluster.membership import adoption
from millstream.cluster.membership.directories import expected_directories, note_directories
from millstream.cluster.membership.member import ClusterMember
from millstream.cluster.membership.registration import AlreadyRegistered, wait_for_id
from millstream.cluster.replicas.fetcher import ReplicaFetchers
from millstream.cluster.replicas.isr import IsrManager
from millstream.cluster.replicas.manager import ReplicaManager
from millstream.cluster.replicas.throttles import Throttle
from millstream.control import znodes
from millstream.control.features import FEATURES
from millstream.control.image import Change, ClusterImage
from millstream.control.znodes import BrokerRegistration
from millstream.core.broker_settings import BROKER_SETTINGS
from millstream.core.config import BrokerConfig
from millstream.core.errors import ApiError
from millstream.core.ids import NULL_ID, id_text
from millstream.core.settings import SettingError, Value
from millstream.core.types import TopicPartition
from millstream.log.config import LogConfig
from millstream.log.directories import file_names
from millstream.log.directories.ids import assign_ids, refuse_new, refuse_replaced, warn_if_missing
from millstream.log.housekeeping import Housekeeping, HousekeepingSettings
from millstream.log.manager import LogDir, LogDirError, LogManager, ManagerSettings
from millstream.ports.clock import Clock, SystemClock
from millstream.ports.coordination import (
    ConnectionLost,
    Coordination,
    Create,
    NodeExists,
    Put,
    SessionExpired,
    Write,
)
from millstream.ports.embedded_coordination import STORE_FILE, CorruptStore, EmbeddedCoordination
from millstream.ports.entropy import Entropy, SystemEntropy
from millstream.ports.files import Files, Lock, RealFiles
from millstream.ports.network import Network, SocketNetwork
from millstream.ports.workers import JobRunner, NewWorker, Worker
from millstream.replication.fetch_session import FetchSessionCache
from millstream.replication.read_replica import RACK_AWARE

if TYPE_CHECKING:
    from millstream.log.cleaner.background import Cleaner, CleanerSettings
    from millstream.log.integrity.scrubber import ScrubSettings

log = logging.getLogger("millstream.broker")
_RETRY_S = 0.2

# How much longer than a session may last a broker waits for another one with its id to be gone.
_REGISTRATION_S = 14.0
# A converting child that has had nothing to do for this long ends.
_CONVERTER_IDLE_S = 60.0


# Nothing of its own can be deleted by a broker that does not run; a few hundred kilobytes let it start.
_FULL_DISK = ". Make some room there for the broker to start (1 MB is enough), then delete topics or shorten their retention"


class StartError(Exception):
    """The broker cannot start; the message says why and what to do."""


class Node(NamedTuple):
    """A broker as clients see it through one listener."""

    node_id: int
    host: str
    port: int
    rack: str | None


class Broker:
    """One broker. Handlers reach everything they need through its attributes."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
        network: Network | None = None,
        coordination: Coordination | None = None,
        entropy: Entropy | None = None,
        new_worker: NewWorker = Worker,
        intercept: Callable[[Handle], Handle] = lambda handle: handle,
        existing: bool = False,
    ) -> None:
        """``intercept`` gets what handles every frame and returns what shall: tests put faults in front of it. ``existing``: refuse
        data directories that no broker has used."""
        self.config = config
        self.node_id = config.node_id
        self.clock = clock or SystemClock()
        self.files = files or RealFiles()
        self.network = network or SocketNetwork()
        self.entropy = entropy or SystemEntropy()
        self._given_coordination = coordination
        self._existing = existing
        self._new_worker = new_worker
        self.image = ClusterImage()
        self.fetch_max_bytes = config.integer("fetch.max.bytes")
        self.rack_aware = config.get("replica.selector.class") == RACK_AWARE
        self.max_decompressed_bytes = config.integer("record.decompressed.max.bytes")
        self.usual_produces: dict[bytes, UsualProduce] = {}
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.bound: list[Endpoint] = []
        self.advertised: list[Endpoint] = []
        self.convert_worker = new_worker("converter", idle_exit_s=_CONVERTER_IDLE_S)
        self.fetch_sessions = FetchSessionCache(
            config.integer("max.incremental.fetch.session.cache.slots"), self._session_id
        )
        largest = config.integer("socket.request.max.bytes")
        self.request_memory = RequestMemory(
            limit_of(config.get("queued.max.request.bytes"), largest), largest
        )
        self.dispatcher = Dispatcher(self)
        self.server = Server(config, intercept(self.dispatcher), self.network, self.request_memory)
        self.cleaner: Cleaner | None = None
        self._cleaner_worker: JobRunner | None = None
        self._background: list[asyncio.Task[None]] = []
        self._running = False
        self._topics_loaded = False
        self._loaded = False
        self._metadata_lock: Lock | None = None

    def new_id(self) -> bytes:
        """A random id of 16 bytes that is not one of the reserved ones."""
        while True:
            made = self.entropy.uuid().bytes
            # Kafka's tools take a leading dash for an option.
            if made != NULL_ID and not id_text(made).startswith("-"):
                return made

    def _session_id(self) -> int:
        return self.entropy.uuid().int % (2**31 - 1) + 1

    def nodes(self, listener: str) -> list[Node]:
        """The live brokers of the cluster, at the addresses for clients of this listener."""
        found = [(broker, broker.endpoint(listener)) for _id, broker in sorted(self.image.brokers.items())]
        return [
            Node(broker.node_id, endpoint.host, endpoint.port, broker.rack)
            for broker, endpoint in found
            if endpoint is not None
        ]

    def node(self, node_id: int, listener: str) -> Node | None:
        """A live broker at its address for clients of this listener; None where it is not there or has no such listener."""
        broker = self.image.brokers.get(node_id)
        endpoint = broker.endpoint(listener) if broker is not None else None
        if broker is None or endpoint is None:
            return None
        return Node(node_id, endpoint.host, endpoint.port, broker.rack)

    def peer_address(self, node_id: int) -> znodes.BrokerEndpoint | None:
        """Where this broker reaches another one; None while it is not there."""
        broker = self.image.brokers.get(node_id)
        return self.member.endpoint(broker) if broker is not None else None

    def racks(self) -> dict[int, str]:
        """Of the brokers of the cluster that have one."""
        return {node: broker.rack for node, broker in self.image.brokers.items() if broker.rack}

    # ---- starting -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises SettingError or StartError where it cannot."""
        self.bound = self.server.bind(listener_specs(self.config))
        self.advertised = advertised(self.config, self.bound)
        try:
            await self._open_storage()
            self._make_parts()
            await self._join()
        except (LogDirError, CorruptStore, ApiError, AlreadyRegistered) as error:
            raise StartError(str(error)) from None
        except OSError as error:
            raise StartError(
                f"cannot use {error.filename or 'the data'}: {error.strerror or error}"
            ) from None
        if self.failed.done():
            raise StartError(self.failed.result())
        self.server.start()
        self._start_background()

    async def _open_storage(self) -> None:
        self.logs = LogManager(
            self.files,
            self.config.log_dirs,
            config_for=self._log_config,
            clock=self.clock.now_ms,
            settings=self._manager_settings(),
        )
        if self._existing:
            refuse_new(self.files, self.config.log_dirs)
        self.logs.open()
        self._running = True
        await self._open_coordination()
        await self._settle_identity()

    async def _open_coordination(self) -> None:
        """The broker's own store, or the service that it shares with others."""
        if self._given_coordination is not None:
            self.coordination = self._given_coordination
            if not self._alone:
                self._refuse_a_second_history()
            return
        path = self._store_path()
        self._lock_metadata(os.path.dirname(path))
        self._refuse_where_moved()
        warn_if_missing(self.files, path, self.logs.online_dirs())
        store = EmbeddedCoordination(self.files, path)
        self.coordination = store
        try:
            await store.load()
        except OSError as error:
            hint = _FULL_DISK if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
            raise StartError(
                f"cannot use the metadata store {path}: {error.strerror or error}{hint}"
            ) from None

    def _store_path(self) -> str:
        path = self._metadata_dir()
        log_dir = self.logs.dirs.get(path)
        if log_dir is not None and not log_dir.online:
            raise StartError(f"the metadata store is in {path}, which cannot be used: {log_dir.reason}")
        if not self.files.is_dir(path):
            self.files.makedirs(path)
            self.files.sync_dir(os.path.dirname(path))
        return os.path.join(path, STORE_FILE)

    def _metadata_dir(self) -> str:
        return os.path.abspath(str(self.config.get("metadata.log.dir") or self.config.log_dirs[0]))

    def _lock_metadata(self, directory: str) -> None:
        """A store outside of the data directories has a lock of its own: neither a second broker nor `millstream migrate` may touch it meanwhile."""
        # By their real names: through a link it may be one of the directories that this broker has locked.
        if os.path.realpath(directory) in map(os.path.realpath, self.logs.dirs):
            return
        self._metadata_lock = self.files.lock(os.path.join(directory, file_names.LOCK))
        if self._metadata_lock is None:
            raise StartError(f"the metadata directory {directory} is in use by another broker")

    def _metadata_places(self) -> list[str]:
        """Where a store or a note of its move may lie; a data directory that is offline cannot be asked."""
        path = self._metadata_dir()
        own = [path] if path not in self.logs.dirs else []
        return [*own, *(one.path for one in self.logs.online_dirs())]

    def _refuse_where_moved(self) -> None:
        places = self._metadata_places()
        if notes := move_notes.read_notes(self.files, places):
            unfinished = move_notes.stores(self.files, places)
            command = self._move_command(notes[0].address)
            raise StartError(move_notes.refusal_alone(notes[0], unfinished, command))

    def _refuse_a_second_history(self) -> None:
        """A store that was not put aside may know what ZooKeeper does not, whatever cluster id is there."""
        places = self._metadata_places()
        if stores := move_notes.stores(self.files, places):
            note = next(iter(move_notes.read_notes(self.files, places)), None)
            address = note.address if note is not None else str(self.config.get("zookeeper.connect"))
            raise StartError(move_notes.refusal_in_cluster(stores[0], note, self._move_command(address)))

    def _move_command(self, address: str) -> str:
        metadata_dir = self.config.get("metadata.log.dir")
        return move_notes.move_command(
            address, self.config.log_dirs, str(metadata_dir) if metadata_dir else None
        )

    def _manager_settings(self) -> ManagerSettings:
        config = self.config
        return ManagerSettings(
            producer_expiration_ms=config.integer("producer.id.expiration.ms"),
            writeback_bytes=config.integer("log.writeback.bytes"),
            delete_delay_ms=config.integer("log.segment.delete.delay.ms"),
            verify_transactions=config.flag("transaction.partition.verification.enable"),
            verify_reads=config.flag("log.read.verification.enable"),
        )

    def _housekeeping_settings(self) -> HousekeepingSettings:
        config = self.config
        return HousekeepingSettings(
            retention_check_interval_ms=config.integer("log.retention.check.interval.ms"),
            flush_offset_checkpoint_interval_ms=config.integer("log.flush.offset.checkpoint.interval.ms"),
            flush_start_offset_checkpoint_interval_ms=config.integer(
                "log.flush.start.offset.checkpoint.interval.ms"
            ),
            high_watermark_checkpoint_interval_ms=config.integer(
                "replica.high.watermark.checkpoint.interval.ms"
            ),
            producer_expiration_check_interval_ms=config.integer("producer.id.expiration.check.interval.ms"),
        )

    async def _settle_identity(self) -> None:
        """The cluster id: from the store, else from the directories, else from the setting, else a new one."""
        on_disk = self.logs.cluster_id
        wanted = self.config.get("cluster.id")
        ours = on_disk or (str(wanted) if wanted else id_text(self.new_id()))
        may_begin = self._alone or on_disk is None or on_disk == wanted
        cluster_id = await self._shared_cluster_id(ours, may_begin)
        in_directories = "the data directories (meta.properties)"
        for where, other in ((in_directories, on_disk), ("the setting cluster.id", wanted)):
            if other is not None and other != cluster_id:
                hint = "" if self._alone else "; is zookeeper.connect that of its cluster, with the chroot?"
                raise StartError(
                    f"the cluster id of {where} is {other}, but the metadata store has {cluster_id}{hint}"
                )
        if not self._alone and any(one.directory_id is None for one in self.logs.online_dirs()):
            await wait_for_id(self.coordination, self.node_id, patience_s=self._patience_s)
        log_dirs = self.logs.dirs.values()
        if any(not log_dir.meta for log_dir in self.logs.online_dirs()):
            refuse_replaced(log_dirs, await expected_directories(self.coordination, self.node_id))
        self.logs.identify(cluster_id, self.node_id)
        await note_directories(self.coordination, self.node_id, assign_ids(log_dirs))

    async def _shared_cluster_id(self, ours: str, may_begin: bool) -> str:
        """The one that the store has; ours where it has none and a cluster may begin there. A connection that breaks meanwhile is
        waited for."""
        while True:
            try:
                there = await self.coordination.get(znodes.CLUSTER_ID)
                if there is not None:
                    return self._whole_cluster(znodes.decode_cluster_mark(there.data))
                if not may_begin:
                    raise StartError(self._no_such_cluster(ours))
                await self.coordination.multi(_first_nodes(ours))
            except NodeExists:
                pass  # another broker was quicker
            except (ConnectionLost, SessionExpired) as error:
                log.info("the cluster id cannot be read now: %s", error)
                await asyncio.sleep(_RETRY_S)

    def _whole_cluster(self, mark: znodes.ClusterMark) -> str:
        if mark.moving:
            raise StartError(
                f"the cluster {mark.cluster_id} is being moved to zookeeper.connect={self.config.get('zookeeper.connect')}, and that was not finished: "
                "`millstream migrate`, repeated where it was begun, finishes it"
            )
        return mark.cluster_id

    def _no_such_cluster(self, ours: str) -> str:
        connect = self.config.get("zookeeper.connect")
        return (
            f"the data directories belong to the cluster {ours}, and there is no cluster at zookeeper.connect={connect}: is that "
            f"right, and its chroot? cluster.id={ours} begins one there"
        )

    def _note_cluster(self) -> None:
        """For whoever forgets zookeeper.connect one day. Waits for the disk."""
        connect = self.config.get("zookeeper.connect")
        if self._alone or not connect:
            return
        for log_dir in self.logs.online_dirs():
            try:
                move_notes.write_note(self.files, log_dir.path, str(connect))
            except OSError as error:
                log.warning("cannot note in %s where the cluster is: %s", log_dir.path, error)

    def _make_parts(self) -> None:
        self.housekeeping = Housekeeping(self.logs, self._housekeeping_settings())
        self.replicas = ReplicaManager(
            self.node_id, self.image, self.config, self.logs, self.housekeeping, self.clock
        )
        self.logs.on_directory_failed = self._on_directory_failed
        self.logs.on_isolated = lambda tp: self.replicas.went_offline([tp])
        self.logs.has_better_replica = self.replicas.others_in_sync
        self.member = ClusterMember(
            self._registration(),
            str(self.config.get("inter.broker.listener.name") or self.advertised[0].name),
            self.image,
            self.config,
            self.coordination,
            cluster_id=self.logs.cluster_id or "",
            network=self.network,
            clock=self.clock,
            new_id=self.new_id,
            on_changes=self._on_changes,
            offline_replicas=self.replicas.offline,
            full_replicas=self.replicas.full,
            all_directories_online=self._all_online,
        )
        self.member.registration.torn = lambda: self.logs.may_lack_records
        self.logs.full.on_change = self.member.follower.hurry
        self.controller = self.member.controller
        self.control = ControllerClient(self.member)
        self.producer_ids = ProducerIds(self.control.allocate_producer_ids)
        self.isr = IsrManager(
            self.control.alter_partitions,
            led=lambda: self.replicas.with_followers,
            max_lag_ms=lambda: self.config.integer("replica.lag.time.max.ms"),
        )
        self.leader_throttle, self.follower_throttle = (
            Throttle(side, self.node_id, self.image, self.config, self.clock)
            for side in ("leader", "follower")
        )
        self.fetchers = ReplicaFetchers(
            self.node_id,
            self.member.peers,
            self.config,
            self.clock,
            address=self.peer_address,
            broker_epoch=lambda: self.member.broker_epoch,
            throttle=self.follower_throttle,
            flush=self.replicas.flush_if_due,
            log_starts_durable=self.replicas.log_starts_durable,
        )
        self.replicas.fetchers = self.fetchers
        self.coordinators = Coordinators(self)
        self.auto_creation = AutoCreation(self)

    def _registration(self) -> BrokerRegistration:
        rack = self.config.get("broker.rack")
        endpoints = tuple(znodes.BrokerEndpoint(one.name, one.host, one.port) for one in self.advertised)
        directories = sorted(str(log_dir.directory_id) for log_dir in self.logs.online_dirs())
        return BrokerRegistration(
            self.node_id, endpoints, str(rack) if rack else None, incarnation=",".join(directories)
        )

    async def _join(self) -> None:
        joining = asyncio.get_running_loop().create_task(
            self.member.join(self._run_in_background, alone=self._alone, patience_s=self._patience_s)
        )
        await asyncio.wait((joining, self.failed), return_when=asyncio.FIRST_COMPLETED)
        if not joining.done():
            joining.cancel()
            raise StartError(self.failed.result())
        joining.result()
        # The controller has been told, and has drawn its conclusions.
        await asyncio.get_running_loop().run_in_executor(None, self.logs.note_machine)
        await asyncio.get_running_loop().run_in_executor(None, self._note_cluster)
        if self._alone:
            await self._adopt()
        else:
            self.producer_ids.stay_above(adoption.highest_producer_id(self.logs))
            self._run_in_background("producer ids", self.producer_ids.keep_ahead())
        self.replicas.let_coordinators_begin()
        self._loaded = True

    @property
    def _patience_s(self) -> float:
        return self.config.integer("zookeeper.session.timeout.ms") / 1000 + _REGISTRATION_S

    @property
    def _alone(self) -> bool:
        return isinstance(self.coordination, EmbeddedCoordination)

    async def _load_topics(self) -> None:
        """Logs are opened (and recovered) in a thread, so that signals are still heard."""
        self._apply_dynamic_settings()
        await asyncio.get_running_loop().run_in_executor(None, self._load_logs)
        adoption.finish_deletions(self.image, self.logs)
        adoption.put_strays_aside(self.image, self.logs)
        adoption.put_moved_aside(self.image, self.logs, self.node_id)
        adoption.leave_unknown_alone(self.image, self.logs)
        await self.replicas.load()

    async def _adopt(self) -> None:
        """Topics that only the directories know."""
        for found in adoption.unknown_topics(self.image, self.logs, self.new_id):
            settings = ", ".join(f"{name}={value}" for name, value in found.configs)
            log.info(
                "taking in the topic %s, %d partitions, with %s", found.name, len(found.epochs), settings
            )
            await self.controller.adopt_topic(
                found.name, found.topic_id, found.epochs, self.node_id, dict(found.configs)
            )
        await self.controller.skip_producer_ids(self.node_id, adoption.highest_producer_id(self.logs))
        await self.member.forget_deleted()

    def _all_online(self) -> bool:
        """A directory that is offline may hold what was deleted: then the deletion is not forgotten yet."""
        return all(log_dir.online for log_dir in self.logs.dirs.values())

    def _log_config(self, topic: str) -> LogConfig:
        if topic not in self.image.topics:
            return adoption.UNKNOWN_TOPIC
        return self.replicas.log_config(topic)

    def _load_logs(self) -> None:
        for _loaded in self.logs.load():
            pass

    def _start_background(self) -> None:
        # Imported after the first client can be served, like the cleaner: they are not needed before.
        from millstream.log.directories.relocation import Mover
        from millstream.log.integrity.scrubber import Scrubber

        self._run_in_background("housekeeping", self.housekeeping.run())
        self._run_in_background("in-sync replicas", self.isr.run())
        self.mover = Mover(
            self.logs,
            self.housekeeping,
            lambda: self.config.number("replica.alter.log.dirs.io.max.bytes.per.second"),
        )
        asyncio.get_running_loop().call_soon(self.mover.resume)  # when housekeeping runs
        self.scrubber = Scrubber(self.logs, lambda: scrub_settings(self.config), self.housekeeping.blocking)
        self._run_in_background("scrub", self.scrubber.run())
        if self.config.flag("log.cleaner.enable"):
            self._start_cleaner()

    def _start_cleaner(self) -> None:
        from millstream.log.cleaner.background import Cleaner, cleaner_worker

        self._cleaner_worker = cleaner_worker(self._new_worker)
        self.cleaner = Cleaner(self.logs, self._cleaner_worker, cleaner_settings(self.config))
        self.replicas.on_gone = self.cleaner.forget
        self._run_in_background("compaction", self.cleaner.run())

    def _run_in_background(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """A part that ends while the broker runs is a bug: the broker says so and stops cleanly."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and not self.failed.done():
                log.error("%s ended unexpectedly", name, exc_info=task.exception())
                self.failed.set_result(f"{name} ended unexpectedly; the log above says why")

        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(ended)
        self._background.append(task)

    async def _stop_background(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._background.clear()

    # ---- following changes ----------------------------------------------------------------------------------

    async def _on_changes(self, changes: Sequence[Change]) -> None:
        """The image has changed; the first time, it is there at all."""
        if not self._topics_loaded:
            await self._load_topics_or_fail()
            return
        topics = [change for change in changes if change.topic is not None]
        if len(topics) < len(changes):
            await self._on_settings()
        if topics:
            await self.replicas.follow(topics)
        self.coordinators.topics_changed(changes)

    async def _load_topics_or_fail(self) -> None:
        try:
            await self._load_topics()
        except (LogDirError, CorruptStore, ApiError) as error:
            self._fail(str(error))
        except OSError as error:
            self._fail(f"cannot use {error.filename or 'the data'}: {error.strerror or error}")
        else:
            self._topics_loaded = True
            return
        await asyncio.get_running_loop().create_future()  # nothing follows on that; the broker stops

    def _fail(self, why: str) -> None:
        if not self.failed.done():
            self.failed.set_result(why)

    async def _on_settings(self) -> None:
        """Brokers, their settings, or features."""
        before = self.config.cluster, self.config.broker
        self._apply_dynamic_settings()
        self.coordinators.reconfigure()
        if before == (self.config.cluster, self.config.broker):
            return
        self.leader_throttle.reconfigure()
        self.follower_throttle.reconfigure()
        if self.cleaner is not None:
            self.cleaner.settings = cleaner_settings(self.config)
            self.cleaner.wake()
        await self.replicas.reconfigure_all()

    def _apply_dynamic_settings(self) -> None:
        configs = self.image.broker_configs
        self.config.cluster = _parsed(configs.get(znodes.DEFAULT_BROKER, {}))
        self.config.broker = _parsed(configs.get(str(self.node_id), {}))
        self.logs.reconfigure(self._manager_settings())

    def _on_directory_failed(self, log_dir: LogDir, partitions: list[TopicPartition]) -> None:
        log.error(
            "the data directory %s is offline with %d partitions: %s",
            log_dir.path,
            len(partitions),
            log_dir.reason,
        )
        self.replicas.went_offline(partitions)
        if self.cleaner is not None:
            self.cleaner.abort_directory(log_dir.path)
        if not self.logs.online_dirs() and not self.failed.done():
            self.failed.set_result("every data directory has failed; the log above says why")

    # ---- stopping -------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Answers what is in progress, flushes, and marks the directories as cleanly closed."""
        if hasattr(self, "member") and self.config.flag("controlled.shutdown.enable"):
            await self.member.hand_over()
            if hasattr(self, "fetchers"):
                await self.fetchers.close()
            await self.member.resign()
        await self.server.close()
        if hasattr(self, "member"):
            await self.member.close()
        if hasattr(self, "coordinators"):
            self.auto_creation.close()
            self.coordinators.close()
        await self._stop_background()
        if hasattr(self, "fetchers"):
            await self.fetchers.close()
        await self.convert_worker.close()
        if self._cleaner_worker is not None:
            await self._cleaner_worker.close()
        if self._running:
            self._running = False
            await asyncio.get_running_loop().run_in_executor(None, self._close_storage)
            if hasattr(self, "coordination"):
                await self.coordination.close()
            self._release_metadata()

    async def abandon(self) -> None:
        """Lets go of sockets, files and children as a killed process does: nothing is answered, flushed or marked as closed."""
        self.server.abort()
        for worker in (self.convert_worker, self._cleaner_worker):
            if worker is not None:
                await worker.close()
        if self._running:
            self._running = False
            self.logs.close(broker_epoch=None)
            self._release_metadata()

    def _release_metadata(self) -> None:
        if self._metadata_lock is not None:
            self._metadata_lock.release()
            self._metadata_lock = None

    def _close_storage(self) -> None:
        # What was not loaded whole was not checked either: the next start must not believe that it was.
        self.logs.close(broker_epoch=0 if self._loaded else None)


def _first_nodes(cluster_id: str) -> list[Write]:
    """What a new cluster begins with."""
    levels = {feature.name: feature.initial for feature in FEATURES}
    return [
        Create(znodes.CLUSTER_ID, znodes.encode_cluster_id(cluster_id)),
        Put(znodes.FEATURES, znodes.encode_features(levels, 1)),
    ]


def cleaner_settings(config: BrokerConfig) -> CleanerSettings:
    """The log.cleaner.* settings in force."""
    from millstream.log.cleaner.background import CleanerSettings

    return CleanerSettings(
        backoff_ms=config.integer("log.cleaner.backoff.ms"),
        dedupe_buffer_bytes=config.integer("log.cleaner.dedupe.buffer.size"),
        load_factor=config.number("log.cleaner.io.buffer.load.factor"),
        io_buffer_bytes=config.integer("log.cleaner.io.buffer.size"),
        io_max_bytes_per_s=config.number("log.cleaner.io.max.bytes.per.second"),
        max_decompressed_bytes=config.integer("record.decompressed.max.bytes"),
    )


def scrub_settings(config: BrokerConfig) -> ScrubSettings:
    """The log.scrub.* settings in force."""
    from millstream.log.integrity.scrubber import ScrubSettings

    rate = config.integer("log.scrub.bytes.per.second")
    return ScrubSettings(rate, config.integer("log.scrub.interval.ms") / 1000)


def _parsed(texts: dict[str, str]) -> dict[str, Value]:
    """Those that take effect: what can only be given at the start may be there from before that was so."""
    values: dict[str, Value] = {}
    for name, text in texts.items():
        row = BROKER_SETTINGS.get(name)
        if row is None or not row.update:
            continue
        try:
            values[name] = row.parse(text)
        except SettingError as error:
            log.error("a stored setting of this broker is not understood and left out: %s", error)
    return values
