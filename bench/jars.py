"""Jars of Spark's own connectors and of database drivers, fetched with Maven.

The paths are cached beside the results, by coordinates.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.model import HERE

CACHE = HERE / "results" / "jars"
TIMEOUT_S = 300
# Groups that Spark contains, in versions that fit it.
OF_SPARK = ("org.apache.spark", "org.apache.hadoop", "org.scala-lang", "org.scala-lang.modules", "com.google.code.findbugs")  # fmt: skip
# Older connectors that run on newer Spark, if that of the installed version is not available.
OLDER_CONNECTORS = ("4.2.1", "4.2.0")
# It is not always published with the connector, and has not changed.
OLDEST_TOKEN_PROVIDER = "4.0.0"
SQLITE = "org.xerial:sqlite-jdbc:3.46.1.3"
POSTGRESQL = "org.postgresql:postgresql:42.7.4"
DELTA = ("io.delta:delta-spark_4.1_2.13:4.2.0", "io.delta:delta-spark_2.13:4.0.0")


class Missing(Exception):
    """Jars that are not available here."""


def kafka(spark_version: str) -> tuple[str, ...]:
    """Return Spark's Kafka connector of this version, else the newest known to run on it."""
    return _first(
        [
            (
                f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}",
                f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{tokens}",
            )
            for version in (spark_version, *OLDER_CONNECTORS)
            for tokens in dict.fromkeys((version, OLDEST_TOKEN_PROVIDER))
        ]
    )


def delta() -> tuple[str, ...]:
    return _first([(coordinate,) for coordinate in DELTA])


def _first(choices: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the first choice that is cached, else the first that can be fetched."""
    for coordinates in choices:
        if cached := _listed(_folder(coordinates)):
            return cached
    reason = None
    for coordinates in choices:
        try:
            return jars(*coordinates)
        except Missing as missing:
            reason = reason or missing
    raise Missing(str(reason))


def jars(*coordinates: str) -> tuple[str, ...]:
    """Return the jars of ``group:artifact:version`` and of their dependencies."""
    folder = _folder(coordinates)
    if cached := _listed(folder):
        return cached
    maven = shutil.which("mvn")
    if maven is None:
        raise Missing(f"{coordinates[0]} needs Maven, and the program mvn does not exist")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pom.xml").write_text(_pom(coordinates), encoding="utf-8")
    command = [
        maven,
        "-q",
        "-B",
        "dependency:build-classpath",
        f"-Dmdep.outputFile={folder / 'jars'}",
    ]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"Maven did not fetch {coordinates[0]} within {TIMEOUT_S} s") from None
    if done.returncode:
        raise Missing(f"Maven cannot fetch {coordinates[0]}")
    return _listed(folder)


def _folder(coordinates: Sequence[str]) -> Path:
    return CACHE / hashlib.sha256(" ".join(coordinates).encode()).hexdigest()[:16]


def _listed(folder: Path) -> tuple[str, ...]:
    listed = folder / "jars"
    paths = tuple(listed.read_text().strip().split(os.pathsep)) if listed.exists() else ()
    return paths if all(Path(path).exists() for path in paths) else ()


def _pom(coordinates: Sequence[str]) -> str:
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>bench</groupId><artifactId>jars</artifactId>"
        f"<version>1</version><dependencies>{''.join(_dependency(coordinate) for coordinate in coordinates)}</dependencies></project>"
    )


def _dependency(coordinate: str) -> str:
    group, artifact, version = coordinate.split(":")
    exclusions = "".join(
        f"<exclusion><groupId>{group_id}</groupId><artifactId>*</artifactId></exclusion>"
        for group_id in OF_SPARK
    )
    return (
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        f"<exclusions>{exclusions}</exclusions></dependency>"
    )
