"""``millstream pipeline``: run, check and status of pipelines on Spark."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.pipeline.run import QUICK_JVM, print_figures, run_and_show, spark_session
from millstream.cli.support.extras import need_spark
from millstream.cli.support.options import (
    Checkpoint,
    Conf,
    Format,
    Master,
    Once,
    OutputFormat,
    ResetProgress,
    StopTimeout,
    Timeout,
    noun,
    pairs,
)
from millstream.cli.support.output import note, print_json
from millstream.client.connection import DEFAULT_TIMEOUT_S

if TYPE_CHECKING:
    from millstream.pipelines.checks import Check
    from millstream.pipelines.declare import Pipeline
    from millstream.pipelines.graph import Problem

app = noun("Pipelines on Spark, exactly once.")

PipelineFile = Annotated[
    str, typer.Argument(metavar="FILE", help="The Python file that declares the pipeline.")
]
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


@app.command()
def run(
    file: PipelineFile,
    once: Once = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="FLOW", help="Only this flow (repeat it).")
    ] = None,
    master: Master = "local[*]",
    bootstrap: Address = None,
    checkpoint: Checkpoint = None,
    conf: Conf = None,
    reset_progress: ResetProgress = False,
    stop_timeout: StopTimeout = 30.0,
    format: OutputFormat = Format.table,
) -> None:
    """Run a pipeline until Ctrl-C, or until it has read what is there (--once)."""
    need_spark("pipelines")
    from millstream.pipelines.runner import RunOptions, preflight

    pipeline = _load(file, bootstrap)
    given = pairs(conf, "--conf")
    options = RunOptions(once, only or (), checkpoint, reset_progress, stop_timeout, conf=given)
    preflight(pipeline, options)
    with spark_session(pipeline.name, master, pipeline.conf, given, beside=file) as spark:
        run_and_show(pipeline, spark, options, master, format)


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
    need_spark("pipelines")
    from millstream.pipelines.checks import Check, all_problems, check_flows, check_names, check_topics

    pipeline = _load(file, bootstrap)
    named = check_names(pipeline)
    topics = [] if offline else check_topics(pipeline)
    found = Check()
    if all(problem.warning for problem in named):
        with spark_session(pipeline.name, "local[1]", QUICK_JVM, pipeline.conf, beside=file) as spark:
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
    from millstream.pipelines.run.status import find_statuses

    found = find_statuses(what, checkpoint, bootstrap=bootstrap, timeout_s=timeout)
    if format is Format.json:
        print_json(found)
        return
    for one in found:
        _show_status(one)
    if not found:
        note("no pipeline has run here; start one with `millstream pipeline run FILE`")


def _load(file: str, bootstrap: str | None) -> Pipeline:
    from millstream.pipelines.load import load_pipeline

    pipeline = load_pipeline(file)
    if bootstrap:
        pipeline.bootstrap = bootstrap
    return pipeline


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
    from millstream.pipelines.run.layout import FAILURES
    from millstream.pipelines.run.progress import Figures

    known = Figures._fields
    figures = [
        Figures(**{name: value for name, value in one.items() if name in known}) for one in status["flows"]
    ]
    who = f"process {status['pid']} on {status['host']}" if status["running"] else "not running"
    print(f"{status['pipeline']}  {status['state']}  {who}  {status['bootstrap']}")
    if restarts := status.get("restarts"):
        print(
            f"  the driver was restarted {restarts} time{'s' if restarts != 1 else ''} after errors of its JVM"
        )
    if figures:
        print_figures(figures)
    log = Path(status["checkpoint"]) / FAILURES
    if any(one.state in ("failed", "retrying") for one in figures) and log.exists():
        print(f"  the traces are in {log}")
    print()
