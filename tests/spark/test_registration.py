"""A source that a session is told of is found in that session, whichever is active."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from millstream.spark.registration import register


def test_every_session_has_what_it_was_told_of(spark: SparkSession) -> None:
    class Nothing(DataSource):
        @classmethod
        def name(cls) -> str:
            return "nothing-at-all"

        def schema(self) -> str:
            return "n int"

    one, other = spark.newSession(), spark.newSession()
    for active in (one, other):
        active.createDataFrame([(1,)], "n int")  # makes it the active session
        for told in (one, other, one):
            register(told, Nothing)
            assert told.read.format("nothing-at-all").load().columns == ["n"]
        assert SparkSession.active()._jsparkSession.equals(active._jsparkSession)  # type: ignore[attr-defined]
    spark.createDataFrame([(1,)], "n int")
