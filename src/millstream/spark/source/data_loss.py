"""Data loss, told truthfully: an exception that says which offsets are gone and what to do, or a log line for each."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from millstream.client.errors import ClientError
from millstream.spark.options import without_effect
from millstream.spark.source.offsets import Loss

SHOWN = 2
ADVICE = (
    "to go on with what is left, start the query with failOnDataLoss=false (a mirror: --on-loss skip), which tells what it skips; to read everything that is left "
    "from the beginning, start with a new checkpoint"
)


class DataLoss(ClientError):
    """Offsets that a query was to read are gone, and ``failOnDataLoss`` is true."""

    def __init__(self, losses: Sequence[Loss]) -> None:
        told = "; ".join(str(loss) for loss in losses[:SHOWN])
        more = f"; and {len(losses) - SHOWN} more partitions" if len(losses) > SHOWN else ""
        super().__init__(f"data loss: {told}{more}", hint=ADVICE)
        self.losses = tuple(losses)

    def __reduce__(self) -> tuple[type[DataLoss], tuple[tuple[Loss, ...]]]:
        return DataLoss, (self.losses,)


def report_skipped(losses: Sequence[Loss]) -> None:
    """With ``failOnDataLoss=false``: say exactly what is skipped."""
    for loss in losses:
        say(f"skipped, because failOnDataLoss is false: {loss}")


def say(message: str) -> None:
    """A line in the log of the driver or executor, which is where Spark puts what its Python workers print."""
    print(f"millstream: {message}", file=sys.stderr, flush=True)


_warned: set[str] = set()


def warn_without_effect(given: Mapping[str, str], used_by: str, *, batch_write: bool = False) -> None:
    """Warn of options that change nothing, once for each process: Spark makes readers repeatedly."""
    for sentence in without_effect(given, used_by, batch_write=batch_write):
        if sentence not in _warned:
            _warned.add(sentence)
            say(f"warning: {sentence}")


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Errors that explain themselves arrive in Spark's exception as their message, without a page of Python calls.

    Spark's Python workers decide by this variable whether to send the calls along; the worker ends with the error.
    """
    try:
        yield
    except ClientError as error:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise error.with_traceback(None) from None
