"""Millstream in Spark: the session, and the source and sink of the ``millstream`` format."""

from millstream.spark.driver_python import choose

choose()
