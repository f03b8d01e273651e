"""Register the ``millstream`` format with Spark.

Spark searches packages called ``pyspark_*`` for a ``DefaultSource``.
"""

from millstream.spark.source.data_source import MillstreamSource


class DefaultSource(MillstreamSource):
    """``spark.read.format("millstream")``."""


__all__ = ["DefaultSource"]
