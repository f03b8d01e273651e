"""One broker: it opens its storage, builds its parts, joins the cluster and serves clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from millstream.broker.background import BackgroundTasks
from millstream.broker.configs.storage import manager_settings
from millstream.broker.identity import (
    Identity,
    StartError,
    is_alone,
    note_cluster,
    registration_patience_s,
)
from millstream.broker.lifecycle import Lifecycle
from millstream.broker.net.connection import Handle
from millstream.broker.net.dispatch import Dispatcher
from millstream.broker.net.listeners import Endpoint, advertised, listener_specs
from millstream.broker.net.request_memory import RequestMemory, limit_of
from millstream.broker.net.server import Server
from millstream.broker.parts import Opened, Parts, Ports, build
from millstream.cluster.membership import adoption
from millstream.cluster.membership.registration import AlreadyRegistered
from millstream.cluster.replicas.log_configs import LogConfigs
from millstream.cluster.replicas.log_events import ReplicaLogEvents
from millstream.control.image import ClusterImage
from millstream.core.config import BrokerConfig
from millstream.core.errors import ApiError
from millstream.log.directories.ids import check_not_new
from millstream.log.management.manager import LogDirError, LogManager
from millstream.ports.clock import Clock, SystemClock
from millstream.ports.coordination import Coordination
from millstream.ports.embedded_coordination import CorruptStore
from millstream.ports.entropy import Entropy, SystemEntropy
from millstream.ports.files import Files, RealFiles
from millstream.ports.network import Network, SocketNetwork
from millstream.ports.workers import NewWorker, Worker

__all__ = ["Broker", "StartError"]

logger = logging.getLogger("millstream.broker")


class Broker:
    """The interface of a broker: ``start``, ``stop``, and ``failed`` with a reason if it gives up.

    ``parts`` is None until the storage is open. ``image`` is its view of the cluster.
    """

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
        """``intercept`` wraps the handler of all frames, so that tests can inject faults.

        ``existing``: reject data directories that no broker has used.
        """
        self.config = config
        self._ports = Ports(
            files or RealFiles(),
            clock or SystemClock(),
            network or SocketNetwork(),
            entropy or SystemEntropy(),
            new_worker,
        )
        self._coordination = coordination
        self._intercept = intercept
        self._existing = existing
        self._lifecycle = Lifecycle()
        self._background = BackgroundTasks()
        self.failed = self._background.failed
        largest = config.integer("socket.request.max.bytes")
        self._request_memory = RequestMemory(
            limit_of(config.get("queued.max.request.bytes"), largest), largest
        )
        self.server = Server(config, self._ports.network, self._request_memory)
        self.bound: list[Endpoint] = []
        self.advertised: list[Endpoint] = []
        self.image = ClusterImage()
        self.logs: LogManager | None = None
        self.parts: Parts | None = None
        self.dispatcher: Dispatcher | None = None
        self._joined = False

    # ---- startup ----

    async def start(self) -> None:
        """Return when clients are served; raise SettingError or StartError if that is not possible.

        Every step pushes its reversal onto the lifecycle, so that ``stop`` undoes the completed
        steps in reverse order.
        """
        self._bind()
        try:
            parts = await self._open()
            await self._join(parts)
        except (LogDirError, CorruptStore, ApiError, AlreadyRegistered) as error:
            raise StartError(str(error)) from None
        except OSError as error:
            raise StartError(
                f"cannot use {error.filename or 'the data'}: {error.strerror or error}"
            ) from None
        if self.failed.done():
            raise StartError(self.failed.result())
        self._serve(parts)

    def _bind(self) -> None:
        """Bind the listeners first: a second broker with the same settings fails here."""
        self._lifecycle.push(self.server.close, abandon=self.server.abort)
        self.bound = self.server.bind(listener_specs(self.config))
        self.advertised = advertised(self.config, self.bound)

    async def _open(self) -> Parts:
        """Open the data directories and the metadata store, and build the parts on them."""
        config, ports = self.config, self._ports
        log_configs = LogConfigs(self.image, config)
        log_events = ReplicaLogEvents()
        logs = self.logs = LogManager(
            ports.files,
            config.log_dirs,
            config_for=log_configs.of_stored,
            clock=ports.clock.now_ms,
            settings=manager_settings(config),
            events=log_events,
        )
        if self._existing:
            check_not_new(ports.files, config.log_dirs)
        logs.open()
        identity = Identity(config, ports.files, logs, ports.new_id)
        self._lifecycle.push(identity.close, abandon=identity.release)
        self._lifecycle.push(
            lambda: self._close_logs(logs), abandon=lambda: logs.close(broker_epoch=None)
        )
        coordination = await identity.open(self._coordination)
        opened = Opened(
            self.advertised,
            self.image,
            log_configs,
            log_events,
            logs,
            coordination,
            self._request_memory,
            self._background,
        )
        parts = self.parts = build(config, ports, opened)
        self._lifecycle.push(parts.maintenance.close, abandon=parts.maintenance.close)
        self._lifecycle.push(parts.convert_worker.close, abandon=parts.convert_worker.close)
        self._lifecycle.push(parts.fetchers.close)
        return parts

    async def _join(self, parts: Parts) -> None:
        """Join the cluster, which may have only this broker. This also loads the logs."""
        loop = asyncio.get_running_loop()
        alone = is_alone(parts.coordination)
        self._lifecycle.push(self._background.stop)
        self._lifecycle.push(parts.coordinators.close)
        self._lifecycle.push(parts.auto_creation.close)
        self._lifecycle.push(parts.member.close)
        # Followers fetch from this broker until one of them leads in its place.
        self._lifecycle.push(self.server.close, abandon=self.server.abort)
        self._lifecycle.push(lambda: self._hand_over(parts))
        joining = loop.create_task(
            parts.member.join(
                self._background.run, alone=alone, timeout_s=registration_patience_s(self.config)
            )
        )
        await asyncio.wait((joining, self.failed), return_when=asyncio.FIRST_COMPLETED)
        if not joining.done():
            joining.cancel()
            raise StartError(self.failed.result())
        joining.result()
        # The controller has registered this startup, and reacted to a reboot of the machine.
        await loop.run_in_executor(None, parts.logs.note_machine)
        if alone:
            await self._adopt(parts)
        else:
            await loop.run_in_executor(None, note_cluster, self.config, parts.files, parts.logs)
            parts.producer_ids.stay_above(adoption.highest_producer_id(parts.logs))
            self._background.run("producer ids", parts.producer_ids.keep_ahead())
        parts.coordinators.begin()
        self._joined = True

    async def _adopt(self, parts: Parts) -> None:
        """Adopt the topics that only the data directories know."""
        controller = parts.local_controller
        for topic in adoption.unknown_topics(self.image, parts.logs, parts.new_id):
            settings = ", ".join(f"{name}={value}" for name, value in topic.configs)
            logger.info(
                "adopting topic %s with %d partitions and settings %s",
                topic.name,
                len(topic.epochs),
                settings,
            )
            await controller.adopt_topic(
                topic.name, topic.topic_id, topic.epochs, parts.node_id, dict(topic.configs)
            )
        await controller.skip_producer_ids(parts.node_id, adoption.highest_producer_id(parts.logs))
        await parts.member.housekeeping.drop_deletion_records()

    def _serve(self, parts: Parts) -> None:
        self.dispatcher = Dispatcher(parts)
        self.server.start(self._intercept(self.dispatcher))
        self._background.run("housekeeping", parts.housekeeping.run())
        self._background.run("in-sync replicas", parts.isr.run())
        parts.maintenance.start(self._background)

    # ---- shutdown ----

    async def stop(self) -> None:
        """Send pending responses, flush, and mark the directories as cleanly closed."""
        await self._lifecycle.stop()

    async def abandon(self) -> None:
        """Release sockets, files and child processes as a killed process does."""
        await self._lifecycle.abandon()

    async def _hand_over(self, parts: Parts) -> None:
        if self.config.flag("controlled.shutdown.enable"):
            await parts.member.hand_over()
            await parts.fetchers.close()
            await parts.member.resign()

    async def _close_logs(self, logs: LogManager) -> None:
        """Mark the logs as cleanly closed only if all were loaded and checked."""
        broker_epoch = 0 if self._joined else None
        close = partial(logs.close, broker_epoch=broker_epoch)
        await asyncio.get_running_loop().run_in_executor(None, close)
