"""What the commands share that run flows on Spark: the session, Ctrl-C, and how a run is shown while it goes on."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import typer

from millstream.cli.pipeline import driver_restart
from millstream.cli.support.options import Format
from millstream.cli.support.output import note, note_on_terminal, print_table

if TYPE_CHECKING:
    import logging

    from millstream.pipelines.declare import Pipeline
    from millstream.pipelines.run.progress import Figures
    from millstream.pipelines.runner import Run, RunOptions

INTERRUPTED = 130
TABLE_EVERY_S = 10.0
OURS = "millstream: "
"""How lines begin that are meant for whoever runs a query (``spark.losses.say``)."""
MOST_REMARKS = 1000
LAST_WORDS_S = 2.0
QUICK_JVM = {"spark.millstream.jvm": "quick"}
"""For runs of a minute or less (``spark/jvm_options``, which is not imported for a constant)."""
QUICK_JVM_OPTION = "spark.millstream.jvm=quick"


def run_and_show(
    pipeline: Pipeline,
    spark: Any,
    options: RunOptions,
    master: str,
    format: Format,
    each: Callable[[Run], None] = lambda run: None,
) -> None:
    """Run flows until they end or Ctrl-C comes, with a live table or JSON lines; the exit code says how it went.

    ``each`` is called with the run several times a second. After an error of the JVM the command starts again in place of itself.
    """
    from millstream.pipelines.runner import Run

    view: View = Lines() if format is Format.json else LiveTable()
    options = replace(options, restarts_ms=driver_restart.restarts_ms())
    run = Run(pipeline, spark, options, view.event)

    def look() -> None:
        each(run)
        view.tick()

    signals = Signals(run)
    try:
        view.begin(run, master)
        ok = run.run(look)
    finally:
        signals.restore()
        view.end()
    if run.restart is not None:
        driver_restart.start_again(run.restart.in_ms)
    view.finish(run)
    if not ok:
        raise typer.Exit(1)
    if signals.interrupted:
        raise typer.Exit(INTERRUPTED)


@contextmanager
def spark_session(
    name: str, master: str, *conf: Mapping[str, object], beside: str | None = None
) -> Iterator[Any]:
    """The Spark session of a command, with the settings of the last that names one; its workers find modules ``beside`` a file."""
    from millstream.pipelines.runner import SESSION_CONF
    from millstream.spark.session import session

    directory = None if beside is None else Path(beside).resolve().parent
    quiet_pyspark()
    settings = dict(SESSION_CONF)
    for one in conf:
        settings |= one
    note_on_terminal("starting Spark, which takes a few seconds ...")
    with _quiet_start():
        spark = session(f"millstream {name}", master=master, conf=settings, beside=directory)
    try:
        yield spark
    finally:
        _stop(spark)


def _stop(spark: Any) -> None:
    """Stop Spark, also if its JVM has ended already."""
    from millstream.pipelines.run.jvm_failures import fault_of

    try:
        spark.stop()
    except Exception as error:
        if fault_of(error) is None:
            raise


def quiet_pyspark() -> None:
    """Keep from stderr what PySpark and py4j raise besides: refused queries as JSON, traces of a lost connection to the JVM."""
    import logging

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    logging.getLogger().addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """py4j logs to the root logger, as no other package here does."""
    return Path(record.pathname).parent.name != "py4j"


@contextmanager
def _quiet_start() -> Iterator[None]:
    """Java's remarks go nowhere, unless it fails to start; who presses Ctrl-C knows why it did not. What our own processes beside it say,
    then and later, comes through."""
    sys.stderr.flush()
    said, end = os.pipe()
    words = JavaWords(said)
    kept = os.dup(2)
    os.dup2(end, 2)
    os.close(end)
    try:
        yield
    except Exception:
        os.dup2(kept, 2)
        words.join(LAST_WORDS_S)
        sys.stderr.write("".join(words.remarks))
        raise
    finally:
        os.dup2(kept, 2)
        os.close(kept)


class JavaWords(threading.Thread):
    """Reads what the JVM and the Python processes beside it write to their stderr, for as long as one of them lives."""

    def __init__(self, said: int) -> None:
        super().__init__(name="java-words", daemon=True)
        self.remarks: deque[str] = deque(maxlen=MOST_REMARKS)
        self._said = said
        self.start()

    def run(self) -> None:
        with open(self._said, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith(OURS):
                    print(line, end="", file=sys.stderr, flush=True)  # a live table lets it pass above itself
                else:
                    self.remarks.append(line)


class Signals:
    """Ctrl-C and SIGTERM ask the run to end; a second one does not wait for batches."""

    def __init__(self, run: Run) -> None:
        self.interrupted = False
        self._run = run
        self._before = {one: signal.signal(one, self._stop) for one in (signal.SIGINT, signal.SIGTERM)}

    def _stop(self, number: int, frame: object) -> None:
        self.interrupted = self.interrupted or number == signal.SIGINT
        self._run.stop()

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class View(Protocol):
    """What is told while a run goes on."""

    def begin(self, run: Run, master: str) -> None: ...

    def event(self, event: dict[str, Any]) -> None: ...

    def tick(self) -> None: ...

    def end(self) -> None: ...

    def finish(self, run: Run) -> None: ...


class Lines:
    """Events as JSON lines."""

    def __init__(self) -> None:
        self._run: Run | None = None
        self._shown_s = 0.0

    def begin(self, run: Run, master: str) -> None:
        self._run = run

    def event(self, event: dict[str, Any]) -> None:
        print(json.dumps({"at_ms": int(time.time() * 1000), **event}, ensure_ascii=False), flush=True)

    def tick(self) -> None:
        if self._run is not None and time.monotonic() - self._shown_s > 1:
            self._shown_s = time.monotonic()
            self.event({"event": "figures", "flows": [one._asdict() for one in self._run.figures()]})

    def end(self) -> None:
        pass

    def finish(self, run: Run) -> None:
        event = {"event": "ended", "state": run.state, "flows": [one._asdict() for one in run.figures()]}
        self.event(event | ({"log": str(run.layout.failures)} if run.state == "failed" else {}))


class LiveTable:
    """A table that is redrawn in a terminal, and printed now and then into a file."""

    def __init__(self) -> None:
        self._run: Run | None = None
        self._live: Any = None
        self._shown_s = time.monotonic()

    def begin(self, run: Run, master: str) -> None:
        self._run = run
        count = len(run.flows)
        print(
            f" spark      {master}, {count} flow{'s' if count != 1 else ''}, {run.pipeline.delivery}\n",
            flush=True,
        )
        if sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(_live_table(run.figures()), refresh_per_second=4, transient=False)
            self._live.start()

    def event(self, event: dict[str, Any]) -> None:
        line = _event_line(event)
        if line is None:
            return
        if self._live is not None:
            self._live.console.print(line, highlight=False, markup=False)
        else:
            print(line, flush=True)

    def tick(self) -> None:
        assert self._run is not None
        if self._live is not None:
            self._live.update(_live_table(self._run.figures()))
        elif time.monotonic() - self._shown_s > TABLE_EVERY_S:
            self._shown_s = time.monotonic()
            print_figures(self._run.figures())
            sys.stdout.flush()

    def end(self) -> None:
        if self._live is not None:
            assert self._run is not None
            self._live.update(_live_table(self._run.figures(), with_trouble=False))
            self._live.stop()

    def finish(self, run: Run) -> None:
        if self._live is None:
            print_figures(run.figures(), with_trouble=False)
        print(f"\n {run.state}: {_totals(run)}", flush=True)
        if run.state == "failed":
            for line in failure_lines(run.figures(), run.layout.failures):
                note(line)


def failure_lines(figures: Iterable[Figures], log: Path) -> list[str]:
    """Which flows failed, how often and why, and where the traces are."""
    from millstream.pipelines.run.progress import times

    failed = [one for one in figures if one.state == "failed"]
    lines = [f"error: flow {one.flow} failed {times(one.failures)}: {one.reason}" for one in failed]
    return [*lines, f"the traces are in {log}"] if log.exists() else lines


def _totals(run: Run) -> str:
    from millstream.pipelines.dead_letters.ownership import is_letters

    flows = [one for one in run.figures() if not is_letters(one.flow)]
    dead = sum(one.output_rows if is_letters(one.flow) else one.dead_letters for one in run.figures())
    text = f"{sum(one.input_rows for one in flows):,} rows in, {sum(one.output_rows for one in flows):,} rows out"
    return text + (f", {dead:,} dead letters: `millstream dlq list`" if dead else "")


def _event_line(event: dict[str, Any]) -> str | None:
    if event["event"] == "created":
        return f" topic      {event['topic']} created"
    if event["event"] == "restart":
        pause_s = event["in_ms"] / 1000
        return f" spark      {event['reason']}: restart {event['restart']} of the driver in {pause_s:.0f} s"
    from millstream.pipelines.dead_letters.ownership import is_letters

    if event["event"] != "flow" or event["state"] == "running":
        return None
    if is_letters(event["flow"]) and "reason" not in event:
        return None
    text = f" {event['flow']}  {event['state']}"
    if "reason" in event:
        text += f": {event['reason']}"
    if "retry_in_ms" in event:
        text += f" (try {event['failures'] + 1} in {event['retry_in_ms'] / 1000:.0f} s)"
    return text


def _shown(figures: list[Figures]) -> list[Figures]:
    """Dead letters are shown when there are some, or when something is wrong with them."""
    from millstream.pipelines.dead_letters.ownership import is_letters

    return [one for one in figures if not is_letters(one.flow) or one.output_rows or one.reason]


def _live_table(figures: list[Figures], *, with_trouble: bool = True) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from millstream.pipelines.run.progress import COLUMNS, cells, trouble

    table = Table(box=None, pad_edge=True, header_style="bold")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "flow" else "right")
    now_ms = int(time.time() * 1000)
    for one in _shown(figures):
        style = {"failed": "red", "retrying": "yellow", "waiting": "dim"}.get(one.state)
        table.add_row(*cells(one, now_ms), style=style)
    lines = [line for one in figures if with_trouble and (line := trouble(one))]
    return Group(table, *(Text(f" {line}", style="yellow") for line in lines)) if lines else table


def print_figures(figures: list[Figures], *, with_trouble: bool = True) -> None:
    """The table as text, with a line below it for each flow that is in trouble."""
    from millstream.pipelines.run.progress import COLUMNS, cells, trouble

    now_ms = int(time.time() * 1000)
    print_table(COLUMNS, [cells(one, now_ms) for one in _shown(figures)])
    for one in figures:
        if with_trouble and (line := trouble(one)):
            print(f"  {line}")
