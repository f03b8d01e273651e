"""Stores: targets of flows other than topics. A store writes every batch once.

A pipeline declares a ``Store`` (a directory, a Delta table, a table of a database), and a
``StoreSink`` writes to it. The store keeps its progress together with the rows: the query, number
and offsets of the last batch. Batch numbers are valid only within one checkpoint. So any batch
other than the last one or the next one is rejected.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from millstream.pipelines.errors import PipelineError
from millstream.spark.sink.commit_rule import CommittedBatch, Verdict, judge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millstream.spark.sink.checkpoint import BatchIdentity


class RejectedRow(NamedTuple):
    """A row that a store rejects: its key, the row as JSON, and the reason.

    ``value`` is None for a row that was to be deleted.
    """

    key: str | None
    value: str | None
    reason: str


class WriteResult(NamedTuple):
    """The result of a batch: its rows, whether it was written before, and its rejected rows.

    A batch that was written before has its rejected rows, too.
    """

    rows: int
    replayed: bool
    rejected: tuple[RejectedRow, ...] = ()


class StoreSink(Protocol):
    """Writes the batches of one flow into one store."""

    def open(self) -> None:
        """Finish or undo an interrupted batch, before Spark reads its checkpoint."""

    def write(self, batch: DataFrame, batch_id: int, identity: BatchIdentity) -> WriteResult:
        """Write a batch, unless it is already written."""

    def close(self) -> None: ...


class Store(ABC):
    """A target that is not a topic."""

    rejects_rows: ClassVar[bool] = False
    """Whether the store can reject single rows, which then become dead letters."""

    @property
    def modes(self) -> tuple[str, ...]:
        """The output modes that do not repeat rows."""
        return ("append",)

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The columns that rows must have."""

    @property
    def unstored_columns(self) -> tuple[str, ...]:
        """Those of the columns that only choose the place of a row, and are not stored."""
        return ()

    @abstractmethod
    def sink(self, writer: str, *, reset_progress: bool = False) -> StoreSink:
        """Return a sink for the store. ``writer`` is the stable name of pipeline and flow."""


def is_written(
    last: CommittedBatch | None, batch_id: int, *, writer: str, where: str, reset_progress: bool
) -> bool:
    """Return whether the store has a batch. Raise PipelineError if it is not the next one."""
    verdict = judge(last, batch_id)
    if verdict in (Verdict.COMMITTED, Verdict.NEXT) or reset_progress:
        return verdict is Verdict.COMMITTED
    raise PipelineError(
        f"{_conflict(verdict, last, batch_id, writer, where)}: "
        "the checkpoint or the target was deleted, restored or copied",
        hint="restore both, or continue with --reset-progress (rows may be repeated or missing)",
    )


def _conflict(
    verdict: Verdict, last: CommittedBatch | None, batch_id: int, writer: str, where: str
) -> str:
    if last is None:
        return f"flow {writer} is at batch {batch_id}, but {where} has no batch of it"
    if verdict is Verdict.OTHER_QUERY:
        return f"{where} was written by {writer} from another checkpoint"
    if verdict is Verdict.GAP:
        return (
            f"flow {writer} is at batch {batch_id}, but the last batch in {where} is {last.batch}"
        )
    return f"batch {batch_id} is repeated, but the last batch in {where} is {last.batch}"
