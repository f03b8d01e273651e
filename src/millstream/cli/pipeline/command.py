"""``millstream pipeline``: run and check pipelines on Spark, and show their status."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from millstream.cli.pipeline.run import QUICK_JVM, print_figures, run_and_show, spark_session
from millstream.cli.support import declare
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
    str, declare.Argument(metavar="FILE", help="The Python file that declares the pipeline.")
]
# Differs from the shared option, because a pipeline file names its broker.
Address = Annotated[
    str | None,
    declare.Option(
        "--bootstrap",
        "-b",
        envvar="MILLSTREAM_BOOTSTRAP",
        metavar="HOST:PORT",
        help="Address of a broker. [default: from the file]",
    ),
]


@app.command()
def run(
    file: PipelineFile,
    once: Once = False,
    only: Annotated[
        list[str] | None,
        declare.Option("--only", metavar="FLOW", help="Run only this flow (repeatable)."),
    ] = None,
    master: Master = "local[*]",
    bootstrap: Address = None,
    checkpoint: Checkpoint = None,
    conf: Conf = None,
    reset_progress: ResetProgress = False,
    stop_timeout: StopTimeout = 30.0,
    format: OutputFormat = Format.table,
) -> None:
    """Run a pipeline until Ctrl-C, or only over the available records (--once)."""
    need_spark("pipelines")
    from millstream.pipelines.runner import RunOptions, preflight

    pipeline = _load(file, bootstrap)
    spark_conf = pairs(conf, "--conf")
    options = RunOptions(
        once, only or (), checkpoint, reset_progress, stop_timeout, conf=spark_conf
    )
    preflight(pipeline, options)
    with spark_session(pipeline.name, master, pipeline.conf, spark_conf, beside=file) as spark:
        run_and_show(pipeline, spark, options, master, format)


@app.command()
def check(
    file: PipelineFile,
    bootstrap: Address = None,
    plan: Annotated[
        bool, declare.Option("--plan", help="Also print Spark's plan of each flow.")
    ] = False,
    offline: Annotated[
        bool, declare.Option("--offline", help="Do not ask a broker about the topics.")
    ] = False,
    format: OutputFormat = Format.table,
) -> None:
    """Check a pipeline without running it: names, schemas, plans, topics."""
    need_spark("pipelines")
    from millstream.pipelines.checks import (
        Check,
        all_problems,
        check_flows,
        check_names,
        check_topics,
    )

    pipeline = _load(file, bootstrap)
    name_problems = check_names(pipeline)
    topic_problems = [] if offline else check_topics(pipeline)
    result = Check()
    if all(problem.warning for problem in name_problems):
        with spark_session(
            pipeline.name, "local[1]", QUICK_JVM, pipeline.conf, beside=file
        ) as spark:
            result = check_flows(pipeline, spark)
    result.problems = all_problems([name_problems, topic_problems, result.problems])
    if format is Format.json:
        print_json(_check_json(pipeline, result))
    else:
        _show_check(result, plan)
    if not result.ok:
        raise declare.Exit(1)


@app.command()
def status(
    pipeline: Annotated[
        str | None,
        declare.Argument(
            metavar="[FILE|NAME]",
            help="A pipeline file or name. [default: all below the checkpoint directory]",
        ),
    ] = None,
    checkpoint: Checkpoint = None,
    bootstrap: Address = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    format: OutputFormat = Format.table,
) -> None:
    """Show the status of pipelines, from any terminal. Lag is shown for stopped ones too."""
    from millstream.pipelines.run.status import find_statuses

    statuses = find_statuses(pipeline, checkpoint, bootstrap=bootstrap, timeout_s=timeout)
    if format is Format.json:
        print_json(statuses)
        return
    for status in statuses:
        _show_status(status)
    if not statuses:
        note("no pipelines have run here; start one with `millstream pipeline run FILE`")


def _load(file: str, bootstrap: str | None) -> Pipeline:
    from millstream.pipelines.load import load_pipeline

    pipeline = load_pipeline(file)
    if bootstrap:
        pipeline.bootstrap = bootstrap
    return pipeline


# ---- output of check and status ----


def _show_check(check: Check, plan: bool) -> None:
    for flow_check in check.flows:
        reads = ", ".join(flow_check.inputs)
        print(
            f"flow {flow_check.flow.name}  {flow_check.flow.mode}  {reads} -> {', '.join(map(str, flow_check.flow.targets))}"
        )
        for column, kind in flow_check.schema:
            print(f"    {column:<24} {kind}")
        if plan and flow_check.plan:
            print("\n".join(f"    {line}" for line in flow_check.plan.splitlines()))
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
                "flow": entry.flow.name,
                "mode": entry.flow.mode,
                "inputs": entry.inputs,
                "targets": [str(target) for target in entry.flow.targets],
                "schema": [{"name": name, "type": kind} for name, kind in entry.schema],
            }
            for entry in check.flows
        ],
        "problems": [
            {
                "severity": "warning" if entry.warning else "error",
                "file": entry.place.file if entry.place else None,
                "line": entry.place.line if entry.place else None,
                "problem": entry.text,
                "hint": entry.hint or None,
            }
            for entry in check.problems
        ],
    }


def _show_status(status: dict[str, Any]) -> None:
    from millstream.pipelines.run.layout import FAILURES
    from millstream.pipelines.run.progress import Figures

    known = Figures._fields
    figures = [
        Figures(**{name: value for name, value in figure.items() if name in known})
        for figure in status["flows"]
    ]
    process = f"process {status['pid']} on {status['host']}" if status["running"] else "not running"
    print(f"{status['pipeline']}  {status['state']}  {process}  {status['bootstrap']}")
    if restarts := status.get("restarts"):
        print(
            f"  the driver was restarted {restarts} time{'s' if restarts != 1 else ''} after JVM failures"
        )
    if figures:
        print_figures(figures)
    log = Path(status["checkpoint"]) / FAILURES
    if any(figure.state in ("failed", "retrying") for figure in figures) and log.exists():
        print(f"  stack traces: {log}")
    print()
