"""Values of topics to columns and back: the bridge from declarations to ``formats``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millstream.pipelines.errors import Place
from millstream.pipelines.targets import TopicTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def decoded(
    raw: DataFrame, value: str, schema: Any, options: Mapping[str, Any], *, meta: bool, place: Place
) -> DataFrame:
    from pyspark.sql import functions as F

    if value == "raw":
        return raw
    rows = raw.withColumn("_p", F.from_json(F.col("value").cast("string"), schema))
    extra = (
        [F.col(n).alias("_" + n) for n in ("key", "topic", "partition", "offset", "timestamp")]
        if meta
        else []
    )
    return rows.where("value is not null").select("_p.*", *extra)


def encoded(rows: DataFrame, targets: Sequence[TopicTarget]) -> DataFrame:
    """Rows as records of all topics together, so that one transaction holds them."""
    from functools import reduce

    parts = [_encoded(rows, target) for target in targets]
    return reduce(lambda one, other: one.unionByName(other), parts)


def _encoded(rows: DataFrame, target: TopicTarget) -> DataFrame:
    from pyspark.sql import functions as F

    if target.value == "raw":
        return rows.withColumn("topic", F.lit(target.topic))
    key = (
        F.concat_ws("|", *[F.col(c).cast("string") for c in target.key])
        if target.key
        else F.lit(None).cast("string")
    )
    return rows.select(
        key.alias("key"), F.to_json(F.struct("*")).alias("value"), F.lit(target.topic).alias("topic")
    )
