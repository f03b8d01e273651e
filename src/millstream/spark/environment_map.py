"""Fill the environment map of Python data sources before a query does.

Spark 4.3 keeps one ``UserDefinedPythonDataSource`` per JVM for a source that it finds by its
package. The source has one environment map for its Python processes, a plain Scala ``HashMap``.
Every streaming query puts the same four keys into it while it starts, without a lock
(``PythonStreamingSourceRunner.init``). Two queries that start at the same time can leave the map
with a size that is not the number of its entries. Each job that carries the map then fails with
``Illegal size 5 of collection, expected 6`` until the JVM ends.

``put`` changes the structure of a map only if the key is new. A map that has the four keys before
the first query starts stays intact, however many queries put their values at the same time.

The map also leads the processes to ``worker_start``, which connects them to Spark early.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE = "millstream"
WORKER_START = Path(__file__).parent / "worker_start"
"""The directory of the module that the Python processes of sources import first."""


def fill_environment(spark: SparkSession, source: str = SOURCE) -> bool:
    """Put the keys of a streaming query into the environment map of a source.

    Call it before the first streaming query of the JVM starts. Return whether the session knows the
    source. The first call for a JVM makes Spark look for sources of installed packages, which the
    first use of such a source would do otherwise.
    """
    session: Any = spark
    manager = session._jsparkSession.sessionState().dataSourceManager()
    if not manager.dataSourceExists(source):
        return False
    environment = manager.lookupDataSource(source).dataSourceCls().envVars()
    for name, value in _values(session).items():
        if not environment.containsKey(name):
            environment.put(name, value)
    path = environment.get("PYTHONPATH") or ""
    if str(WORKER_START) not in path.split(os.pathsep):
        environment.put("PYTHONPATH", os.pathsep.join(filter(None, [str(WORKER_START), path])))
    return True


def _values(spark: Any) -> dict[str, str]:
    """Return the values that ``PythonStreamingSourceRunner.init`` puts.

    Spark replaces all of them wherever it starts a process, so a value from here is never used. The
    directories of the block manager are out of reach: py4j cannot load the class ``SparkEnv``,
    whose methods name a class that is not among Spark's jars.
    """
    python = spark._jvm.org.apache.spark.api.python.PythonUtils
    context = spark.sparkContext._jsc
    return {
        "SPARK_LOCAL_DIRS": str(spark._jvm.java.lang.System.getProperty("java.io.tmpdir")),
        "SPARK_AUTH_SOCKET_TIMEOUT": str(python.getPythonAuthSocketTimeout(context)),
        "SPARK_BUFFER_SIZE": str(python.getSparkBufferSize(context)),
        "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
    }
