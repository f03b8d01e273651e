"""Creates topics that clients ask for and that do not exist, where the settings allow it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from millstream.cluster.controller.client import ControllerClient
from millstream.cluster.coordinators.internal_topics import InternalTopics
from millstream.control.image import INTERNAL_TOPICS
from millstream.control.topics import NewTopic
from millstream.core.errors import ApiError, ErrorCode
from millstream.log.rate_limited_logging import RateLimitedLog

log = logging.getLogger("millstream.metadata")

# Maximum time an answer waits for the creation, which goes on without it.
_WAIT_S = 1.0


class AutoCreation:
    """Belongs to a broker. A creation goes on when the request that began it no longer waits."""

    def __init__(self, controller_client: ControllerClient, internal: InternalTopics) -> None:
        self._controller_client = controller_client
        self._internal = internal
        self._rate_limited = RateLimitedLog(log)
        self._creations: set[asyncio.Task[None]] = set()

    async def create(self, names: Sequence[str]) -> None:
        """Create topics, as far as that is possible; return after a moment in any case."""
        creation = asyncio.get_running_loop().create_task(self._create(names))
        self._creations.add(creation)
        creation.add_done_callback(self._creations.discard)
        await asyncio.wait((creation,), timeout=_WAIT_S)

    def close(self) -> None:
        for creation in self._creations:
            creation.cancel()

    async def _create(self, names: Sequence[str]) -> None:
        """Internal topics get the shape that their coordinators need."""
        for name in names:
            if name in INTERNAL_TOPICS:
                with suppress(ApiError):
                    await self._internal.ensure(name)
        ordinary = [NewTopic(name, -1, -1) for name in names if name not in INTERNAL_TOPICS]
        if not ordinary:
            return
        try:
            outcomes = await self._controller_client.create_topics(ordinary)
        except (ApiError, OSError) as error:
            self._log(f"topics cannot be created now: {error}")
            return
        for name, outcome in outcomes.items():
            if outcome.code and outcome.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                self._log(f"topic {name} cannot be created: {outcome.message or outcome.code.message}")

    def _log(self, message: str) -> None:
        self._rate_limited.log(logging.WARNING, "creation", message)
