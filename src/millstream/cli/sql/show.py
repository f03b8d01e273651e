"""The output of statements: tables, JSON, rows as they arrive, and errors with a marker below."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from millstream.cli.support import table
from millstream.cli.support.options import Format
from millstream.cli.support.output import note, print_json, print_table, printable
from millstream.client.errors import ClientError
from millstream.sql.errors import SqlError
from millstream.sql.live import Live
from millstream.sql.results import (
    Cells,
    Confirmation,
    Details,
    Listing,
    LiveRows,
    Outcome,
    Plan,
    Rows,
)

if TYPE_CHECKING:
    from millstream.sql.engine import Engine

T = TypeVar("T")
WAIT_S = 0.05
SCREEN_SHARE = 6
"""Terminal lines that a live table leaves free."""


class Interrupted(Exception):
    """Ctrl-C ended a statement but not the session."""


class StatementRunner:
    """Runs statements and prints their results."""

    def __init__(self, engine: Engine, format: Format, limit: int) -> None:
        self._engine = engine
        self._json = format is Format.json
        self._limit = limit

    def statement(self, text: str, where: str = "") -> bool:
        """Run one statement. Return False after printing an error. Raise Interrupted on Ctrl-C."""
        try:
            with Interrupts() as stop:
                outcome = self._engine.execute(text)
                if stop.is_set():
                    raise Interrupted
                self._show(outcome, stop)
        except SqlError as error:
            print(f"error: {where}{error}", file=sys.stderr)
            below = error.marked() or (error.text if error.text.startswith("CREATE") else "")
            if below:
                print(below, file=sys.stderr)
        except ClientError as error:
            print(f"error: {where}{error}", file=sys.stderr)
        else:
            return True
        return False

    def _show(self, outcome: Outcome, stop: threading.Event) -> None:
        if isinstance(outcome, Confirmation):
            print_json({"done": outcome.text}) if self._json else print(outcome.text)
            for warning in outcome.warnings:
                note(f"warning: {warning}")
        elif isinstance(outcome, Listing):
            self._listing(outcome)
        elif isinstance(outcome, Details):
            self._details(outcome)
        elif isinstance(outcome, Plan):
            print_json({"plan": outcome.text}) if self._json else print(outcome.text)
        elif isinstance(outcome, Rows):
            self._rows(outcome, stop)
        else:
            self._live(outcome, stop)
        sys.stdout.flush()

    def _listing(self, listing: Listing) -> None:
        if self._json:
            names = [name.lower().replace(" ", "_") for name in listing.columns]
            print_json([dict(zip(names, row, strict=True)) for row in listing.rows])
        elif listing.rows:
            print_table(listing.columns, listing.rows)
        else:
            note("nothing to show")

    def _details(self, details: Details) -> None:
        if self._json:
            columns = [
                {"name": column.name, "type": column.type, "not_null": column.not_null}
                for column in details.columns
            ]
            facts = {name.replace(" ", "_"): fact for name, fact in details.facts.items()}
            print_json(facts | ({"columns": columns} if columns else {}))
            return
        for name, fact in details.facts.items():
            text = ", ".join(map(str, fact)) if isinstance(fact, list | tuple) else str(fact)
            print(f"{name:<11} {printable(text)}")
        if details.columns:
            print()
            print_table(
                ("COLUMN", "TYPE"),
                [
                    (column.name, column.type + (" not null" if column.not_null else ""))
                    for column in details.columns
                ],
            )

    # ---- queries ----

    def _rows(self, rows: Rows, stop: threading.Event) -> None:
        if self._json:
            interruptibly(rows, lambda: _print_all(rows.objects()), stop)
            return
        cells = interruptibly(rows, lambda: rows.cells(self._limit + 1), stop)
        print_table(rows.columns, cells[: self._limit])
        if len(cells) > self._limit:
            note(
                f"showing the first {self._limit:,} rows; use --limit N for more, or --format json for all"
            )

    def _live(self, rows: LiveRows, stop: threading.Event) -> None:
        live = Live(rows, self._engine.bootstrap, self._engine.checkpoint)
        if self._json:
            live.lines(_print_all, json=True, stopped=stop.is_set)
        elif sys.stdout.isatty():
            with _Screen(rows) as screen:
                live.screen(screen.show, stopped=stop.is_set)
        else:
            live.lines(_Aligned(rows.frame.columns).show, json=False, stopped=stop.is_set)
        if stop.is_set():
            raise Interrupted


def _print_all(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
    sys.stdout.flush()


class _Aligned:
    """Prints rows as they arrive; a column grows to the widest value so far."""

    def __init__(self, columns: list[str]) -> None:
        self._widths = [len(name) for name in columns]
        self._columns: tuple[str, ...] | None = tuple(columns)

    def show(self, rows: Iterable[Cells]) -> None:
        shown = [tuple("-" if cell is None else printable(cell) for cell in row) for row in rows]
        if not shown:
            return
        head, self._columns = self._columns, None
        lines = [head, *shown] if head else shown
        for line in lines:
            self._widths = [max(*pair) for pair in zip(self._widths, map(len, line), strict=True)]
        for line in lines:
            padded = (cell.ljust(width) for cell, width in zip(line, self._widths, strict=True))
            print("  ".join(padded).rstrip())
        sys.stdout.flush()


class _Screen:
    """A table that is redrawn: the whole result, or the latest rows."""

    def __init__(self, rows: LiveRows) -> None:
        self._columns = rows.frame.columns
        self._rows: deque[Cells] = deque(maxlen=max(5, table.terminal_size().lines - SCREEN_SHARE))
        self._live = table.Live()

    def show(self, rows: list[Cells], whole: bool) -> None:
        if whole:
            self._rows.clear()
        self._rows.extend(rows[: self._rows.maxlen] if whole else rows)
        self._live.update(self._lines())

    def _lines(self) -> list[str]:
        shown = table.Table(*self._columns, ruled=True)
        for row in self._rows:
            shown.add(*("-" if cell is None else printable(cell) for cell in row))
        return shown.lines(table.terminal_size().columns, colour=True)

    def __enter__(self) -> _Screen:
        self._live.start()
        self._live.update(self._lines())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()


# ---- Ctrl-C ----


class Interrupts:
    """Records Ctrl-C instead of raising.

    An exception in the middle of a JVM call would leave half a response in the connection.
    """

    def __enter__(self) -> threading.Event:
        self._seen = threading.Event()
        self._before = signal.signal(signal.SIGINT, lambda number, frame: self._seen.set())
        return self._seen

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.signal(signal.SIGINT, self._before)


def interruptibly(rows: Rows, work: Callable[[], T], stop: threading.Event) -> T:
    """Run Spark work in a separate thread and return its result; Ctrl-C cancels its jobs."""
    from pyspark import InheritableThread

    context = rows.frame.sparkSession.sparkContext
    group = f"millstream-sql-{time.time_ns()}"
    results: list[T] = []
    errors: list[BaseException] = []

    def target() -> None:
        context.setJobGroup(group, "millstream sql", interruptOnCancel=True)
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = InheritableThread(target, session=rows.frame.sparkSession)
    thread.start()
    while thread.is_alive():
        thread.join(WAIT_S)
        if stop.is_set():
            context.cancelJobGroup(group)
    if stop.is_set():
        raise Interrupted
    if errors:
        raise errors[0]
    return results[0]
