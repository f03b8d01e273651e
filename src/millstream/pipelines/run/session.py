"""The Spark session of a pipeline, and the settings that a run needs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from millstream.pipelines.declare import Pipeline
from millstream.spark.session import prepare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STATE_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
EMPTY_RELATIONS = "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"
SESSION_CONF: Mapping[str, object] = {
    # explain() reports failures in one line each.
    "spark.millstream.log.level": "OFF",
    STATE_PROVIDER: ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": True,
    # One store for a join instead of four, so less than half the files. Needs RocksDB. Spark stores
    # the version in the checkpoint, so joins that began with another one keep it.
    JOIN_FORMAT: 3,
    "spark.sql.streaming.numRecentProgressUpdates": 20,
    "spark.sql.streaming.stopTimeout": 60_000,
    "spark.sql.streaming.metricsEnabled": False,
    # This rule skips a stream whose join partner is empty, and with it the bad records.
    "spark.sql.adaptive.optimizer.excludedRules": EMPTY_RELATIONS,
    # Spark's default is INT96, which others read as nanoseconds without a zone, up to 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}

NO_CONF: Mapping[str, str] = MappingProxyType({})


def pipeline_session(
    spark: SparkSession, pipeline: Pipeline, conf: Mapping[str, str] = NO_CONF
) -> SparkSession:
    """Return a new session with the settings and views of a pipeline. It shares the executors."""
    session = spark.newSession()
    chosen = {**SESSION_CONF, **pipeline.conf, **conf}
    if chosen[STATE_PROVIDER] != ROCKSDB and JOIN_FORMAT not in {**pipeline.conf, **conf}:
        del chosen[JOIN_FORMAT]
    for name, value in chosen.items():
        if name.startswith("spark.sql."):
            session.conf.set(name, str(value).lower() if isinstance(value, bool) else str(value))
    prepare(session)
    return session
