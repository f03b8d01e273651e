"""Millstream in Spark: a session that works anywhere (``session``), the source and the sink of the ``millstream`` format."""

from millstream.spark.driver_python import choose

choose()
