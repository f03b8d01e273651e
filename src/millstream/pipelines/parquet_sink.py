"""Parquet directories with every row exactly once, even for readers that know nothing of it.

A plain reader reads every file that it finds. So a file may appear only once, and only if it is
complete and will stay, however often its batch is run. Spark and pyarrow skip names that begin with
an underscore. Unfinished files are therefore below ``_millstream/<writer>`` inside the target, on
the same file system:

    1. stage   Spark writes the batch to ``staging-<batch>-<random>``; the files are synced.
    2. plan    ``pending.json`` lists each staged file and its final name. It is written aside,
               synced and renamed. This decides the batch.
    3. move    Each file is renamed to its final name.
    4. record  ``progress.json`` becomes {query, batch, offsets, rows}.
    5. clean   ``pending.json`` and the staging directory are removed.

After a crash before step 2, the next ``open`` removes the staged files, and Spark runs the batch
again. After a crash behind step 2, ``open`` rolls forward: a file without its final name is still
where it was staged. Spark then repeats the batch, which is in ``progress.json`` and is not written.
Between two renames a reader sees a part of the batch, but no row twice.

Batch numbers are valid only within one checkpoint. So progress of another query, of a later batch,
or of the same batch with other offsets is rejected. A lock excludes a second writer with the same
name.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.pipelines.errors import PipelineError
from millstream.pipelines.run.locks import Lock, LockHeld
from millstream.pipelines.stores import WriteResult, is_written
from millstream.spark.sink.checkpoint import BatchIdentity
from millstream.spark.sink.commit_rule import CommittedBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millstream.pipelines.targets import ParquetTarget

HIDDEN = "_millstream"
PENDING = "pending.json"
PROGRESS = "progress.json"
_STAGING = "staging-"
# Spark's tasks write here before they commit.
_UNFINISHED = "_temporary"


class ParquetSink:
    """The files that one flow writes into one directory."""

    def __init__(self, target: ParquetTarget, writer: str, *, reset_progress: bool = False) -> None:
        self.target = target
        self.writer = writer
        self.root = Path(target.path).absolute()
        self.hidden = self.root / HIDDEN / writer
        self._reset_progress = reset_progress
        self._lock = Lock(self.hidden / "lock")

    def open(self) -> None:
        """Take the lock, finish the batch that was decided, and remove staged files of others."""
        try:
            self._lock.acquire()
        except LockHeld as held:
            raise PipelineError(
                f"{self.writer} is already writing to {self.target.path} ({held.holder_name})",
                hint="stop that run first, or give this one another name",
            ) from None
        self._recover()

    def close(self) -> None:
        self._lock.release()

    def committed(self, batch_id: int, identity: BatchIdentity) -> bool:
        """Return whether this batch is already written.

        Raise PipelineError if it is not the next one either.
        """
        progress = read_json(self.hidden / PROGRESS)
        last = progress and CommittedBatch.compare(
            progress["batch"], progress["query"], progress["offsets"], identity
        )
        where, reset = self.target.path, self._reset_progress
        return is_written(last, batch_id, writer=self.writer, where=where, reset_progress=reset)

    def write(self, batch: DataFrame, batch_id: int, identity: BatchIdentity) -> WriteResult:
        """Write a batch, unless it is already written."""
        if self.committed(batch_id, identity):
            return WriteResult(0, replayed=True)
        staging = self._stage(batch, batch_id)
        plan = self._plan(staging, batch_id, identity)
        self._move(plan)
        self._record(plan)
        self._clean()
        self._reset_progress = False
        return WriteResult(plan["rows"], replayed=False)

    def _stage(self, batch: DataFrame, batch_id: int) -> Path:
        staging = self.hidden / f"{_STAGING}{batch_id}-{uuid.uuid4().hex[:8]}"
        writer = batch.write.options(**self.target.options)
        if self.target.by:
            writer = writer.partitionBy(*self.target.by)
        writer.parquet(str(staging))
        return staging

    def _plan(self, staging: Path, batch_id: int, identity: BatchIdentity) -> dict[str, Any]:
        moves, rows = [], 0
        for number, (path, count) in enumerate(staged_files(staging)):
            final = path.relative_to(staging).parent / self._file_name(identity, batch_id, number)
            moves.append([str(path.relative_to(self.hidden)), str(final)])
            rows += count
        plan = {
            "query": identity.query,
            "batch": batch_id,
            "offsets": identity.offsets,
            "rows": rows,
            "moves": moves,
            **self._plan_fields(),
        }
        for staged, _ in moves:
            sync(self.hidden / staged)
        write_json(self.hidden / PENDING, plan)
        return plan

    def _plan_fields(self) -> dict[str, Any]:
        """Return further fields of the plan, for subclasses."""
        return {}

    def _file_name(self, identity: BatchIdentity, batch_id: int, number: int) -> str:
        return f"part-{self.writer}-{identity.query[:8]}-{batch_id:08d}-{number:04d}.parquet"

    def _move(self, plan: dict[str, Any]) -> None:
        directories = set()
        for staged, final in plan["moves"]:
            source, destination = self.hidden / staged, self.root / final
            destination.parent.mkdir(parents=True, exist_ok=True)
            if source.exists():
                source.rename(destination)
            elif not destination.exists():
                raise PipelineError(
                    f"{destination} of batch {plan['batch']} is missing, and so is its staged file",
                    hint="another program has removed files below that directory",
                )
            directories.add(destination.parent)
        for directory in directories:
            sync(directory)

    def _record(self, plan: dict[str, Any]) -> None:
        kept = {name: plan[name] for name in ("query", "batch", "offsets", "rows")}
        write_json(self.hidden / PROGRESS, kept)

    def _clean(self) -> None:
        (self.hidden / PENDING).unlink(missing_ok=True)
        for path in self.hidden.glob(f"{_STAGING}*"):
            shutil.rmtree(path)

    def _recover(self) -> None:
        plan = read_json(self.hidden / PENDING)
        if plan is not None:
            self._move(plan)
            self._record(plan)
        self._clean()


def staged_files(staging: Path) -> list[tuple[Path, int]]:
    """Return the staged files that have rows, sorted by name, with their numbers of rows."""
    import pyarrow.parquet

    files = []
    for path in sorted(staging.rglob("*.parquet")):
        if path.relative_to(staging).parts[0] == _UNFINISHED or path.name.startswith(("_", ".")):
            continue
        rows = pyarrow.parquet.read_metadata(path).num_rows
        if rows:
            files.append((path, rows))
    return files


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None


def write_json(path: Path, value: Any) -> None:
    """Replace a file atomically. It is synced to disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(value))
    sync(temporary)
    temporary.rename(path)
    sync(path.parent)


def sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
