"""A SPARK_HOME whose Python workers start in a third of the time.

Spark puts ``SPARK_HOME/python/lib/pyspark.zip`` first on the path of its Python workers. Python
caches no bytecode of modules in a zip file. So each worker compiled all of PySpark: half a second
of a core, and every streaming query starts a process. This home has links to everything that the
launcher needs, but no such file. Workers then import the installed PySpark, which is the same.
"""

from __future__ import annotations

import hashlib
import os
import site
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

LINKED = ("bin", "jars", "sbin", "conf")


def is_wanted(settings: Mapping[str, object]) -> bool:
    """Return whether the home of links may be used.

    Workers must run the interpreter of this process, and the user has not chosen a Spark home.
    """
    python = (
        settings.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    )
    return "SPARK_HOME" not in os.environ and python == sys.executable


def installed() -> Path | None:
    """Return the directory of the installed PySpark, or None.

    It must have jars, and every process of this interpreter must find it.
    """
    import pyspark

    package = Path(pyspark.__file__).resolve().parent
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    known = {
        Path(directory).resolve()
        for directory in (*site.getsitepackages(), site.getusersitepackages(), *path)
        if directory
    }
    whole = (package / "jars").is_dir() and (package / "bin" / "spark-submit").is_file()
    return package if whole and package.parent in known else None


def make_home(spark: Path, cache: Path) -> Path:
    """Create a home of links to an installation, once. Concurrent processes create the same."""
    name = hashlib.sha256(os.fsencode(spark)).hexdigest()[:12]
    home = cache / f"spark-{name}"
    home.mkdir(parents=True, exist_ok=True)
    for entry in LINKED:
        link, target = home / entry, spark / entry
        if target.exists() and not link.exists():
            draft = home / f"{entry}.{os.getpid()}"
            draft.symlink_to(target)
            draft.replace(link)
    return home


def home_for(settings: Mapping[str, object], cache: Path) -> Path | None:
    """Return the home to start a JVM from, or None if it would change more than the start."""
    spark = installed() if is_wanted(settings) and os.name == "posix" else None
    return None if spark is None else make_home(spark, cache)


@contextmanager
def launched_from(home: Path | None) -> Iterator[None]:
    """Start JVMs inside the block from this home."""
    if home is None:
        yield
        return
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]
