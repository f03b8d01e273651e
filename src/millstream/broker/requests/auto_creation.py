"""Creates missing topics that clients request, in the background.

As in Kafka's AutoTopicCreationManager, the Metadata request that begins a creation gets its
response at once: the topic is unknown, and the client retries. A topic whose creation is in flight
is not created again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

from millstream.cluster.controller.client import ControllerClient
from millstream.cluster.coordinators.internal_topics import InternalTopics
from millstream.control.image import INTERNAL_TOPICS
from millstream.control.topics import MAX_CREATED, NewTopic
from millstream.core.errors import ErrorCode
from millstream.log.rate_limited_logging import RateLimitedLog

if TYPE_CHECKING:
    from millstream.broker.net.connection import Connection

logger = logging.getLogger("millstream.metadata")

# Maximum number of topics in flight. The controller rejects a larger request anyway.
MAX_IN_FLIGHT = MAX_CREATED
# Maximum time a creation is retried while no controller can be reached, as in Kafka.
_RETRY_TIMEOUT_S = 60.0
_RETRY_S = 0.1

_Creation = asyncio.Task[None]


class AutoCreation:
    """The creations in flight of a broker. They continue if the client disconnects."""

    def __init__(self, controller_client: ControllerClient, internal: InternalTopics) -> None:
        self._controller_client = controller_client
        self._internal = internal
        self._rate_limited = RateLimitedLog(logger)
        self._in_flight: dict[str, _Creation] = {}
        self._awaited_by: WeakKeyDictionary[Connection, WeakSet[_Creation]] = WeakKeyDictionary()

    def begin(self, names: Sequence[str], connection: Connection) -> None:
        """Begin to create topics with valid names, except those in flight."""
        new: list[NewTopic] = []
        if len(self._in_flight) + len(names) <= MAX_IN_FLIGHT:
            new = [self._new_topic(name) for name in names if self._may_begin(name)]
        else:
            self._log(f"too many topics to create at once: at most {MAX_IN_FLIGHT:,} are in flight")
        if new:
            creation = asyncio.get_running_loop().create_task(self._create(new))
            self._in_flight.update((topic.name, creation) for topic in new)
            creation.add_done_callback(partial(self._ended, new))
        creations = {self._in_flight[name] for name in names if name in self._in_flight}
        if creations:
            self._awaited_by.setdefault(connection, WeakSet()).update(creations)

    async def settled(self, connection: Connection, timeout_s: float) -> None:
        """Wait for the creations that earlier requests of a connection have begun.

        Kafka sends creations and forwarded requests to the controller through one queue. A
        CreateTopics or DeleteTopics behind a Metadata request finds the topic that it creates.
        """
        creations = self._awaited_by.pop(connection, None)
        if creations:
            await asyncio.wait(set(creations), timeout=timeout_s)

    def close(self) -> None:
        for creation in set(self._in_flight.values()):
            creation.cancel()

    def _may_begin(self, name: str) -> bool:
        may_exist = name not in INTERNAL_TOPICS or name in self._internal.names
        return name not in self._in_flight and may_exist

    def _new_topic(self, name: str) -> NewTopic:
        """Internal topics get the shape that their coordinators need."""
        if name in INTERNAL_TOPICS:
            return self._internal.new_topic(name)
        return NewTopic(name, -1, -1)

    async def _create(self, topics: Sequence[NewTopic]) -> None:
        now = asyncio.get_running_loop().time
        deadline_s = now() + _RETRY_TIMEOUT_S
        while True:
            outcomes = await self._controller_client.create_topics(topics)
            # No controller could be reached.
            unreachable = ErrorCode.LEADER_NOT_AVAILABLE
            for name, outcome in outcomes.items():
                if outcome.code not in (
                    ErrorCode.NONE,
                    ErrorCode.TOPIC_ALREADY_EXISTS,
                    unreachable,
                ):
                    self._log(
                        f"topic {name} cannot be created: {outcome.message or outcome.code.message}"
                    )
            topics = [topic for topic in topics if outcomes[topic.name].code is unreachable]
            if not topics:
                return
            if now() > deadline_s:
                name = topics[0].name
                self._log(
                    f"topic {name} cannot be created: no controller: {outcomes[name].message}"
                )
                return
            await asyncio.sleep(_RETRY_S)

    def _ended(self, topics: Sequence[NewTopic], creation: _Creation) -> None:
        for topic in topics:
            del self._in_flight[topic.name]
        if not creation.cancelled() and (error := creation.exception()) is not None:
            logger.error("topics cannot be created", exc_info=error)

    def _log(self, message: str) -> None:
        self._rate_limited.log(logging.WARNING, "creation", message)
