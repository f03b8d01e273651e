"""The Spark session that all SQL tests share; see ``support/spark/fixtures.py``."""

from support.spark.fixtures import no_query_is_left_running, spark

__all__ = ["no_query_is_left_running", "spark"]
