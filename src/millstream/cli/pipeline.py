"""``millstream pipeline``: run, check and status of pipelines on Spark."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.options import Format, OutputFormat, Timeout, noun
from millstream.cli.output import note, print_json, print_table
from millstream.client.connection import DEFAULT_TIMEOUT_S
from millstream.client.errors import ClientError

if TYPE_CHECKING:
    from millstream.pipelines.checks import Check
    from millstream.pipelines.declare import Pipeline
    from millstream.pipelines.graph import Problem
    from millstream.pipelines.progress import Figures
    from millstream.pipelines.runner import Run

app = noun("Pipelines on Spark, exactly once.")

INSTALL = 'pip install "millstream[spark]"'
INTERRUPTED = 130
TABLE_EVERY_S = 10.0
STALE_AFTER_MS = 10_000

PipelineFile = Annotated[
    str, typer.Argument(metavar="FILE", help="The Python file that declares the pipeline.")
]
Master = Annotated[str, typer.Option("--master", metavar="URL", help="Where Spark runs.")]
# Not the shared option: a pipeline file names its own broker.
Address = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="MILLSTREAM_BOOTSTRAP",
        metavar="HOST:PORT",
        help="Address of a broker. [default: what the file says]",
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint", metavar="DIR", help="Where checkpoints are. [default: ./millstream-checkpoints]"
    ),
]
Conf = Annotated[list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark.")]


@app.command()
def run(
    file: PipelineFile,
    once: Annotated[bool, typer.Option("--once", help="Process what is there now, then end.")] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="FLOW", help="Only this flow (repeat it).")
    ] = None,
    master: Master = "local[*]",
    bootstrap: Address = None,
    checkpoint: Checkpoint = None,
    conf: Conf = None,
    reset_progress: Annotated[
        bool,
        typer.Option(
            "--reset-progress", help="The checkpoint is new on purpose: write again what it brings again."
        ),
    ] = False,
    stop_timeout: Annotated[
        float,
        typer.Option(
            "--stop-timeout", metavar="SECONDS", min=0, help="How long a batch may finish at the end."
        ),
    ] = 30.0,
    format: OutputFormat = Format.table,
) -> None:
    """Run a pipeline until Ctrl-C, or until it has read what is there (--once)."""
    from millstream.pipelines.runner import RunOptions, preflight

    pipeline = _load(file, bootstrap)
    options = RunOptions(once, only or (), checkpoint, reset_progress, stop_timeout)
    preflight(pipeline, options)
    view = _Lines() if format is Format.json else _Table(pipeline.name)
    with _session(pipeline, master, conf, file) as spark:
        current = _new_run(pipeline, spark, options, view.event)
        signals = _Signals(current)
        try:
            view.begin(current, master)
            ok = current.run(view.tick)
        finally:
            signals.restore()
            view.end()
    view.finish(current)
    if not ok:
        raise typer.Exit(1)
    if signals.interrupted:
        raise typer.Exit(INTERRUPTED)


@app.command()
def check(
    file: PipelineFile,
    bootstrap: Address = None,
    plan: Annotated[bool, typer.Option("--plan", help="Also Spark's plan of each flow.")] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Without asking a broker for the topics.")
    ] = False,
    format: OutputFormat = Format.table,
) -> None:
    """Check a pipeline without running it: names, schemas, plans, topics."""
    from millstream.pipelines.checks import Check, all_problems, check_flows, check_names, check_topics

    pipeline = _load(file, bootstrap)
    named = check_names(pipeline)
    topics = [] if offline else check_topics(pipeline)
    found = Check()
    if all(problem.warning for problem in named):
        with _session(pipeline, "local[1]", None, file) as spark:
            found = check_flows(pipeline, spark)
    found.problems = all_problems([named, topics, found.problems])
    if format is Format.json:
        print_json(_check_json(pipeline, found))
    else:
        _show_check(found, plan)
    if not found.ok:
        raise typer.Exit(1)


@app.command()
def status(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE|NAME]", help="A pipeline file or name; all below the directory when none."
        ),
    ] = None,
    checkpoint: Checkpoint = None,
    bootstrap: Address = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    format: OutputFormat = Format.table,
) -> None:
    """Show how pipelines are doing, from any terminal; lag also of those that do not run."""
    from millstream.pipelines.status import find_statuses

    found = find_statuses(what, checkpoint, bootstrap=bootstrap, timeout_s=timeout)
    if format is Format.json:
        print_json(found)
        return
    for one in found:
        _show_status(one)
    if not found:
        note("no pipeline has run here; start one with `millstream pipeline run FILE`")


# ---------------------------------------------------------------- starting


def _load(file: str, bootstrap: str | None) -> Pipeline:
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise ClientError("pipelines need Spark, which is not installed", hint=INSTALL) from None
    from millstream.pipelines.load import load_pipeline

    pipeline = load_pipeline(file)
    if bootstrap:
        pipeline.bootstrap = bootstrap
    return pipeline


@contextmanager
def _session(pipeline: Pipeline, master: str, conf: list[str] | None, file: str) -> Iterator[Any]:
    """The Spark session of this command. Its workers find modules beside the file."""
    from millstream.cli.options import pairs
    from millstream.pipelines.runner import SESSION_CONF
    from millstream.spark.session import session

    beside = str(Path(file).resolve().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [beside, os.environ.get("PYTHONPATH")]))
    _quiet_pyspark()
    settings = {**SESSION_CONF, **pipeline.conf, **pairs(conf, "--conf")}
    with _quiet_start():
        spark = session(f"millstream {pipeline.name}", master=master, conf=settings)
    try:
        yield spark
    finally:
        spark.stop()


def _quiet_pyspark() -> None:
    """PySpark writes every refused query to stderr as JSON, besides raising it."""
    import logging

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


@contextmanager
def _quiet_start() -> Iterator[None]:
    """Java's remarks at its start go nowhere, unless it fails."""
    import tempfile

    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as aside:
        os.dup2(aside.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(kept, 2)
            aside.seek(0)
            sys.stderr.write(aside.read().decode(errors="replace"))
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _new_run(pipeline: Pipeline, spark: Any, options: Any, emit: Callable[[dict[str, Any]], None]) -> Run:
    from millstream.pipelines.runner import Run

    return Run(pipeline, spark, options, emit)


class _Signals:
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


# ---------------------------------------------------------------- showing a run


class _Lines:
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
        self.event({"event": "ended", "state": run.state, "flows": [one._asdict() for one in run.figures()]})


class _Table:
    """A table that is redrawn in a terminal, and printed now and then into a file."""

    def __init__(self, name: str) -> None:
        self._name = name
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
            self._live.update(_live_table(self._run.figures()))
            self._live.stop()

    def finish(self, run: Run) -> None:
        if self._live is None:
            print_figures(run.figures())
        print(f"\n {run.state}: {_totals(run)}")


def _totals(run: Run) -> str:
    from millstream.pipelines.letter_flows import is_letters

    flows = [one for one in run.figures() if not is_letters(one.flow)]
    dead = sum(one.output_rows for one in run.figures() if is_letters(one.flow))
    text = f"{sum(one.input_rows for one in flows):,} rows in, {sum(one.output_rows for one in flows):,} rows out"
    return text + (f", {dead:,} dead letters: `millstream dlq list`" if dead else "")


def _event_line(event: dict[str, Any]) -> str | None:
    if event["event"] == "created":
        return f" topic      {event['topic']} created"
    from millstream.pipelines.letter_flows import is_letters

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
    from millstream.pipelines.letter_flows import is_letters

    return [one for one in figures if not is_letters(one.flow) or one.output_rows or one.reason]


def _live_table(figures: list[Figures]) -> Any:
    from rich.table import Table

    from millstream.pipelines.progress import COLUMNS, cells

    table = Table(box=None, pad_edge=True, header_style="bold")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "flow" else "right")
    now_ms = int(time.time() * 1000)
    for one in _shown(figures):
        style = {"failed": "red", "retrying": "yellow", "waiting": "dim"}.get(one.state)
        table.add_row(*cells(one, now_ms), style=style)
    return table


