"""Jars of Spark's own connectors and of database drivers, as Maven brings them; what cannot be had is told with the reason.

Which jars they are is kept beside the results, by what was asked for.
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
# What Spark brings itself, in versions that fit it.
OF_SPARK = ("org.apache.spark", "org.apache.hadoop", "org.scala-lang", "org.scala-lang.modules", "com.google.code.findbugs")  # fmt: skip
# Where the connector of the installed Spark cannot be had: older ones that run on it.
OLDER_CONNECTORS = ("4.2.1", "4.2.0")
OLDEST_TOKEN_PROVIDER = "4.0.0"  # it is not always published with the connector, and has not changed
SQLITE = "org.xerial:sqlite-jdbc:3.46.1.3"
POSTGRESQL = "org.postgresql:postgresql:42.7.4"
DELTA = ("io.delta:delta-spark_4.1_2.13:4.2.0", "io.delta:delta-spark_2.13:4.0.0")


class Missing(Exception):
    """Jars that cannot be had here."""


def kafka(spark_version: str) -> tuple[str, ...]:
    """Spark's Kafka connector: that of this Spark, else the newest that is known to run on it."""
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
    return _first([(one,) for one in DELTA])


def _first(choices: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The first that was had before, else the first that can be had."""
    for coordinates in choices:
        if found := _listed(_place(coordinates)):
            return found
    why = None
    for coordinates in choices:
        try:
            return jars(*coordinates)
        except Missing as missing:
            why = why or missing
    raise Missing(str(why))


def jars(*coordinates: str) -> tuple[str, ...]:
    """The jars of ``group:artifact:version`` and of what they need."""
    place = _place(coordinates)
    if found := _listed(place):
        return found
    maven = shutil.which("mvn")
    if maven is None:
        raise Missing(f"{coordinates[0]} is fetched by Maven, and there is no program mvn")
    place.mkdir(parents=True, exist_ok=True)
    (place / "pom.xml").write_text(_pom(coordinates), encoding="utf-8")
    command = [maven, "-q", "-B", "dependency:build-classpath", f"-Dmdep.outputFile={place / 'jars'}"]
    try:
        done = subprocess.run(
            command, cwd=place, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"Maven did not bring {coordinates[0]} within {TIMEOUT_S} s") from None
    if done.returncode:
        raise Missing(f"Maven cannot bring {coordinates[0]}")
    return _listed(place)


def _place(coordinates: Sequence[str]) -> Path:
    return CACHE / hashlib.sha256(" ".join(coordinates).encode()).hexdigest()[:16]


def _listed(place: Path) -> tuple[str, ...]:
    listed = place / "jars"
    found = tuple(listed.read_text().strip().split(os.pathsep)) if listed.exists() else ()
    return found if all(Path(one).exists() for one in found) else ()


def _pom(coordinates: Sequence[str]) -> str:
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>bench</groupId><artifactId>jars</artifactId>"
        f"<version>1</version><dependencies>{''.join(_dependency(one) for one in coordinates)}</dependencies></project>"
    )


def _dependency(coordinate: str) -> str:
    group, artifact, version = coordinate.split(":")
    without = "".join(
        f"<exclusion><groupId>{one}</groupId><artifactId>*</artifactId></exclusion>" for one in OF_SPARK
    )
    return (
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        f"<exclusions>{without}</exclusions></dependency>"
    )
