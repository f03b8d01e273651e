"""Settings of a Python worker of Spark, made once at its first task of ours."""

from __future__ import annotations

import gc

_settled = False


def settle() -> None:
    """Exclude everything loaded so far from garbage collection.

    A worker collects garbage after every task. With pandas and Arrow loaded that takes 20 ms of a
    core or more, a good part of a small micro-batch. The modules stay as long as the worker does,
    so there is nothing to find among them.
    """
    global _settled
    from pyspark import TaskContext

    if not _settled and TaskContext.get() is not None:
        _settled = True
        gc.freeze()
