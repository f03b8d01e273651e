"""The jars of a ZooKeeper server: where they are found, and the error if they are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.local import zookeeper_jars
from millstream.local.zookeeper_jars import NoZooKeeper, find_jars


def jars(directory: Path, *names: str) -> Path:
    directory.mkdir(parents=True)
    for name in names:
        (directory / f"{name}.jar").touch()
    return directory


def places(monkeypatch: pytest.MonkeyPatch, *directories: Path) -> None:
    monkeypatch.setattr(zookeeper_jars, "_places", lambda: iter(directories))


def test_the_classpath_has_what_a_server_needs_and_one_that_writes_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = jars(
        tmp_path / "spark",
        "zookeeper-3.9.5",
        "zookeeper-jute-3.9.5",
        "slf4j-api-2.0.17",
        "netty-handler-4.2.13.Final",
        "netty-transport-4.2.13.Final",
        "log4j-api-2.25.4",
        "log4j-core-2.25.4",
        "log4j-slf4j2-impl-2.25.4",
        "slf4j-simple-2.0.17",
        "spark-core_2.13-4.3.0",
    )
    places(monkeypatch, spark)
    names = {path.stem for path in find_jars()}
    assert {"zookeeper-3.9.5", "zookeeper-jute-3.9.5", "netty-handler-4.2.13.Final"} <= names
    assert "log4j-slf4j2-impl-2.25.4" in names
    assert not {"slf4j-simple-2.0.17", "spark-core_2.13-4.3.0"} & names


def test_jars_without_versions_are_found_where_pyspark_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = jars(tmp_path / "spark", "slf4j-api-2.0.17")
    debian = jars(
        tmp_path / "debian",
        "zookeeper",
        "zookeeper-3.8.0",
        "zookeeper-jute",
        "slf4j-api",
        "slf4j-simple",
    )
    places(monkeypatch, spark, debian)
    found = find_jars()
    assert {path.parent for path in found} == {debian}
    assert sum(path.stem.startswith("zookeeper") and "jute" not in path.stem for path in found) == 1
    assert "slf4j-simple" in {path.stem for path in found}


def test_where_there_are_no_jars_that_is_told_with_the_ways_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places(monkeypatch, jars(tmp_path / "spark", "zookeeper-3.9.5"))
    with pytest.raises(NoZooKeeper) as caught:
        find_jars()
    for word in (
        str(tmp_path / "spark"),
        'pip install "millstream[spark]"',
        "Debian",
        "--zookeeper HOST:PORT",
    ):
        assert word in str(caught.value)
