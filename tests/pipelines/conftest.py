"""Fixtures for pipelines on Spark; see ``support/spark/fixtures.py``."""

import pytest

from support.spark.fixtures import (
    admin,
    collector,
    no_query_is_left_running,
    read,
    run_to_end,
    spark,
    start,
    stream,
    topic,
)

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')

__all__ = [
    "admin",
    "collector",
    "no_query_is_left_running",
    "read",
    "run_to_end",
    "spark",
    "start",
    "stream",
    "topic",
]
