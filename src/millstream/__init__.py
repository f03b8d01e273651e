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

    __version__: str

UNKNOWN_VERSION = "0+unknown"
_OF_CLIENT = ("Admin", "AsyncConsumer", "AsyncProducer", "Consumer", "Producer")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in _OF_CLIENT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from millstream import client

    return getattr(client, name)


def _version() -> str:
    """Return the version that the build wrote from the git tags.

    Sources on the path that were never built have the version of the installed package.
    """
    from importlib import import_module

    try:
        version: str = import_module("millstream._version").version
    except ImportError:
        from importlib import metadata

        try:
            version = metadata.version("millstream")
        except metadata.PackageNotFoundError:
            version = UNKNOWN_VERSION
    globals()["__version__"] = version
    return version
