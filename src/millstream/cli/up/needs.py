"""Check that the dependencies of ``millstream up`` are installed, before it starts anything."""

from __future__ import annotations

import importlib.util

from millstream.client.errors import ClientError
from millstream.client.java import NoJava, find_java
from millstream.local.zookeeper_jars import NoZooKeeper, find_jars


def check_installed(*, own_zookeeper: bool) -> None:
    """Raise ClientError that lists everything missing, so that one installation is enough."""
    no_server = _why_no_server() if own_zookeeper else None
    if importlib.util.find_spec("kazoo") is not None:
        if no_server is not None:
            raise no_server
        return
    if no_server is None:
        raise ClientError(
            "the brokers of a cluster need the package kazoo, which is not installed",
            hint='pip install "millstream[cluster]"',
        )
    raise ClientError(
        f"a cluster needs the package kazoo, which is not installed, and ZooKeeper: {no_server.message}",
        hint='`pip install "millstream[cluster,spark]"` installs both; or use an existing ZooKeeper '
        '(--zookeeper HOST:PORT) and `pip install "millstream[cluster]"`',
    )


def _why_no_server() -> ClientError | None:
    try:
        find_jars()
        find_java("ZooKeeper")
    except (NoZooKeeper, NoJava) as error:
        return error
    return None
