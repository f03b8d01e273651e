"""Parts shared by commands that run flows on Spark: the session, Ctrl-C, and live output."""

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

from millstream.cli.pipeline import driver_restart
from millstream.cli.support import declare
from millstream.cli.support.options import Format
from millstream.cli.support.output import note, note_on_terminal, print_table
from millstream.cli.support.table import (
    DIM,
    RED,
    YELLOW,
    Live,
    Table,
    styled,
    terminal_size,
    wrapped,
)

if TYPE_CHECKING:
    import logging

    from millstream.pipelines.declare import Pipeline
    from millstream.pipelines.run.progress import Figures
    from millstream.pipelines.runner import Run, RunOptions

INTERRUPTED = 130
TABLE_EVERY_S = 10.0
_STYLES = {"failed": RED, "retrying": YELLOW, "waiting": DIM}
OURS = "millstream: "
"""Prefix of stderr lines that are meant for the user of a query (``spark.losses.say``)."""
MAX_REMARKS = 1000
LAST_OUTPUT_S = 2.0
QUICK_JVM = {"spark.millstream.jvm": "quick"}
"""JVM settings for runs of a minute or less. See ``spark/jvm_options``, which is slow to import."""
QUICK_JVM_OPTION = "spark.millstream.jvm=quick"


def run_and_show(
    pipeline: Pipeline,
    spark: Any,
    options: RunOptions,
    master: str,
    format: Format,
    each: Callable[[Run], None] = lambda run: None,
) -> None:
    """Run flows until they end or Ctrl-C, with a live table or JSON lines, and set the exit code.

    ``each`` is called with the run several times a second. After a JVM failure the command restarts
    in place.
    """
    from millstream.pipelines.runner import Run

    view: View = Lines() if format is Format.json else LiveTable()
    options = replace(options, restarts_ms=driver_restart.restarts_ms())
    run = Run(pipeline, spark, options, view.event)

    def poll() -> None:
        each(run)
        view.tick()

    signals = Signals(run)
    try:
        view.begin(run, master)
        ok = run.run(poll)
    finally:
        signals.restore()
        view.end()
    if run.restart is not None:
        driver_restart.start_again(run.restart.in_ms)
    view.finish(run)
    if not ok:
        raise declare.Exit(1)
    if signals.interrupted:
        raise declare.Exit(INTERRUPTED)


@contextmanager
def spark_session(
    name: str, master: str, *conf: Mapping[str, object], beside: str | None = None
) -> Iterator[Any]:
    """Yield the Spark session of a command. In ``conf`` the last value of a setting wins.

    Spark's Python workers can import modules ``beside`` the given file.
    """
    from millstream.pipelines.runner import SESSION_CONF
    from millstream.spark.session import session

    directory = None if beside is None else Path(beside).resolve().parent
    quiet_pyspark()
    settings = dict(SESSION_CONF)
    for mapping in conf:
        settings |= mapping
    note_on_terminal("starting Spark, which takes a few seconds ...")
    with _quiet_start():
        spark = session(f"millstream {name}", master=master, conf=settings, beside=directory)
    try:
        yield spark
    finally:
        _stop(spark)


def _stop(spark: Any) -> None:
    """Stop Spark, even if its JVM has already exited."""
    from millstream.pipelines.run.jvm_failures import fault_of

    try:
        spark.stop()
    except Exception as error:
        if fault_of(error) is None:
            raise


def quiet_pyspark() -> None:
    """Silence log messages that repeat exceptions of PySpark and py4j.

    PySpark logs refused queries as JSON, py4j a trace for each lost connection to the JVM.
    """
    import logging

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    logging.getLogger().addFilter(_is_not_py4j)


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """Reject records of py4j, which is the only package that logs to the root logger."""
    return Path(record.pathname).parent.name != "py4j"


@contextmanager
def _quiet_start() -> Iterator[None]:
    """Hide the JVM's stderr output, unless it fails to start. Ctrl-C is no such failure.

    Lines of Millstream's own processes pass through, now and later.
    """
    sys.stderr.flush()
    read_end, write_end = os.pipe()
    output = JavaOutput(read_end)
    stderr = os.dup(2)
    os.dup2(write_end, 2)
    os.close(write_end)
    try:
        yield
    except Exception:
        os.dup2(stderr, 2)
        output.join(LAST_OUTPUT_S)
        sys.stderr.write("".join(output.remarks))
        raise
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


