"""The headers of dead letters: reason, origin, pipeline and flow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from millstream.client.dead_letters import letters as names
from millstream.pipelines.formats.registry import ERROR, RECORD
from millstream.pipelines.origins import SOURCE

if TYPE_CHECKING:
    from pyspark.sql import Column

HEADERS = "array<struct<key:string,value:binary>>"
MAX_REASON_CHARACTERS = 500


def row_headers(reason: str, source: str, pipeline: str, flow: str) -> dict[str, str]:
    """Return the headers of a row that a flow produced and ``source``, a target, rejects."""
    return {
        names.REASON: " ".join(reason.split())[:MAX_REASON_CHARACTERS],
        names.SOURCE: source,
        names.PIPELINE: pipeline,
        names.FLOW: flow,
    }


def headers_column(values: Mapping[str, Column]) -> Column:
    """Return headers with these names and values as a column."""
    from pyspark.sql import functions as F

    headers = [
        F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))
        for name, value in values.items()
    ]
    return F.array(*headers).cast(HEADERS)


def record_headers(pipeline: str, flow: str, *, elsewhere: bool) -> Column:
    """Return the headers of records that do not parse, in addition to their own.

    ``elsewhere``: the rows do not come from a topic.
    """
    from pyspark.sql import functions as F

    values = {names.REASON: F.left(F.col(ERROR), F.lit(MAX_REASON_CHARACTERS))}
    if elsewhere:
        values[names.SOURCE] = F.col(f"{RECORD}.{SOURCE}")
    else:
        values |= {
            names.TOPIC: F.col(f"{RECORD}.topic"),
            names.PARTITION: F.col(f"{RECORD}.partition"),
            names.OFFSET: F.col(f"{RECORD}.offset"),
            names.TIMESTAMP: F.unix_millis(f"{RECORD}.timestamp"),
        }
    values[names.PIPELINE] = F.lit(pipeline)
    if flow:
        values[names.FLOW] = F.lit(flow)
    own = F.coalesce(F.col(f"{RECORD}.headers"), F.array().cast(HEADERS))
    # Keep the headers about replays: how often and from where. They show records that always fail,
    # and keep their order.
    kept = F.filter(
        own,
        lambda header: (
            ~header.getField("key").startswith(names.PREFIX)
            | header.getField("key").isin(*names.STAYING)
        ),
    )
    return F.concat(headers_column(values), kept)
