"""``millstream mirror``: copy topics to another cluster, exactly once, one way or both.

The offsets of consumer groups are copied too.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from millstream.cli.pipeline.driver_restart import was_restarted
from millstream.cli.pipeline.run import run_and_show, spark_session
from millstream.cli.support import declare
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

app = declare.Application()

CLUSTER = "[NAME=]HOST:PORT"
PATTERNS = "NAME|REGEX,..."


class Names(StrEnum):
    """The naming of copies."""

    prefix = "prefix"
    identity = "identity"


class OnLoss(StrEnum):
    """The reaction to records that were deleted before they were mirrored."""

    stop = "stop"
    skip = "skip"


class Starting(StrEnum):
    """The start position of a new mirror."""

    earliest = "earliest"
    latest = "latest"


@app.command()
def mirror(
    source: Annotated[
        str, declare.Option("--from", metavar=CLUSTER, help="The source cluster, and its name.")
    ],
    target: Annotated[
        str, declare.Option("--to", metavar=CLUSTER, help="The target cluster, and its name.")
    ],
    topics: Annotated[
        str, declare.Option("--topics", "-t", metavar=PATTERNS, help="Topics to mirror.")
    ],
    exclude: Annotated[
        str, declare.Option("--exclude", metavar=PATTERNS, help="Topics to leave out.")
    ] = "",
    groups: Annotated[
        str,
        declare.Option(
            "--groups", "-g", metavar=PATTERNS, help="Consumer groups whose offsets are copied."
        ),
    ] = ".*",
    no_groups: Annotated[
        bool, declare.Option("--no-groups", help="Do not copy offsets of consumer groups.")
    ] = False,
    both: Annotated[bool, declare.Option("--both", help="Mirror in both directions.")] = False,
    names: Annotated[
        Names,
        declare.Option(
            "--names",
            help="prefix: orders of east becomes east.orders; identity: it stays orders, and a header prevents loops.",
        ),
    ] = Names.prefix,
    forward: Annotated[
        bool,
        declare.Option(
            "--forward", help="With --names identity: also mirror copies from a third cluster."
        ),
    ] = False,
    name: Annotated[
        str | None,
        declare.Option(
            "--name",
            metavar="NAME",
            help="Name of checkpoints and progress. [default: from the clusters' names]",
        ),
    ] = None,
    once: Annotated[
        bool, declare.Option("--once", help="Mirror the available records, then exit.")
    ] = False,
    interval: Annotated[
        str,
        declare.Option(
            "--interval", metavar="TIME", help="How often to check topics, settings and groups."
        ),
    ] = "5 seconds",
    resume: Annotated[
        bool,
        declare.Option(
            "--resume", help="The checkpoint is lost: continue after the last copies in the target."
        ),
    ] = False,
    starting: Annotated[
        Starting, declare.Option("--starting", help="Start position of a new mirror.")
    ] = Starting.earliest,
    on_loss: Annotated[
        OnLoss,
        declare.Option(
            "--on-loss", help="Reaction to records that were deleted before they were mirrored."
        ),
    ] = OnLoss.stop,
    most_records: Annotated[
        int,
        declare.Option(
            "--most-records", metavar="N", min=1, help="Maximum records of one transaction."
        ),
    ] = 500_000,
    master: Master = "local[*]",
    checkpoint: Checkpoint = None,
    conf: Conf = None,
    stop_timeout: StopTimeout = 30.0,
    format: OutputFormat = Format.table,
) -> None:
    """Mirror topics to another cluster, until Ctrl-C, or only the available records (--once)."""
    need_spark("mirrors")
    from millstream.connect.mirror.declare import RETRIES, declare, directions, mirror_name
    from millstream.connect.mirror.direction import MirrorCluster
    from millstream.pipelines.declare import Pipeline
    from millstream.pipelines.runner import RunOptions, preflight

    source_cluster, target_cluster = MirrorCluster.parse(source), MirrorCluster.parse(target)
    pipeline = Pipeline(
        name or mirror_name(source_cluster, target_cluster),
        bootstrap=source_cluster.bootstrap,
        retries=RETRIES,
    )
    mirrored = directions(
        source_cluster,
        target_cluster,
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
    spark_conf = pairs(conf, "--conf")
    options = RunOptions(
        once=once,
        checkpoint=checkpoint,
        reset_progress=resume,
        stop_timeout_s=stop_timeout,
        conf=spark_conf,
    )
    if resume:
        mirrored = _resumed(pipeline, mirrored, checkpoint)
    declare(pipeline, mirrored)
    preflight(pipeline, options)
    if format is Format.table:
        _introduce(mirrored)
    with spark_session(pipeline.name, master, spark_conf) as spark:
        run_and_show(pipeline, spark, options, master, format)


def _resumed(
    pipeline: Pipeline, mirrored: list[Direction], checkpoint: str | None
) -> list[Direction]:
    """Return the directions with start positions taken from the target.

    Refuse an existing checkpoint, because it could disagree with the target.
    """
    from millstream.connect.mirror.declare import progress_name
    from millstream.connect.mirror.resume import resumed
    from millstream.pipelines.run.layout import Layout

    layout = Layout.of(pipeline, checkpoint)
    started = [
        direction
        for direction in mirrored
        if (layout.checkpoint(direction.name) / "offsets").exists()
    ]
    for direction in started:
        # After a restart this command made the checkpoint itself, before its JVM failed.
        if not was_restarted():
            raise ClientError(
                f"--resume cannot be used with the existing checkpoint {layout.checkpoint(direction.name)}",
                hint="omit --resume to continue from it, or choose another directory with --checkpoint",
            )
    return [
        direction
        if direction in started
        else resumed(direction, progress_name(pipeline, direction))
        for direction in mirrored
    ]


def _introduce(directions: list[Direction]) -> None:
    """Print the topics that match now, and the names of their copies."""
    from millstream.client.admin.client import Admin

    for direction in directions:
        selection = direction.selection
        with Admin(direction.source.bootstrap) as admin:
            topics = [topic for topic in admin.topics.names() if selection.copies(topic)]
        shown = ", ".join(f"{topic} as {selection.target_topic(topic)}" for topic in topics[:5])
        more = f", and {len(topics) - 5} more" if len(topics) > 5 else ""
        note(f"{direction.source} to {direction.target}: {shown or 'no topics match yet'}{more}")
