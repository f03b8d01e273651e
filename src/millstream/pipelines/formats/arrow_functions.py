"""Functions over whole Arrow arrays as columns of Spark: only the columns they name are sent to Python, a batch at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType


def arrow_column(function: Callable[..., Any], kind: DataType | str, *columns: Column) -> Column:
    """The column that a function from Arrow arrays to one Arrow array makes.

    Spark takes it for non-deterministic, because otherwise a filter on the result is moved below and calls it once more.
    """
    import pyarrow
    from pyspark.sql.pandas import functions

    # Spark decides by the annotations what the function is; those of this package are texts.
    names = ("return", *inspect.signature(function).parameters)
    function.__annotations__ = dict.fromkeys(names, pyarrow.Array)
    arrow_udf: Any = functions.arrow_udf
    made: Column = arrow_udf(function, kind).asNondeterministic()(*columns)
    return made
