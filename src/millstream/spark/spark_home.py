"""A SPARK_HOME whose Python workers start in a third of the time.

Spark puts ``SPARK_HOME/python/lib/pyspark.zip`` before everything else on the path of its Python workers. Python keeps no bytecode of what is in
a zip file, so each of them compiled all of PySpark: half a second of a core, and a streaming query starts a process of its own.
This home has what the launcher looks for, as links, and no such file: workers then import the PySpark that is installed, which is the same one.
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
    """Whether workers run the interpreter of this process, and nobody has said which Spark it is to be."""
    python = settings.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    return "SPARK_HOME" not in os.environ and python == sys.executable


def installed() -> Path | None:
    """The directory of a PySpark that brings its own jars and is found by every process of this interpreter."""
    import pyspark

    found = Path(pyspark.__file__).resolve().parent
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    known = {
        Path(one).resolve() for one in (*site.getsitepackages(), site.getusersitepackages(), *path) if one
    }
    whole = (found / "jars").is_dir() and (found / "bin" / "spark-submit").is_file()
    return found if whole and found.parent in known else None


def make_home(spark: Path, cache: Path) -> Path:
    """A home of links to that one; made once, and whoever makes it at the same time makes the same."""
    name = hashlib.sha256(os.fsencode(spark)).hexdigest()[:12]
    home = cache / f"spark-{name}"
    home.mkdir(parents=True, exist_ok=True)
    for one in LINKED:
        link, target = home / one, spark / one
        if target.exists() and not link.exists():
            draft = home / f"{one}.{os.getpid()}"
            draft.symlink_to(target)
            draft.replace(link)
    return home


def home_for(settings: Mapping[str, object], cache: Path) -> Path | None:
    """Return the home to start a JVM from, or None where it would change more than the time it takes."""
    spark = installed() if is_wanted(settings) and os.name == "posix" else None
    return None if spark is None else make_home(spark, cache)


@contextmanager
def launched_from(home: Path | None) -> Iterator[None]:
    """Let a JVM that is started inside the block have this home."""
    if home is None:
        yield
        return
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]
