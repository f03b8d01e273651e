"""Checkpoint files on this machine without helper processes.

Hadoop has a native library for file permissions and links, and PySpark comes without it. Hadoop then
runs ``chmod`` and ``readlink``: ten processes for each checkpoint file with Spark's own choice of the
``CheckpointFileManager``. The class in ``java/`` makes the same files with system calls. It is
compiled once with Janino, the compiler that Spark brings for generated code, and kept in the cache.

Executors write state files with the same class, so it is used only where they are threads of the
driver's JVM.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTING = "spark.sql.streaming.checkpointFileManagerClass"
CLASS = "millstream.spark.LocalCheckpointFileManager"
SOURCE = Path(__file__).parent / "java" / "LocalCheckpointFileManager.java"
_LOADER = "org.apache.spark.util.MutableURLClassLoader"


def use_local_files(spark: SparkSession, cache: Path) -> bool:
    """Let the queries of a session write local checkpoints with the class.

    Return whether they do. A setting that the session has already is left alone.
    """
    session: Any = spark
    chosen = session.conf.get(SETTING, None)
    if chosen is not None or not _runs_in_driver(session.sparkContext.master):
        return bool(chosen == CLASS)
    jvm = session._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    if loader is None or loader.getClass().getName() != _LOADER:
        return False
    try:
        classes = _compiled(jvm, loader, cache, session.version)
    except OSError:
        return False
    loader.addURL(jvm.java.io.File(str(classes)).toURI().toURL())
    session.conf.set(SETTING, CLASS)
    return True


def _runs_in_driver(master: str) -> bool:
    """Whether executors are threads of the driver: ``local``, ``local[2]``, and not ``local-cluster[...]``."""
    return re.match(r"local(\[|$)", master) is not None


def _compiled(jvm: Any, loader: Any, cache: Path, version: str) -> Path:
    """Return the directory of the compiled classes; compile them if this version has none."""
    text = SOURCE.read_text(encoding="utf-8")
    name = hashlib.sha256(f"{version}\n{text}".encode()).hexdigest()[:12]
    directory = cache / f"checkpoint-files-{name}"
    if directory.is_dir():
        return directory
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(text)
    draft = cache / f"{directory.name}.{os.getpid()}"
    for class_name, code in dict(compiler.getBytecodes()).items():
        file = draft / f"{class_name.replace('.', '/')}.class"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(code))
    try:
        draft.rename(directory)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        if not directory.is_dir():  # else another process was faster
            raise
    return directory
