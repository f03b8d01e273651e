"""``Record``: a record as a consumer hands it out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from millstream.client.library import Message

TimestampType = Literal["none", "create", "append"]
Headers = tuple[tuple[str, bytes | None], ...]

_TIMESTAMP_TYPES: tuple[TimestampType, ...] = ("none", "create", "append")


class Record(NamedTuple):
    """One record. A tuple, because consumers create hundreds of thousands per second.

    Key and value are bytes or None, unless the consumer decodes them (``client/serdes.py``).
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: TimestampType
    key: Any
    value: Any
    headers: Headers


def from_message(message: Message) -> Record:
    """Convert a message of confluent-kafka that carries no error."""
    kind, timestamp_ms = message.timestamp()
    return Record(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        timestamp_ms,
        _TIMESTAMP_TYPES[kind],
        message.key(),
        message.value(),
        tuple(message.headers() or ()),  # type: ignore[arg-type]
    )
