"""A real ZooKeeper server for the tests of this directory, one for all of them; skipped where there is no Java or no jars."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.cli.zookeeper_jars import NoZooKeeper, find_jars
from millstream.cli.zookeeper_server import LocalZooKeeper
from millstream.client.java import NoJava, find_java

# Short ticks, so that sessions of a second are possible and end soon.
TICK_MS = 100


@pytest.fixture(scope="session")
def zookeeper_installed() -> None:
    try:
        find_jars()
        find_java("ZooKeeper")
    except (NoZooKeeper, NoJava) as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def zookeeper(
    zookeeper_installed: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalZooKeeper]:
    server = LocalZooKeeper(tmp_path_factory.mktemp("zookeeper"), tick_ms=TICK_MS)
    server.start()
    yield server
    server.kill()
