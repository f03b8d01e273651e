"""Follows the cluster's metadata: loads the topics at startup, then applies each change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from millstream.broker.configs.storage import manager_settings
from millstream.broker.coordinators import Coordinators
from millstream.broker.maintenance import Maintenance
from millstream.cluster.membership import adoption
from millstream.cluster.replicas.manager import ReplicaManager
from millstream.cluster.replicas.throttles import Throttle
from millstream.control import znodes
from millstream.control.image import Change, ClusterImage
from millstream.core.broker_settings import BROKER_SETTINGS
from millstream.core.config import BrokerConfig
from millstream.core.errors import ApiError
from millstream.core.settings import SettingError, Value
from millstream.log.management.manager import LogDirError, LogManager
from millstream.ports.embedded_coordination import CorruptStore

logger = logging.getLogger("millstream.broker")


class MetadataChanges:
    """Called after each change of the image. At the first call, the image is complete."""

    def __init__(
        self,
        config: BrokerConfig,
        image: ClusterImage,
        logs: LogManager,
        replicas: ReplicaManager,
        coordinators: Coordinators,
        throttles: Sequence[Throttle],
        maintenance: Maintenance,
        fail: Callable[[str], None],
    ) -> None:
        self._config = config
        self._image = image
        self._logs = logs
        self._replicas = replicas
        self._coordinators = coordinators
        self._throttles = throttles
        self._maintenance = maintenance
        self._fail = fail
        self._topics_loaded = False

    async def __call__(self, changes: Sequence[Change]) -> None:
        if not self._topics_loaded:
            await self._load_topics_or_fail()
            return
        topics = [change for change in changes if change.topic is not None]
        if len(topics) < len(changes):
            await self._on_settings()
        if topics:
            await self._replicas.hosting.follow(topics)
        self._coordinators.topics_changed(changes)

    # ---- startup ----

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
        # Wait for ever: the broker is about to stop.
        await asyncio.get_running_loop().create_future()

    async def _load_topics(self) -> None:
        """Open and recover the logs in a thread, so that signals are still handled."""
        self._apply_dynamic_settings()
        await asyncio.get_running_loop().run_in_executor(None, self._load_logs)
        adoption.finish_deletions(self._image, self._logs)
        adoption.move_away_strays(self._image, self._logs)
        adoption.move_away_reassigned(self._image, self._logs, self._config.node_id)
        adoption.preserve_unknown(self._image, self._logs)
        await self._replicas.hosting.load()

    def _load_logs(self) -> None:
        for _loaded in self._logs.load():
            pass

    # ---- settings ----

    async def _on_settings(self) -> None:
        """Apply changes of brokers, their settings, or features."""
        before = self._config.cluster, self._config.broker
        self._apply_dynamic_settings()
        self._coordinators.reconfigure()
        if before == (self._config.cluster, self._config.broker):
            return
        for throttle in self._throttles:
            throttle.reconfigure()
        self._maintenance.reconfigure()
        await self._replicas.hosting.reconfigure_all()

    def _apply_dynamic_settings(self) -> None:
        configs = self._image.broker_configs
        self._config.cluster = _parsed(configs.get(znodes.DEFAULT_BROKER, {}))
        self._config.broker = _parsed(configs.get(str(self._config.node_id), {}))
        self._logs.reconfigure(manager_settings(self._config))


def _parsed(texts: dict[str, str]) -> dict[str, Value]:
    """Parse the stored settings that take effect.

    Settings that can only be given at startup are ignored: an earlier release may have stored them.
    """
    values: dict[str, Value] = {}
    for name, text in texts.items():
        row = BROKER_SETTINGS.get(name)
        if row is None or not row.update:
            continue
        try:
            values[name] = row.parse(text)
        except SettingError as error:
            logger.error(
                "a stored setting of this broker is not understood and left out: %s", error
            )
    return values
