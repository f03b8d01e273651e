"""The class archive of the driver, and a JVM that starts from one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.client.java import Java
from millstream.spark import class_archive


def test_archive_belongs_to_one_java(tmp_path: Path) -> None:
    paths = set()
    for version in ("17.0.1", "17.0.2", "21.0.1"):
        home = tmp_path / version
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "java").touch()
        (home / "release").write_text(f'JAVA_VERSION="{version}"\n')
        java = Java(home, home / "bin" / "java", int(version[:2]))
        paths.add(class_archive.archive_path(tmp_path, java))
    assert len(paths) == 3


def test_missing_archive_gives_no_options(tmp_path: Path) -> None:
    assert class_archive.options_to_use(tmp_path / "none.jsa") == ()


def test_homes_of_removed_installations_are_removed(tmp_path: Path) -> None:
    for name, target in (("spark-kept", tmp_path), ("spark-stale", tmp_path / "gone")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "jars").symlink_to(target)
        (tmp_path / name / "classes-1.jsa").touch()
    (tmp_path / "spark-other").mkdir()
    class_archive.remove_stale_homes(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spark-kept", "spark-other"]


@pytest.mark.long
def test_prepared_spark_starts_from_the_archive(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "millstream", "spark", "prepare", "--format", "json"]

    def prepare(*more: str) -> dict[str, object]:
        ran = subprocess.run(
            [*command, *more], env=environment, capture_output=True, text=True, check=True
        )
        facts: dict[str, object] = json.loads(ran.stdout)
        return facts

    first = prepare()
    assert first["made"] is True
    assert prepare()["made"] is False
    program = (
        "from millstream.spark.session import session\n"
        "spark = session(conf={'spark.driver.extraJavaOptions': '-Xlog:class+load:file=' + LOG})\n"
        "print(spark.range(3).count())\n"
        "spark.stop()\n"
    )
    log = tmp_path / "classes.log"
    ran = subprocess.run(
        [sys.executable, "-c", f"LOG = {str(log)!r}\n{program}"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == "3"
    loaded = [line for line in log.read_text().splitlines() if "org.apache.spark." in line]
    shared = [line for line in loaded if "shared objects file" in line]
    assert len(shared) > len(loaded) // 2
