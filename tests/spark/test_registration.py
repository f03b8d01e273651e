"""A registered source is found in its session, whichever session is active."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from millstream.spark.registration import register


def test_every_session_has_its_registered_sources(spark: SparkSession) -> None:
    class Nothing(DataSource):
        @classmethod
        def name(cls) -> str:
            return "nothing-at-all"

        def schema(self) -> str:
            return "n int"

    first, second = spark.newSession(), spark.newSession()
    for active in (first, second):
        # This makes it the active session.
        active.createDataFrame([(1,)], "n int")
        for session in (first, second, first):
            register(session, Nothing)
            assert session.read.format("nothing-at-all").load().columns == ["n"]
        assert SparkSession.active()._jsparkSession.equals(active._jsparkSession)  # type: ignore[attr-defined]
    spark.createDataFrame([(1,)], "n int")
