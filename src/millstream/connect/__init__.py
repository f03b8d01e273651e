"""Connectors: files, Parquet, Delta and databases as ends of flows, and topics of other clusters.

from millstream.connect import delta, files, table

They are declared like ``topic(...)`` and ``parquet(...)`` in a pipeline file, and run by the same runner.
"""
