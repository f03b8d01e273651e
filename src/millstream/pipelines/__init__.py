"""Pipelines: a Python file declares topics and flows, and Spark runs them exactly once.

    from millstream.pipelines import Pipeline, parquet, topic

Importing this package does not import Spark; ``runner`` does.
"""

from millstream.pipelines.declare import Flow, Pipeline, Stream, Table, View
from millstream.pipelines.errors import PipelineError
from millstream.pipelines.targets import ParquetTarget, TopicTarget, parquet, topic

__all__ = [
    "Flow",
    "ParquetTarget",
    "Pipeline",
    "PipelineError",
    "Stream",
    "Table",
    "TopicTarget",
    "View",
    "parquet",
    "topic",
]
