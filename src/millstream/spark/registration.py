"""Register data sources that Spark cannot find by their name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from millstream.spark.environment_map import fill_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource


def register(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a source, even if the session has it already.

    Queries of it can start at the same time (``environment_map``).
    """
    from pyspark.errors import AnalysisException

    try:
        with _active(spark):
            spark.dataSource.register(source)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    if _streams(source):
        fill_environment(spark, source.name())


def _streams(source: type[DataSource]) -> bool:
    """Return whether a streaming query can read the source."""
    from pyspark.sql.datasource import DataSource

    return (
        source.streamReader is not DataSource.streamReader
        or source.simpleStreamReader is not DataSource.simpleStreamReader
    )


@contextmanager
def _active(spark: Any) -> Iterator[None]:
    """Make a session the active one.

    Spark looks for the name in the active session, whichever session registers it. If another
    session is active and has it, Spark would reject the registration.
    """
    sessions = spark._get_j_spark_session_class(spark._jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
