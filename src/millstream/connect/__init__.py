"""Connectors: files, Parquet, Delta and databases as ends of flows, and topics of other clusters.

from millstream.connect import delta, files, table

They are declared like ``topic(...)`` and ``parquet(...)`` in a pipeline file, and run by the same runner.
"""

from millstream.connect.databases.table import table
from millstream.connect.delta.declare import delta
from millstream.connect.files.declare import files

__all__ = ["delta", "files", "table"]
