"""Lets Spark find the ``millstream`` format by itself: it looks into packages called ``pyspark_*`` for a ``DefaultSource``."""

from millstream.spark.source.data_source import MillstreamSource


class DefaultSource(MillstreamSource):
    """``spark.read.format("millstream")``."""


__all__ = ["DefaultSource"]
