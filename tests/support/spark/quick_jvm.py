"""Settings of a JVM that lives for a few tests, and the one session that the tests
of a run share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# It does not optimise what runs a few times only, nor does it prove again that the classes of Spark
# are well-formed: that took most of its processor time.
CONF = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
}

# For queries of a few rows: no Java is written, compiled and loaded for a plan that runs once.
# Drivers that are killed (sink_driver.py, tests/chaos) go without.
SMALL = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

# Spark's own choice of the same, which users have: a query with state and one without keep to it.
USUAL = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
}


def shared_session() -> SparkSession:
    from millstream.spark.session import session

    return session(
        "millstream tests", master="local[2]", conf=CONF | SMALL | {"spark.driver.memory": "2g"}
    )


def usual_session(spark: SparkSession) -> SparkSession:
    from millstream.spark.session import prepare

    made = spark.newSession()
    for name, value in USUAL.items():
        made.conf.set(name, value)
    prepare(made)
    return made
