"""What a flow can write besides topics: a store, which takes every batch once, whatever is repeated.

``Store`` is what a pipeline declares (a directory, a Delta table, a table of a database), ``StoreSink`` is what writes to it. Where a
store stands is kept in the store itself, together with the rows: which batch of which query over which offsets was the last.
Batch numbers mean something only within one checkpoint, so anything but the same batch again or the next one is refused, never guessed at.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from millstream.pipelines.errors import PipelineError
from millstream.spark.sink.commit_rule import CommittedBatch, Verdict, judge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millstream.spark.sink.checkpoint import BatchIdentity


class Refused(NamedTuple):
    """A row that a store does not take: its key, the row as JSON (None where a row was to be removed), and the store's reason."""

    key: str | None
    value: str | None
    reason: str


class Written(NamedTuple):
    """What became of a batch: its rows, whether it had been written before, and the rows that were refused (then as well)."""

    rows: int
    replayed: bool
    refused: tuple[Refused, ...] = ()


class StoreSink(Protocol):
    """Writes the batches of one flow into one store."""

    def open(self) -> None:
        """Finish or undo what a crash left, before Spark reads its checkpoint."""

    def write(self, batch: DataFrame, batch_id: int, identity: BatchIdentity) -> Written:
        """Write one batch; nothing when it is there already."""

    def close(self) -> None: ...


class Store(ABC):
    """A target that is no topic."""

    refuses: ClassVar[bool] = False
    """Whether single rows can be refused, so that there have to be dead letters for them."""

    @property
    def modes(self) -> tuple[str, ...]:
        """The output modes that make sense: those that would repeat rows do not."""
        return ("append",)

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Columns that rows must have."""

    @property
    def aside(self) -> tuple[str, ...]:
        """Those of them that say where a row goes and are not stored with it."""
        return ()

    @abstractmethod
    def sink(self, writer: str, *, reset_progress: bool = False) -> StoreSink:
        """What writes to it; ``writer`` is the name of pipeline and flow, which stays the same."""


def is_written(
    last: CommittedBatch | None, batch_id: int, *, writer: str, where: str, reset_progress: bool
) -> bool:
    """Return whether the store has a batch. Raise PipelineError if it is not the next one either."""
    verdict = judge(last, batch_id)
    if verdict in (Verdict.COMMITTED, Verdict.NEXT) or reset_progress:
        return verdict is Verdict.COMMITTED
    raise PipelineError(
        f"{_conflict(verdict, last, batch_id, writer, where)}: the checkpoint or what it belongs to was deleted, restored or copied",
        hint="bring back what belongs together, or go on from here with --reset-progress (rows may be repeated or missing)",
    )


def _conflict(verdict: Verdict, last: CommittedBatch | None, batch_id: int, writer: str, where: str) -> str:
    if last is None:
        return f"flow {writer} is at batch {batch_id}, and {where} has none of it"
    if verdict is Verdict.OTHER_QUERY:
        return f"{where} was written by {writer} from another checkpoint"
    if verdict is Verdict.GAP:
        return f"flow {writer} is at batch {batch_id}, and {where} has it up to {last.batch}"
    return f"batch {batch_id} comes again, and {where} has it up to {last.batch}"