def print_figures(figures: list[Figures]) -> None:
    from millstream.pipelines.progress import COLUMNS, cells

    now_ms = int(time.time() * 1000)
    print_table(COLUMNS, [cells(one, now_ms) for one in _shown(figures)])


# ---------------------------------------------------------------- showing a check and a status


def _show_check(check: Check, plan: bool) -> None:
    for one in check.flows:
        reads = ", ".join(one.inputs)
        print(f"flow {one.flow.name}  {one.flow.mode}  {reads} -> {', '.join(map(str, one.flow.targets))}")
        for column, kind in one.schema:
            print(f"    {column:<24} {kind}")
        if plan and one.plan:
            print("\n".join(f"    {line}" for line in one.plan.splitlines()))
    for problem in check.problems:
        print(_problem_line(problem), file=sys.stderr)
    if check.ok:
        count = len(check.flows)
        print(f"ok: {count} flow{'s' if count != 1 else ''}")


def _problem_line(problem: Problem) -> str:
    where = f"{problem.place}: " if problem.place else ""
    hint = f"; {problem.hint}" if problem.hint else ""
    return f"{'warning' if problem.warning else 'error'}: {where}{problem.text}{hint}"


def _check_json(pipeline: Pipeline, check: Check) -> dict[str, Any]:
    return {
        "pipeline": pipeline.name,
        "ok": check.ok,
        "flows": [
            {
                "flow": one.flow.name,
                "mode": one.flow.mode,
                "inputs": one.inputs,
                "targets": [str(target) for target in one.flow.targets],
                "schema": [{"name": name, "type": kind} for name, kind in one.schema],
            }
            for one in check.flows
        ],
        "problems": [
            {
                "severity": "warning" if one.warning else "error",
                "file": one.place.file if one.place else None,
                "line": one.place.line if one.place else None,
                "problem": one.text,
                "hint": one.hint or None,
            }
            for one in check.problems
        ],
    }


def _show_status(status: dict[str, Any]) -> None:
    from millstream.pipelines.progress import Figures

    known = Figures._fields
    figures = [
        Figures(**{name: value for name, value in one.items() if name in known}) for one in status["flows"]
    ]
    who = f"process {status['pid']} on {status['host']}" if status["running"] else "not running"
    print(f"{status['pipeline']}  {status['state']}  {who}  {status['bootstrap']}")
    if figures:
        print_figures(figures)
    for one in figures:
        if one.reason and one.state in ("failed", "retrying"):
            print(f"  {one.flow} {one.state}: {one.reason}")
    print()
