"""How the outcome of a statement looks: tables and JSON, rows as they come, mistakes with a mark below them."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.cli.support.options import Format
from millstream.cli.support.output import note, print_json, print_table, printable
from millstream.client.errors import ClientError
from millstream.sql.errors import SqlError
from millstream.sql.live import Live
from millstream.sql.results import Cells, Details, Listing, LiveRows, Outcome, Plan, Rows, Told

if TYPE_CHECKING:
    from millstream.sql.engine import Engine

T = TypeVar("T")
WAIT_S = 0.05
SCREEN_SHARE = 6
"""Lines of a terminal that a live table leaves free."""


class Interrupted(Exception):
    """Ctrl-C ended a statement, not the session."""


class Shown:
    """Carries statements out and prints what comes of them."""

    def __init__(self, engine: Engine, format: Format, most: int) -> None:
        self._engine = engine
        self._json = format is Format.json
        self._most = most

    def statement(self, text: str, where: str = "") -> bool:
        """Carry out one statement; False if it failed, which has been told then. Interrupted if Ctrl-C ended it."""
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
        if isinstance(outcome, Told):
            print_json({"done": outcome.text}) if self._json else print(outcome.text)
            for one in outcome.warnings:
                note(f"warning: {one}")
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

    def _listing(self, found: Listing) -> None:
        if self._json:
            names = [name.lower().replace(" ", "_") for name in found.columns]
            print_json([dict(zip(names, row, strict=True)) for row in found.rows])
        elif found.rows:
            print_table(found.columns, found.rows)
        else:
            note("there are none")

    def _details(self, found: Details) -> None:
        if self._json:
            columns = [
                {"name": one.name, "type": one.type, "not_null": one.not_null} for one in found.columns
            ]
            facts = {name.replace(" ", "_"): fact for name, fact in found.facts.items()}
            print_json(facts | ({"columns": columns} if columns else {}))
            return
        for name, fact in found.facts.items():
            text = ", ".join(map(str, fact)) if isinstance(fact, list | tuple) else str(fact)
            print(f"{name:<11} {printable(text)}")
        if found.columns:
            print()
            print_table(
                ("COLUMN", "TYPE"),
                [(one.name, one.type + (" not null" if one.not_null else "")) for one in found.columns],
            )

    # ---------------------------------------------------------------- queries

    def _rows(self, found: Rows, stop: threading.Event) -> None:
        if self._json:
            interruptibly(found, lambda: _print_all(found.objects()), stop)
            return
        cells = interruptibly(found, lambda: found.cells(self._most + 1), stop)
        print_table(found.columns, cells[: self._most])
        if len(cells) > self._most:
            note(f"only the first {self._most:,} rows; more with --limit N, all of them with --format json")

    def _live(self, found: LiveRows, stop: threading.Event) -> None:
        live = Live(found, self._engine.bootstrap, self._engine.checkpoint)
        if self._json:
            live.lines(_print_all, json=True, stopped=stop.is_set)
        elif sys.stdout.isatty():
            with _Screen(found) as screen:
                live.screen(screen.show, stopped=stop.is_set)
        else:
            live.lines(_Aligned(found.frame.columns).show, json=False, stopped=stop.is_set)
        if stop.is_set():
            raise Interrupted


def _print_all(lines: Iterable[str]) -> None:
    for one in lines:
        print(one)
    sys.stdout.flush()


class _Aligned:
    """Rows below each other as they come; a column grows with the widest that was seen."""

    def __init__(self, columns: list[str]) -> None:
        self._widths = [len(name) for name in columns]
        self._columns: tuple[str, ...] | None = tuple(columns)

    def show(self, rows: Iterable[Cells]) -> None:
        shown = [tuple("-" if one is None else printable(one) for one in row) for row in rows]
        if not shown:
            return
        head, self._columns = self._columns, None
        lines = [head, *shown] if head else shown
        for line in lines:
            self._widths = [max(*pair) for pair in zip(self._widths, map(len, line), strict=True)]
        for line in lines:
            padded = (one.ljust(width) for one, width in zip(line, self._widths, strict=True))
            print("  ".join(padded).rstrip())
        sys.stdout.flush()


class _Screen:
    """A table that is redrawn: the whole result, or the last rows that came."""

    def __init__(self, found: LiveRows) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self._columns = found.frame.columns
        console = Console(highlight=False)
        self._rows: deque[Cells] = deque(maxlen=max(5, console.size.height - SCREEN_SHARE))
        self._live: Any = RichLive(self._table(), console=console, refresh_per_second=8)

    def show(self, rows: list[Cells], whole: bool) -> None:
        if whole:
            self._rows.clear()
        self._rows.extend(rows[: self._rows.maxlen] if whole else rows)
        self._live.update(self._table())

    def _table(self) -> Any:
        from rich import box
        from rich.table import Table

        table = Table(*self._columns, box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
        for row in self._rows:
            table.add_row(*("-" if one is None else printable(one) for one in row))
        return table

    def __enter__(self) -> _Screen:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


# ---------------------------------------------------------------- Ctrl-C


class Interrupts:
    """Ctrl-C is noted instead of raised: in the middle of a word with the JVM it would leave half of an answer behind."""

    def __enter__(self) -> threading.Event:
        self._seen = threading.Event()
        self._before = signal.signal(signal.SIGINT, lambda number, frame: self._seen.set())
        return self._seen

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)


def interruptibly(rows: Rows, work: Callable[[], T], stop: threading.Event) -> T:
    """The result of work with Spark, done in a thread of its own; Ctrl-C cancels its jobs."""
    from pyspark import InheritableThread

    context = rows.frame.sparkSession.sparkContext
    group = f"millstream-sql-{time.time_ns()}"
    done: list[T] = []
    failed: list[BaseException] = []

    def go() -> None:
        context.setJobGroup(group, "millstream sql", interruptOnCancel=True)
        try:
            done.append(work())
        except BaseException as error:
            failed.append(error)

    thread = InheritableThread(go, session=rows.frame.sparkSession)
    thread.start()
    while thread.is_alive():
        thread.join(WAIT_S)
        if stop.is_set():
            context.cancelJobGroup(group)
    if stop.is_set():
        raise Interrupted
    if failed:
        raise failed[0]
    return done[0]
