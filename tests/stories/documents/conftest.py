"""One Spark session and one PostgreSQL for all documents; see ``support/spark/fixtures.py`` and
``support/connect/fixtures.py``.
"""

from support.connect.fixtures import postgres_server
from support.spark.fixtures import no_query_is_left_running, spark

__all__ = ["no_query_is_left_running", "postgres_server", "spark"]
