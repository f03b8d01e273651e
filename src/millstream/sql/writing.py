"""INSERT INTO ... VALUES: rows, once, in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.pipelines.errors import NOWHERE, nearest
from millstream.pipelines.formats.codec import encoded
from millstream.pipelines.formats.registry import quoted
from millstream.sql.catalog import Column, Source
from millstream.sql.declared import topic_target
from millstream.sql.errors import SqlError, from_spark
from millstream.sql.statements import InsertValues

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def insert(spark: SparkSession, statement: InsertValues, target: Source, bootstrap: str) -> str:
    """Write the rows; a text that says how many."""
    from pyspark.errors import PySparkException

    wanted = _columns(statement, target)
    topic = topic_target(target)
    try:
        given = spark.sql(statement.values)
        rows = _named(given, wanted, target)
        # One task: of two rows with the same key the later one counts.
        records = encoded(rows.coalesce(1), [topic], rows.schema, NOWHERE)
        count, keys = _counts(records)
        if topic.needs_keys and keys < count:
            raise SqlError(
                f"{target.name} is a table, and {count - keys} of {count} rows have no key: {topic.key[0]} is null",
                hint="nothing was inserted",
            )
        records.write.format("millstream").option("kafka.bootstrap.servers", bootstrap).mode("append").save()
    except PySparkException as error:
        raise from_spark(error, statement.values) from None
    return f"{count} row{'' if count == 1 else 's'} inserted into {target.name}"


def _counts(records: DataFrame) -> tuple[int, int]:
    """How many there are, and how many have a key."""
    from pyspark.sql import functions as F

    (found,) = records.agg(F.count(F.lit(1)), F.count("key")).collect()
    return found[0], found[1]


def _columns(statement: InsertValues, target: Source) -> tuple[Column, ...]:
    known = {one.name.lower(): one for one in target.columns}
    if not statement.columns:
        return tuple(known.values())
    for name in statement.columns:
        if name.lower() not in known:
            raise SqlError(f"{target.name} has no column {name!r}", hint=nearest(name.lower(), known))
    return tuple(known[name.lower()] for name in statement.columns)


def _named(given: DataFrame, wanted: tuple[Column, ...], target: Source) -> DataFrame:
    """Values become what the columns are; columns that are not named are null."""
    from pyspark.sql import functions as F

    if len(given.columns) != len(wanted):
        names = ", ".join(one.name for one in wanted)
        raise SqlError(f"{len(wanted)} values are expected ({names}), and {len(given.columns)} are given")
    values = dict(zip((one.name for one in wanted), given.columns, strict=True))
    return given.select(
        *[
            (F.col(quoted(values[one.name])) if one.name in values else F.lit(None))
            .cast(one.type)
            .alias(one.name)
            for one in target.columns
        ]
    )
