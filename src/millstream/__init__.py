"""Millstream: a Kafka for people who live in Python.

``from millstream import Producer, Consumer, Admin``: loaded on first use, since librdkafka takes 60
ms to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.client import Admin as Admin
    from millstream.client import AsyncConsumer as AsyncConsumer
    from millstream.client import AsyncProducer as AsyncProducer
    from millstream.client import Consumer as Consumer
    from millstream.client import Producer as Producer

__version__ = "0.1.0"

_OF_CLIENT = ("Admin", "AsyncConsumer", "AsyncProducer", "Consumer", "Producer")


def __getattr__(name: str) -> Any:
    if name not in _OF_CLIENT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from millstream import client

    return getattr(client, name)
