"""INSERT INTO ... VALUES: write rows once, in one transaction."""

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
    """Write the rows; return a text with their number."""
    from pyspark.errors import PySparkException

    columns = _columns(statement, target)
    topic = topic_target(target)
    try:
        values = spark.sql(statement.values)
        rows = _named(values, columns, target)
        # One task: the later one of two rows with the same key wins.
        records = encoded(rows.coalesce(1), [topic], rows.schema, NOWHERE)
        count, keys = _counts(records)
        if topic.needs_keys and keys < count:
            raise SqlError(
                f"{target.name} is a table, and {count - keys} of {count} rows have no key: "
                f"{topic.key[0]} is null",
                hint="nothing was inserted",
            )
        records.write.format("millstream").option("kafka.bootstrap.servers", bootstrap).mode(
            "append"
        ).save()
    except PySparkException as error:
        raise from_spark(error, statement.values) from None
    return f"{count} row{'' if count == 1 else 's'} inserted into {target.name}"


def _counts(records: DataFrame) -> tuple[int, int]:
    """Return the number of records, and of those with a key."""
    from pyspark.sql import functions as F

    (counts,) = records.agg(F.count(F.lit(1)), F.count("key")).collect()
    return counts[0], counts[1]


def _columns(statement: InsertValues, target: Source) -> tuple[Column, ...]:
    known = {column.name.lower(): column for column in target.columns}
    if not statement.columns:
        return tuple(known.values())
    for name in statement.columns:
        if name.lower() not in known:
            raise SqlError(
                f"{target.name} has no column {name!r}", hint=nearest(name.lower(), known)
            )
    return tuple(known[name.lower()] for name in statement.columns)


def _named(rows: DataFrame, columns: tuple[Column, ...], target: Source) -> DataFrame:
    """Cast values to the types of the columns; columns that are not named are null."""
    from pyspark.sql import functions as F

    if len(rows.columns) != len(columns):
        names = ", ".join(column.name for column in columns)
        raise SqlError(f"expected {len(columns)} values ({names}), got {len(rows.columns)}")
    values = dict(zip((column.name for column in columns), rows.columns, strict=True))
    return rows.select(
        *[
            (F.col(quoted(values[column.name])) if column.name in values else F.lit(None))
            .cast(column.type)
            .alias(column.name)
            for column in target.columns
        ]
    )
