"""What a Python worker of Spark is told once, at its first task of ours."""

from __future__ import annotations

import gc

_settled = False


def settle() -> None:
    """Leave what is loaded by now out of garbage collection.

    A worker collects all its garbage after every task. With pandas and Arrow loaded that takes 20 ms of a core or more, whatever the task was, which
    is a good part of a small micro-batch. The modules stay for as long as the worker does, so there is nothing to find among them.
    """
    global _settled
    from pyspark import TaskContext

    if not _settled and TaskContext.get() is not None:
        _settled = True
        gc.freeze()
