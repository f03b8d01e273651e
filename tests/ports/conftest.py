"""A real ZooKeeper server for the tests of this directory, one for all of them; skipped where there
is no Java or no jars.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.local.zookeeper import LocalZooKeeper
from support.zookeeper import skip_without_zookeeper

# Short ticks, so that sessions of a second are possible and end soon.
TICK_MS = 100


@pytest.fixture(scope="session")
def zookeeper_installed() -> None:
    skip_without_zookeeper()


@pytest.fixture(scope="session")
def zookeeper(
    zookeeper_installed: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalZooKeeper]:
    server = LocalZooKeeper(tmp_path_factory.mktemp("zookeeper"), tick_ms=TICK_MS)
    server.start()
    yield server
    server.kill()
