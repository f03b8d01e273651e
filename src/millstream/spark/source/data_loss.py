"""Report data loss: an exception with the lost offsets and the remedy, or a log line for each."""

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
    "to continue with the remaining records, start the query with failOnDataLoss=false (a mirror: "
    "--on-loss skip), which reports skipped offsets; to read all remaining records from the beginning, "
    "start with a new checkpoint"
)


class DataLoss(ClientError):
    """A query needs offsets that are lost, and ``failOnDataLoss`` is true."""

    def __init__(self, losses: Sequence[Loss]) -> None:
        shown = "; ".join(str(loss) for loss in losses[:SHOWN])
        more = f"; and {len(losses) - SHOWN} more partitions" if len(losses) > SHOWN else ""
        super().__init__(f"data loss: {shown}{more}", hint=ADVICE)
        self.losses = tuple(losses)

    def __reduce__(self) -> tuple[type[DataLoss], tuple[tuple[Loss, ...]]]:
        return DataLoss, (self.losses,)


def report_skipped(losses: Sequence[Loss]) -> None:
    """Report the offsets that ``failOnDataLoss=false`` skips."""
    for loss in losses:
        say(f"skipped, because failOnDataLoss is false: {loss}")


def say(message: str) -> None:
    """Print a line to the log of the driver or executor.

    Spark redirects stderr of its Python workers there.
    """
    print(f"millstream: {message}", file=sys.stderr, flush=True)


_warned: set[str] = set()


def warn_without_effect(
    options: Mapping[str, str], used_by: str, *, batch_write: bool = False
) -> None:
    """Warn once per process about options without effect: Spark creates readers repeatedly."""
    for sentence in without_effect(options, used_by, batch_write=batch_write):
        if sentence not in _warned:
            _warned.add(sentence)
            say(f"warning: {sentence}")


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Show our errors in Spark's exception as their message only, without a Python traceback.

    Spark's Python workers read this variable to decide whether to send the traceback. The worker
    ends with the error.
    """
    try:
        yield
    except ClientError as error:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise error.with_traceback(None) from None