class JavaOutput(threading.Thread):
    """Reads stderr of the JVM and of Spark's Python processes until the last of them exits."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(name="java-output", daemon=True)
        self.remarks: deque[str] = deque(maxlen=MAX_REMARKS)
        self._descriptor = descriptor
        self.start()

    def run(self) -> None:
        with open(self._descriptor, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith(OURS):
                    # A live table prints it above itself.
                    print(line, end="", file=sys.stderr, flush=True)
                else:
                    self.remarks.append(line)


class Signals:
    """Stops the run on Ctrl-C and SIGTERM; a second signal does not wait for batches."""

    def __init__(self, run: Run) -> None:
        self.interrupted = False
        self._run = run
        self._before = {
            number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)
        }

    def _stop(self, number: int, frame: object) -> None:
        self.interrupted = self.interrupted or number == signal.SIGINT
        self._run.stop()

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class View(Protocol):
    """The output of a run while it is running."""

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
        print(
            json.dumps({"at_ms": int(time.time() * 1000), **event}, ensure_ascii=False), flush=True
        )

    def tick(self) -> None:
        if self._run is not None and time.monotonic() - self._shown_s > 1:
            self._shown_s = time.monotonic()
            self.event(
                {"event": "figures", "flows": [flow._asdict() for flow in self._run.figures()]}
            )

    def end(self) -> None:
        pass

    def finish(self, run: Run) -> None:
        event = {
            "event": "ended",
            "state": run.state,
            "flows": [flow._asdict() for flow in run.figures()],
        }
        self.event(event | ({"log": str(run.layout.failures)} if run.state == "failed" else {}))


class LiveTable:
    """A table that is redrawn on a terminal, and printed every few seconds elsewhere."""

    def __init__(self) -> None:
        self._run: Run | None = None
        self._live: Live | None = None
        self._shown_s = time.monotonic()

    def begin(self, run: Run, master: str) -> None:
        self._run = run
        count = len(run.flows)
        print(
            f" spark      {master}, {count} flow{'s' if count != 1 else ''}, {run.pipeline.delivery}\n",
            flush=True,
        )
        if sys.stdout.isatty():
            self._live = Live()
            self._live.start()
            self._live.update(_live_lines(run.figures()))

    def event(self, event: dict[str, Any]) -> None:
        line = _event_line(event)
        if line is None:
            return
        if self._live is not None:
            self._live.print_above(f"{line}\n")
        else:
            print(line, flush=True)

    def tick(self) -> None:
        assert self._run is not None
        if self._live is not None:
            self._live.update(_live_lines(self._run.figures()))
        elif time.monotonic() - self._shown_s > TABLE_EVERY_S:
            self._shown_s = time.monotonic()
            print_figures(self._run.figures())
            sys.stdout.flush()

    def end(self) -> None:
        if self._live is not None:
            assert self._run is not None
            self._live.update(_live_lines(self._run.figures(), with_trouble=False))
            self._live.stop()

    def finish(self, run: Run) -> None:
        if self._live is None:
            print_figures(run.figures(), with_trouble=False)
        print(f"\n {run.state}: {_totals(run)}", flush=True)
        if run.state == "failed":
            for line in failure_lines(run.figures(), run.layout.failures):
                note(line)


def failure_lines(figures: Iterable[Figures], log: Path) -> list[str]:
    """Return the errors of failed flows, and the path of the stack traces."""
    from millstream.pipelines.run.progress import times

    failed = [flow for flow in figures if flow.state == "failed"]
    lines = [
        f"error: flow {flow.flow} failed {times(flow.failures)}: {flow.reason}" for flow in failed
    ]
    return [*lines, f"stack traces: {log}"] if log.exists() else lines


def _totals(run: Run) -> str:
    from millstream.pipelines.dead_letters.ownership import is_dead_letter_flow

    flows = [flow for flow in run.figures() if not is_dead_letter_flow(flow.flow)]
    dead = sum(
        flow.output_rows if is_dead_letter_flow(flow.flow) else flow.dead_letters
        for flow in run.figures()
    )
    text = f"{sum(flow.input_rows for flow in flows):,} rows in, {sum(flow.output_rows for flow in flows):,} rows out"
    return text + (f", {dead:,} dead letters: `millstream dlq list`" if dead else "")


def _event_line(event: dict[str, Any]) -> str | None:
    if event["event"] == "created":
        return f" topic      {event['topic']} created"
    if event["event"] == "restart":
        pause_s = event["in_ms"] / 1000
        return f" spark      {event['reason']}: restart {event['restart']} of the driver in {pause_s:.0f} s"
    from millstream.pipelines.dead_letters.ownership import is_dead_letter_flow

    if event["event"] != "flow" or event["state"] == "running":
        return None
    if is_dead_letter_flow(event["flow"]) and "reason" not in event:
        return None
    text = f" {event['flow']}  {event['state']}"
    if "reason" in event:
        text += f": {event['reason']}"
    if "retry_in_ms" in event:
        text += f" (attempt {event['failures'] + 1} in {event['retry_in_ms'] / 1000:.0f} s)"
    return text


def _shown(figures: list[Figures]) -> list[Figures]:
    """Leave out dead-letter flows without rows and without errors."""
    from millstream.pipelines.dead_letters.ownership import is_dead_letter_flow

    return [
        flow
        for flow in figures
        if not is_dead_letter_flow(flow.flow) or flow.output_rows or flow.reason
    ]


def _live_lines(figures: list[Figures], *, with_trouble: bool = True) -> list[str]:
    from millstream.pipelines.run.progress import COLUMNS, cells, failure_line

    table = Table(*COLUMNS, right=[column for column in COLUMNS if column != "flow"])
    now_ms = int(time.time() * 1000)
    for flow in _shown(figures):
        table.add(*cells(flow, now_ms), style=_STYLES.get(flow.state, ""))
    columns = terminal_size().columns
    lines = [f" {line}" for line in table.lines(columns - 2, colour=True)]
    for flow in figures:
        if with_trouble and (line := failure_line(flow)):
            lines += [styled(part, YELLOW) for part in wrapped(f" {line}", columns)]
    return lines


def print_figures(figures: list[Figures], *, with_trouble: bool = True) -> None:
    """Print the table as text, with a line below it for each flow with a problem."""
    from millstream.pipelines.run.progress import COLUMNS, cells, failure_line

    now_ms = int(time.time() * 1000)
    print_table(COLUMNS, [cells(flow, now_ms) for flow in _shown(figures)])
    for flow in figures:
        if with_trouble and (line := failure_line(flow)):
            print(f"  {line}")
