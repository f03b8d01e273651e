"""Connectors: files, Delta and databases as sources and targets, and mirrors of other clusters.

from millstream.connect import delta, files, table

Pipeline files declare them like ``topic(...)`` and ``parquet(...)``.
"""

from millstream.connect.databases.table import table
from millstream.connect.delta.declare import delta
from millstream.connect.files.declare import files

__all__ = ["delta", "files", "table"]
