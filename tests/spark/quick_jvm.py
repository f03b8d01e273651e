"""Settings of a JVM that lives for a few tests, and the one session that the tests of a run share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# It does not optimise what runs a few times only, nor does it prove again that the classes of Spark are well-formed: that took most of its
# processor time.
CONF = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
}

# For queries of a few rows. A file of a checkpoint is moved into place without a dozen processes (readlink, chmod) for each, which Hadoop starts
# where its native library is missing; and no Java is written, compiled and loaded for a plan that runs once. Drivers that are killed
# (sink_driver.py, tests/chaos) go without: their checkpoints are written as those of users are.
SMALL = {
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
    "spark.sql.codegen.wholeStage": False,
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def shared_session() -> SparkSession:
    from millstream.spark.session import session

    return session("millstream tests", master="local[2]", conf=CONF | SMALL | {"spark.driver.memory": "2g"})
