"""Whether a real ZooKeeper server can be started here."""

from __future__ import annotations

import pytest

from millstream.client.java import NoJava, find_java
from millstream.local.zookeeper_jars import NoZooKeeper, find_jars


def skip_without_zookeeper() -> None:
    """Skips the test, or everything that uses the fixture, where there is no Java or there are no
    jars.
    """
    try:
        find_jars()
        find_java("ZooKeeper")
    except (NoZooKeeper, NoJava) as error:
        # ZooKeeper is a Java program: without a Java, or its jars, no such server can be had.
        pytest.skip(str(error))
