"""Write checkpoint files on this machine without helper processes.

Hadoop has a native library for file permissions and links, and PySpark does not include it. Hadoop
then runs ``chmod`` and ``readlink``: ten processes for each checkpoint file with Spark's default
``CheckpointFileManager``. The class in ``java/`` writes the same files with system calls. It is
compiled once with Janino, the compiler that Spark includes for generated code, and cached.

Executors write state files with the same class, so it is used only if they are threads of the
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

    Return whether they do. An existing setting of the session is kept.
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
    """Return whether executors are threads of the driver: ``local`` or ``local[2]``."""
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
        # Otherwise another process was faster.
        if not directory.is_dir():
            raise
    return directory
