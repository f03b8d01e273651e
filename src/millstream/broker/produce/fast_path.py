"""The usual produce once more: a producer that sends to the same partition as a moment ago.

A producer repeats itself. Between two requests to one partition only the correlation id and the records differ, so what is
between them is compared, not decoded: the broker remembers it together with what it meant. Whatever differs, may have to wait or
goes wrong is left to ``handlers/produce.py``, which says the same about these requests (a test holds both against each other).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from millstream.broker.net.context import RequestContext
from millstream.broker.net.responses import Encoded
from millstream.control.image import INTERNAL_TOPICS
from millstream.core.errors import ApiError
from millstream.core.settings import LONG_MAX
from millstream.wire import produce_codec
from millstream.wire.compiler import read_uvarint
from millstream.wire.produce_codec import NO_TAGS, ProduceRequest, TopicKey
from millstream.wire.records.compression import Codec
from millstream.wire.records.layout import FLAGS_AT, HEADER_SIZE, MAGIC, MAGIC_AT

if TYPE_CHECKING:
    from millstream.broker.app import Broker
    from millstream.broker.net.connection import Connection
    from millstream.cluster.replicas.partition import Partition

# Of a request: the API and its version (one number here), then the correlation id, then what repeats itself.
_HEAD = struct.Struct(">Ii").unpack_from
_REPEATS_FROM = 8
# The last codec: every bit above those of the codec needs a closer look.
_LAST_CODEC = int(Codec.ZSTD)
# The longest size prefix of records, and a batch without records.
_SHORTEST = 5 + HEADER_SIZE + len(NO_TAGS)
_MOST_REMEMBERED = 10_000
# More than a name of a client and one of a topic need: what is remembered must cost little, also where clients are up to something.
_LONGEST = 1024


class UsualProduce(NamedTuple):
    """What a request meant, by the bytes that it repeats."""

    api_and_version: int
    version: int
    key: TopicKey
    partition: int
    acks_all: bool
    answer: bytes  # what the answers have in common


def again(broker: Broker, connection: Connection, frame: memoryview) -> Encoded | None:
    """The answer to a request like one before; None where it is another, or not as simple."""
    at = connection.usual_until
    if len(frame) < at + _SHORTEST:
        return None
    usual = broker.usual_produces.get(bytes(frame[_REPEATS_FROM:at]))
    if usual is None:
        return None
    size, start = read_uvarint(frame, at)
    end = start + size - 1
    api_and_version, correlation_id = _HEAD(frame)
    if api_and_version != usual.api_and_version or size <= HEADER_SIZE or frame[end:] != NO_TAGS:
        return None
    if frame[start + MAGIC_AT] != MAGIC or frame[start + FLAGS_AT] > _LAST_CODEC:
        return None
    partition = _ready(broker, usual)
    if partition is None:
        return None
    try:
        result = partition.append(frame[start:end], now_ms=broker.clock.now_ms(), needs_all=usual.acks_all)
    except ApiError as error:
        return Encoded([_refusal(usual, correlation_id, error)])
    return Encoded(
        [
            produce_codec.encode_alone(
                usual.answer,
                correlation_id,
                result.base_offset,
                result.append_time_ms,
                result.log_start_offset,
            )
        ]
    )


def _ready(broker: Broker, usual: UsualProduce) -> Partition | None:
    """The partition, where a batch can be appended as it is and acknowledged at once."""
    key, replicas = usual.key, broker.replicas
    try:
        partition = (
            replicas.leader_by_id(key, usual.partition)
            if isinstance(key, bytes)
            else replicas.leader(key, usual.partition)
        )
    except ApiError:
        return None
    log = partition.log
    if log is None or not log.config.takes_as_sent or log.config.flush_messages != LONG_MAX or log.flush_due:
        return None
    if usual.acks_all and (partition.followers is not None or len(partition.isr) != 1):
        return None
    return partition


def _refusal(usual: UsualProduce, correlation_id: int, error: ApiError) -> bytes | bytearray:
    answer = produce_codec.refusal(usual.partition, error)
    return produce_codec.encode(usual.version, correlation_id, [(usual.key, [answer])])


def remember(
    broker: Broker, context: RequestContext, frame: memoryview, body: int, request: ProduceRequest
) -> None:
    """So that the next one of its kind is quick. Called with requests that were answered at once, and well."""
    until = produce_codec.usual_length(request, frame, body, context.version)
    if until is None or until > _LONGEST:
        return
    context.connection.usual_until = until
    repeated = bytes(frame[_REPEATS_FROM:until])
    known = broker.usual_produces
    ((key, ((index, _),)),) = request.topics
    if repeated in known or _is_internal(broker, key):
        return
    if len(known) >= _MOST_REMEMBERED:
        known.clear()
    api_and_version = _HEAD(frame)[0]
    answer = produce_codec.alone(key, index)
    if answer is not None:
        known[repeated] = UsualProduce(
            api_and_version, context.version, key, index, request.acks == -1, answer
        )


def _is_internal(broker: Broker, key: TopicKey) -> bool:
    """Who may write there is decided anew each time."""
    try:
        return (broker.replicas.name_of(key) if isinstance(key, bytes) else key) in INTERNAL_TOPICS
    except ApiError:
        return True
