"""Checks of the columns that a declaration names, against the rows that it applies to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.pipelines.declare import Flow
from millstream.pipelines.durations import Watermark
from millstream.pipelines.errors import PipelineError, SourceLine, nearest
from millstream.pipelines.formats.registry import quoted
from millstream.pipelines.targets import TopicTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def with_watermark(
    rows: DataFrame, watermark: Watermark | None, owner: str, place: SourceLine
) -> DataFrame:
    """Return rows with a watermark, if ``owner`` declares one."""
    if watermark is None:
        return rows
    if watermark.column not in rows.columns:
        raise PipelineError(
            f"the watermark of {owner} is on {watermark.column!r}, which is not a column",
            hint=nearest(watermark.column, rows.columns),
            place=place,
        )
    kind = rows.schema[watermark.column].dataType.simpleString()
    if kind != "timestamp":
        raise PipelineError(
            f"the watermark of {owner} is on {watermark.column}, which is a {kind}",
            hint="a watermark needs a timestamp",
            place=place,
        )
    return rows.withWatermark(quoted(watermark.column), watermark.delay)


def check_target_columns(flow: Flow, columns: list[str]) -> None:
    """Raise PipelineError if a target of a flow needs a column that the flow does not have."""
    for target in flow.targets:
        named = (
            (*target.key, *target.header_columns)
            if isinstance(target, TopicTarget)
            else target.columns
        )
        for column in named:
            if column not in columns:
                raise PipelineError(
                    f"{target} of flow {flow.name} needs the column {column!r}, which the flow does not have",
                    hint=nearest(column, columns),
                    place=flow.place,
                )
        if not isinstance(target, TopicTarget) and not set(columns) - set(target.unstored_columns):
            raise PipelineError(
                f"{target} has no columns except {', '.join(target.unstored_columns)}",
                place=flow.place,
            )
