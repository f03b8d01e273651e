"""``millstream mirror``: topics of one cluster as topics of another, exactly once, with the offsets of groups; one way or both."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.pipeline.driver_restart import was_restarted
from millstream.cli.pipeline.run import run_and_show, spark_session
from millstream.cli.support.extras import need_spark
from millstream.cli.support.options import (
    Checkpoint,
    Conf,
    Format,
    Master,
    OutputFormat,
    StopTimeout,
    pairs,
)
from millstream.cli.support.output import note
from millstream.client.errors import ClientError

if TYPE_CHECKING:
    from millstream.connect.mirror.direction import Direction
    from millstream.pipelines.declare import Pipeline

app = typer.Typer(add_completion=False, rich_markup_mode=None)

CLUSTER = "[NAME=]HOST:PORT"
PATTERNS = "NAME|REGEX,..."


class Names(StrEnum):
    """What copies are called."""

    prefix = "prefix"
    identity = "identity"


class OnLoss(StrEnum):
    """What happens when records were deleted before they were mirrored."""

    stop = "stop"
    skip = "skip"


class Starting(StrEnum):
    """Where a new mirror begins."""

    earliest = "earliest"
    latest = "latest"


@app.command()
def mirror(
    source: Annotated[
        str, typer.Option("--from", metavar=CLUSTER, help="The cluster to read, and what it is called.")
    ],
    target: Annotated[
        str, typer.Option("--to", metavar=CLUSTER, help="The cluster to write, and what it is called.")
    ],
    topics: Annotated[str, typer.Option("--topics", "-t", metavar=PATTERNS, help="What to mirror.")],
    exclude: Annotated[
        str, typer.Option("--exclude", metavar=PATTERNS, help="What of it not to mirror.")
    ] = "",
    groups: Annotated[
        str,
        typer.Option(
            "--groups", "-g", metavar=PATTERNS, help="Consumer groups that are to go on in the other."
        ),
    ] = ".*",
    no_groups: Annotated[bool, typer.Option("--no-groups", help="Leave consumer groups alone.")] = False,
    both: Annotated[bool, typer.Option("--both", help="Mirror the other way as well.")] = False,
    names: Annotated[
        Names,
        typer.Option(
            "--names",
            help="prefix: orders of east becomes east.orders; identity: it stays orders, and loops are seen by a header.",
        ),
    ] = Names.prefix,
    forward: Annotated[
        bool,
        typer.Option("--forward", help="With --names identity: also copies that came from a third cluster."),
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="Name of checkpoints and progress. [default: made of the clusters' names]",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Mirror what is there now, then end.")] = False,
    interval: Annotated[
        str,
        typer.Option("--interval", metavar="TIME", help="Between two looks at topics, settings and groups."),
    ] = "5 seconds",
    resume: Annotated[
        bool,
        typer.Option("--resume", help="The checkpoint is gone: go on behind the last copies in the target."),
    ] = False,
    starting: Annotated[
        Starting, typer.Option("--starting", help="Where a new mirror begins.")
    ] = Starting.earliest,
    on_loss: Annotated[
        OnLoss, typer.Option("--on-loss", help="When records were deleted before they were mirrored.")
    ] = OnLoss.stop,
    most_records: Annotated[
        int, typer.Option("--most-records", metavar="N", min=1, help="Most records of one transaction.")
    ] = 500_000,
    master: Master = "local[*]",
    checkpoint: Checkpoint = None,
    conf: Conf = None,
    stop_timeout: StopTimeout = 30.0,
    format: OutputFormat = Format.table,
) -> None:
    """Mirror topics to another cluster, until Ctrl-C or until all that is there has been mirrored (--once)."""
    need_spark("mirrors")
    from millstream.connect.mirror.declare import RETRIES, declare, directions, mirror_name
    from millstream.connect.mirror.direction import MirrorCluster
    from millstream.pipelines.declare import Pipeline
    from millstream.pipelines.runner import RunOptions, preflight

    here, there = MirrorCluster.parse(source), MirrorCluster.parse(target)
    pipeline = Pipeline(name or mirror_name(here, there), bootstrap=here.bootstrap, retries=RETRIES)
    made = directions(
        here,
        there,
        topics=topics,
        exclude=exclude,
        groups="" if no_groups else groups,
        both=both,
        naming=names.value,
        forward=forward,
        on_loss=on_loss.value,
        starting=starting.value,
        interval=interval,
        most_records=most_records,
    )
    given = pairs(conf, "--conf")
    options = RunOptions(
        once=once, checkpoint=checkpoint, reset_progress=resume, stop_timeout_s=stop_timeout, conf=given
    )
    if resume:
        made = _resumed(pipeline, made, checkpoint)
    declare(pipeline, made)
    preflight(pipeline, options)
    if format is Format.table:
        _introduce(made)
    with spark_session(pipeline.name, master, given) as spark:
        run_and_show(pipeline, spark, options, master, format)


def _resumed(pipeline: Pipeline, made: list[Direction], checkpoint: str | None) -> list[Direction]:
    """Refused where there is a checkpoint: what that says and what the target says would be two beginnings."""
    from millstream.connect.mirror.declare import progress_name
    from millstream.connect.mirror.resume import resumed
    from millstream.pipelines.run.layout import Layout

    layout = Layout.of(pipeline, checkpoint)
    going = [one for one in made if (layout.checkpoint(one.name) / "offsets").exists()]
    for one in going:
        if not was_restarted():  # else this command made it, before its JVM failed
            raise ClientError(
                f"--resume: there is a checkpoint in {layout.checkpoint(one.name)}",
                hint="leave --resume out to go on from it, or give --checkpoint another directory",
            )
    return [one if one in going else resumed(one, progress_name(pipeline, one)) for one in made]


def _introduce(directions: list[Direction]) -> None:
    """What is mirrored now, and under which names; what comes later is found as well."""
    from millstream.client.admin.client import Admin

    for one in directions:
        with Admin(one.source.bootstrap) as admin:
            found = [topic for topic in admin.topics.names() if one.selection.copies(topic)]
        shown = ", ".join(f"{topic} as {one.selection.target_topic(topic)}" for topic in found[:5])
        more = f", and {len(found) - 5} more" if len(found) > 5 else ""
        note(f"{one.source} to {one.target}: {shown or 'no topic matches yet'}{more}")
