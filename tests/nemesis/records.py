"""The history of a real run on disk: every client writes lines of JSON, and the judge reads them
all.

A line is written before anything is sent, and another when its outcome is known, so that a client
may be killed at any moment: what it had not finished is unknown, and nothing of what it knew is
lost. Times are the machine's monotonic clock, the same for all processes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from millstream.sim.checks.history import INFO, INVOKE, Mop, Op, Poll, Send
from millstream.sim.checks.state_checks import OffsetEvent

PADDING = " "  # what follows it in a record is there for its size alone


def encode(value: str, padding: int) -> bytes:
    return f"{value}{PADDING}{'x' * padding}".encode()


def decode(data: bytes | str | None) -> str:
    text = data.decode(errors="replace") if isinstance(data, bytes) else data or ""
    return text.partition(PADDING)[0]


class Recorder:
    """Of one client."""

    def __init__(self, path: Path, process: str) -> None:
        self._file: TextIO = path.open("a", buffering=1)
        self.process = process
        self._count = 0

    def invoke(self, f: str, value: Iterable[Mop]) -> Op:
        self._count += 1
        now = time.monotonic()
        op = Op(self._count, self.process, INVOKE, f, tuple(value), now, now)
        self._op(op)
        return op

    def complete(
        self,
        invoked: Op,
        type: str,
        value: Iterable[Mop],
        error: str = "",
        *,
        commit_requested: float | None = None,
    ) -> None:
        """May be called more than once for an operation whose records had different outcomes."""
        now = time.monotonic()
        done = invoked._replace(
            type=type, value=tuple(value), time=now, error=error, commit_requested=commit_requested
        )
        self._op(done)

    def offset(self, event: OffsetEvent) -> None:
        self._line({"offset": event._asdict()})

    def tell(self, what: str, **more: object) -> None:
        """Something that is counted, or that is a finding by itself."""
        self._line({"told": what, "time": time.monotonic(), **more})

    def _op(self, op: Op) -> None:
        mops = [_mop(mop) for mop in op.value]
        row = [op.number, op.type, op.f, mops, op.time, op.started, op.error, op.commit_requested]
        self._line({"op": row})

    def _line(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps({"process": self.process, **row}) + "\n")


def _mop(mop: Mop) -> list[Any]:
    if isinstance(mop, Send):
        return [mop.key, mop.value, mop.offset]
    return [{key: list(rows) for key, rows in mop.records.items()}]


class Told(NamedTuple):
    """What a client said beside its operations."""

    process: str
    what: str
    time: float
    more: Mapping[str, Any]


class Records:
    """All that the clients of a run have written."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.offsets: list[OffsetEvent] = []
        self.told: list[Told] = []
        self._open: dict[tuple[str, int], Op] = {}
        # What is read is read by many, again and again: each record is kept once, however often it
        # was read.
        self._polled: dict[tuple[int, str], tuple[int, str]] = {}
        done: list[Op] = []
        for path in paths:
            for row in _rows(path):
                self._read(row, done)
        done += [op._replace(type=INFO, error="never completed") for op in self._open.values()]
        # Each process's own order stays: the sort keeps what is equal, and a process's times rise.
        done.sort(key=lambda op: op.time)
        self.ops = [op._replace(number=number) for number, op in enumerate(done)]

    def _read(self, row: dict[str, Any], done: list[Op]) -> None:
        process = row.pop("process")
        if "op" in row:
            # Histories that were kept before there was a time of the commit have none.
            number, type_, f, mops, when, started, error, *commit_requested = row["op"]
            op = Op(number, process, type_, f, tuple(map(self._unmop, mops)), when, started, error)
            op = op._replace(commit_requested=commit_requested[0] if commit_requested else None)
            if type_ == INVOKE:
                self._open[process, number] = op
            else:
                self._open.pop((process, number), None)
                done.append(op)
        elif "told" in row:  # which may be about an offset, too
            self.told.append(Told(process, row.pop("told"), row.pop("time"), row))
        else:
            self.offsets.append(OffsetEvent(**row["offset"]))

    def _unmop(self, row: list[Any]) -> Mop:
        if len(row) == 1:
            return Poll({key: [self._once(*one) for one in rows] for key, rows in row[0].items()})
        return Send(row[0], row[1], row[2])

    def _once(self, offset: int, value: str) -> tuple[int, str]:
        return self._polled.setdefault((offset, value), (offset, value))


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open() as lines:
        for line in lines:
            try:
                yield json.loads(line)
            except ValueError:
                continue  # killed while it wrote the line: like one that was not written
