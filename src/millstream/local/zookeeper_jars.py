"""ZooKeeper's jars, found by looking: inside an installed PySpark, or where Debian's package puts them."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path

from millstream.client.errors import ClientError

DEBIAN = Path("/usr/share/java")
# Without these no server starts; the rest is taken where it is there, because versions differ in what they need.
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
# What writes the log, best first: exactly one may be on the classpath.
LOGGING = (
    ("log4j-slf4j2-impl", "log4j-api", "log4j-core"),
    ("logback-classic", "logback-core"),
    ("slf4j-simple",),
)
_JAR = re.compile(r"^(?P<name>.+?)(?:-(?P<version>\d[\w.]*?)(?:\.Final)?)?\.jar$")


class NoZooKeeper(ClientError):
    """There are no jars of ZooKeeper to be found."""


def find_jars() -> list[Path]:
    """The classpath of a server; NoZooKeeper says where it was looked for."""
    looked = []
    for directory in _places():
        jars = _by_name(directory)
        if all(name in jars for name in REQUIRED):
            return _choose(jars)
        looked.append(str(directory))
    where = ", ".join(looked) if looked else "PySpark is not installed"
    raise NoZooKeeper(
        f"no ZooKeeper server was found ({where})",
        hint='`pip install "millstream[spark]"` brings one, Debian\'s package `zookeeper` another; '
        "or use one that runs already (`millstream up --zookeeper HOST:PORT`)",
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
    """Jars by their name without the version; where there are several, the one named last is the newest."""
    found: dict[str, Path] = {}
    for path in sorted(directory.glob("*.jar")):
        if match := _JAR.match(path.name):
            found[match["name"]] = path
    return found


def _choose(jars: dict[str, Path]) -> list[Path]:
    names = [*REQUIRED, *OPTIONAL]
    names += next((group for group in LOGGING if all(name in jars for name in group)), ())
    return [jars[name] for name in names if name in jars]
