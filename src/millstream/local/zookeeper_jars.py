"""Search for ZooKeeper's jars in an installed PySpark and in the directory of Debian's package."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path

from millstream.client.errors import ClientError

DEBIAN = Path("/usr/share/java")
# No server starts without these. The optional ones are used if present, because versions differ in
# their needs.
REQUIRED = ("zookeeper", "slf4j-api")
OPTIONAL = (
    "zookeeper-jute",
    "audience-annotations",
    "commons-io",
    "metrics-core",
    "netty-buffer",
    "netty-codec",
    "netty-codec-base",
    "netty-common",
    "netty-handler",
    "netty-resolver",
    "netty-transport",
    "netty-transport-classes-epoll",
    "netty-transport-native-unix-common",
    "snappy-java",
)
# Logging backends, best first. Exactly one may be on the classpath.
LOGGING = (
    ("log4j-slf4j2-impl", "log4j-api", "log4j-core"),
    ("logback-classic", "logback-core"),
    ("slf4j-simple",),
)
_JAR = re.compile(r"^(?P<name>.+?)(?:-(?P<version>\d[\w.]*?)(?:\.Final)?)?\.jar$")


class NoZooKeeper(ClientError):
    """No ZooKeeper jars were found."""


def find_jars() -> list[Path]:
    """Return the classpath of a server. Raise NoZooKeeper with the searched directories."""
    searched = []
    for directory in _places():
        jars = _by_name(directory)
        if all(name in jars for name in REQUIRED):
            return _choose(jars)
        searched.append(str(directory))
    where = f"searched {', '.join(searched)}" if searched else "PySpark is not installed"
    raise NoZooKeeper(
        f"no ZooKeeper server found ({where})",
        hint='install one with `pip install "millstream[spark]"` or Debian\'s package `zookeeper`, '
        "or use an existing ZooKeeper (`millstream up --zookeeper HOST:PORT`)",
    )


def _places() -> Iterator[Path]:
    spec = importlib.util.find_spec("pyspark")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(place, "jars")
    if home := os.environ.get("SPARK_HOME"):
        yield Path(home, "jars")
    if DEBIAN.is_dir():
        yield DEBIAN


def _by_name(directory: Path) -> dict[str, Path]:
    """Return jars by name without version. The last of several names is the newest version."""
    jars: dict[str, Path] = {}
    for path in sorted(directory.glob("*.jar")):
        if match := _JAR.match(path.name):
            jars[match["name"]] = path
    return jars


def _choose(jars: dict[str, Path]) -> list[Path]:
    names = [*REQUIRED, *OPTIONAL]
    names += next((group for group in LOGGING if all(name in jars for name in group)), ())
    return [jars[name] for name in names if name in jars]
