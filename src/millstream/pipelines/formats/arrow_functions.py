"""Functions over whole Arrow arrays as columns of Spark.

Only the columns that they name are sent to Python, a batch at a time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType


def arrow_column(function: Callable[..., Any], kind: DataType | str, *columns: Column) -> Column:
    """Return the result of a function of Arrow arrays as a column.

    It is marked as non-deterministic. Otherwise Spark pushes a filter on the result below it, and
    calls the function twice.
    """
    import pyarrow
    from pyspark.sql.pandas import functions

    # Spark chooses the kind of function by its annotations, which are strings in this package.
    names = ("return", *inspect.signature(function).parameters)
    function.__annotations__ = dict.fromkeys(names, pyarrow.Array)
    arrow_udf: Any = functions.arrow_udf
    column: Column = arrow_udf(function, kind).asNondeterministic()(*columns)
    return column
