"""The fast path of Produce: a producer that sends to the same partition as a moment ago.

A producer repeats itself. Between two requests to one partition only the correlation id and the
records differ. The bytes between them are compared instead of decoded: the broker remembers them
together with their meaning. A request that differs, or may have to wait, is left to
``handlers/produce.py``, which responds to such requests in the same way (a test compares both).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from millstream.broker.net.context import RequestContext
from millstream.broker.net.responses import Encoded
from millstream.cluster.replicas.manager import ReplicaManager
from millstream.control.image import INTERNAL_TOPICS
from millstream.core.errors import ApiError
from millstream.core.settings import LONG_MAX
from millstream.ports.clock import Clock
from millstream.wire import produce_codec
from millstream.wire.compiler import read_uvarint
from millstream.wire.produce_codec import NO_TAGS, ProduceRequest, TopicKey
from millstream.wire.records.compression import Codec
from millstream.wire.records.layout import FLAGS_AT, HEADER_SIZE, MAGIC, MAGIC_AT

if TYPE_CHECKING:
    from millstream.broker.net.connection import Connection
    from millstream.cluster.replicas.partition import Partition

# The head of a request: API and version (read as one number), correlation id. The bytes that
# repeat follow.
_HEAD = struct.Struct(">Ii").unpack_from
_REPEATS_FROM = 8
# The last codec: every bit above those of the codec needs a closer look.
_LAST_CODEC = int(Codec.ZSTD)
# The longest size prefix of records, and a batch without records.
_MIN_REST = 5 + HEADER_SIZE + len(NO_TAGS)
_MAX_TEMPLATES = 10_000
# Longer than the names of a client and a topic. Hostile clients must not fill the memory.
_MAX_PREFIX = 1024


class Template(NamedTuple):
    """The meaning of a request, by the bytes that it repeats."""

    api_and_version: int
    version: int
    key: TopicKey
    partition: int
    acks_all: bool
    # The common part of the responses.
    response: bytes


class ProduceFastPath:
    """Handles produce requests that repeat an earlier one.

    ``prefixes`` has the connections that have produced, with the length of the repeated bytes.
    """

    def __init__(self, replicas: ReplicaManager, clock: Clock) -> None:
        self._replicas = replicas
        self._clock = clock
        self.templates: dict[bytes, Template] = {}
        self.prefixes: dict[Connection, int] = {}

    def again(self, connection: Connection, frame: memoryview) -> Encoded | None:
        """Return the response to a request like an earlier one; None if the handler must do it."""
        at = self.prefixes[connection]
        if len(frame) < at + _MIN_REST:
            return None
        template = self.templates.get(bytes(frame[_REPEATS_FROM:at]))
        if template is None:
            return None
        size, start = read_uvarint(frame, at)
        end = start + size - 1
        api_and_version, correlation_id = _HEAD(frame)
        if (
            api_and_version != template.api_and_version
            or size <= HEADER_SIZE
            or frame[end:] != NO_TAGS
        ):
            return None
        if frame[start + MAGIC_AT] != MAGIC or frame[start + FLAGS_AT] > _LAST_CODEC:
            return None
        partition = self._ready(template)
        if partition is None:
            return None
        try:
            result = partition.append(
                frame[start:end], now_ms=self._clock.now_ms(), needs_all=template.acks_all
            )
        except ApiError as error:
            return Encoded([_rejection(template, correlation_id, error)])
        return Encoded(
            [
                produce_codec.encode_single(
                    template.response,
                    correlation_id,
                    result.base_offset,
                    result.append_time_ms,
                    result.log_start_offset,
                )
            ]
        )

    def _ready(self, template: Template) -> Partition | None:
        """Return the partition if a batch can be appended unchanged and acknowledged at once."""
        key, replicas = template.key, self._replicas
        try:
            partition = (
                replicas.leader_by_id(key, template.partition)
                if isinstance(key, bytes)
                else replicas.leader(key, template.partition)
            )
        except ApiError:
            return None
        log = partition.log
        if (
            log is None
            or not log.config.takes_as_sent
            or log.config.flush_messages != LONG_MAX
            or log.flush_due
        ):
            return None
        if template.acks_all and (partition.followers is not None or len(partition.isr) != 1):
            return None
        return partition

    def remember(
        self, context: RequestContext, frame: memoryview, body: int, request: ProduceRequest
    ) -> None:
        """Remember a request that succeeded at once, so that the next one like it is fast."""
        until = produce_codec.fast_path_length(request, frame, body, context.version)
        if until is None or until > _MAX_PREFIX:
            return
        connection = context.connection
        if connection not in self.prefixes:
            connection.call_on_close(self._drop)
        self.prefixes[connection] = until
        repeated = bytes(frame[_REPEATS_FROM:until])
        templates = self.templates
        ((key, ((index, _),)),) = request.topics
        if repeated in templates or self._is_internal(key):
            return
        if len(templates) >= _MAX_TEMPLATES:
            templates.clear()
        api_and_version = _HEAD(frame)[0]
        response = produce_codec.single_prefix(key, index)
        if response is not None:
            templates[repeated] = Template(
                api_and_version, context.version, key, index, request.acks == -1, response
            )

    def _drop(self, connection: Connection) -> None:
        self.prefixes.pop(connection, None)

    def _is_internal(self, key: TopicKey) -> bool:
        """Return whether a topic is internal: the handler decides about each request for those."""
        try:
            return (
                self._replicas.name_of(key) if isinstance(key, bytes) else key
            ) in INTERNAL_TOPICS
        except ApiError:
            return True


def _rejection(template: Template, correlation_id: int, error: ApiError) -> bytes | bytearray:
    result = produce_codec.rejection(template.partition, error)
    return produce_codec.encode(template.version, correlation_id, [(template.key, [result])])
