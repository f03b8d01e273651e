"""``mirror(...)``: topics of one cluster as topics of another, declared in a pipeline.

    pipe = Pipeline("dr", bootstrap="east:9092")
    mirror(pipe, "east=east:9092", "west=west:9092", topics="orders,pay.*", both=True)

Each direction is a flow of the pipeline, from an origin that reads the raw records of the source to
a store that is the other cluster.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from millstream.connect.mirror.direction import Direction, MirrorCluster
from millstream.connect.mirror.policy import NAMINGS, Naming, Selection, check_patterns, words
from millstream.pipelines.durations import parse_duration_ms
from millstream.pipelines.errors import PipelineError
from millstream.pipelines.formats.registry import ERROR, RECORD
from millstream.pipelines.origins import Origin
from millstream.pipelines.stores import Store, StoreSink
from millstream.spark.options import STREAM, only_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millstream.pipelines.declare import Pipeline

ALL_GROUPS = ".*"
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
RETRIES = 1_000_000
"""A mirror waits for its clusters without a limit."""


@dataclass(frozen=True)
class MirrorOrigin(Origin):
    """The committed records of the source's topics, with keys, headers and timestamps."""

    direction: Direction
    group: str

    def rows(self, spark: SparkSession) -> DataFrame:
        from pyspark.sql import functions as F

        options = {
            **only_for(self.direction.source.options, STREAM),
            "kafka.bootstrap.servers": self.direction.source.bootstrap,
            "subscribePattern": self.direction.selection.pattern,
            "startingOffsets": self.direction.starting,
            "isolationLevel": "read_committed",
            "includeHeaders": "true",
            "failOnDataLoss": str(not self.direction.skip_losses).lower(),
            "maxOffsetsPerTrigger": str(self.direction.most_records),
            "groupId": self.group,
        }
        raw = spark.readStream.format("millstream").options(**options).load()
        nothing = F.lit(None).cast("string")
        return raw.select(*COLUMNS, nothing.alias(ERROR), nothing.alias(RECORD))

    def __str__(self) -> str:
        """Return a name without the topics, since topics may be added later."""
        return f"mirror of {self.direction.source.name}"


@dataclass(frozen=True)
class MirrorStore(Store):
    """The topics of the target."""

    direction: Direction

    @property
    def columns(self) -> tuple[str, ...]:
        return COLUMNS

    def sink(self, writer: str, *, reset_progress: bool = False) -> StoreSink:
        from millstream.connect.mirror.sink import MirrorSink

        return MirrorSink(self.direction, writer, reset_progress=reset_progress)

    def __str__(self) -> str:
        return f"mirror {self.direction.target.name}"


def mirror(
    pipeline: Pipeline, source: str | MirrorCluster, target: str | MirrorCluster, **options: Any
) -> list[Direction]:
    """Declare a mirror in a pipeline: ``topics="orders,pay.*"``, and options of ``directions``."""
    declared = directions(source, target, **options)
    declare(pipeline, declared)
    return declared


def declare(pipeline: Pipeline, directions: Iterable[Direction]) -> None:
    """Declare a flow for each direction."""
    for direction in directions:
        origin = MirrorOrigin(direction, progress_name(pipeline, direction))
        stream = pipeline.stream(f"mirror.{direction.name}", origin, dead_letters=False)
        pipeline.sql(direction.name, f"SELECT * FROM {stream.name}", to=MirrorStore(direction))


def progress_name(pipeline: Pipeline, direction: Direction) -> str:
    """Return the name of a direction's progress in the target and of its group in the source."""
    return f"{pipeline.name}.{direction.name}"


def directions(
    source: str | MirrorCluster,
    target: str | MirrorCluster,
    *,
    topics: str | Iterable[str],
    exclude: str | Iterable[str] = (),
    groups: str | Iterable[str] = ALL_GROUPS,
    both: bool = False,
    naming: Naming = "prefix",
    forward: bool = False,
    on_loss: Literal["stop", "skip"] = "stop",
    starting: Literal["earliest", "latest"] = "earliest",
    interval: str = "5 seconds",
    most_records: int = 500_000,
    compression: str = "lz4",
) -> list[Direction]:
    """Mirror topics of ``source`` (``NAME=HOST:PORT``) to ``target``, and with ``both`` also back.

    ``topics``, ``exclude`` and ``groups`` are names and regular expressions, separated by commas.
    The names of the clusters are parts of the names of topics, groups and checkpoints: keep them.
    """
    first, second = _cluster(source), _cluster(target)
    _check(first, second, naming, forward)
    group_patterns = words(groups)
    check_patterns(group_patterns, "groups")

    def direction(here: MirrorCluster, there: MirrorCluster, leads: bool) -> Direction:
        return Direction(
            source=here,
            target=there,
            selection=Selection(here.name, there.name, words(topics), words(exclude), naming),
            groups=group_patterns,
            both=both,
            leads=leads or naming == "prefix",
            forward=forward,
            skip_losses=on_loss == "skip",
            starting=starting,
            interval_s=parse_duration_ms(interval) / 1000,
            most_records=most_records,
            compression=compression,
        )

    return [direction(first, second, True)] + ([direction(second, first, False)] if both else [])


def mirror_name(first: MirrorCluster, second: MirrorCluster) -> str:
    """Return the default name of a mirror, which does not depend on its direction."""
    return "mirror-" + "-".join(sorted((first.name, second.name)))


def _cluster(cluster: str | MirrorCluster) -> MirrorCluster:
    return MirrorCluster.parse(cluster) if isinstance(cluster, str) else cluster


def _check(first: MirrorCluster, second: MirrorCluster, naming: str, forward: bool) -> None:
    if first.name == second.name:
        raise PipelineError(
            f"both clusters are called {first.name}",
            hint="name them: east=HOST:PORT and west=HOST:PORT",
        )
    if naming not in NAMINGS:
        raise PipelineError(
            f"naming={naming!r} is unknown", hint=f"it is one of {', '.join(NAMINGS)}"
        )
    if forward and naming == "prefix":
        raise PipelineError(
            "forward applies to topics that keep their names",
            hint="with prefixes, copies are forwarded anyway",
        )
