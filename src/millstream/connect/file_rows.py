"""Rows of files, decoded: their columns, ``_error`` where a row does not fit the schema, and ``_record`` with what was read.

JSON is read by the line and decoded like the values of a topic. CSV is read by Spark, which keeps the text of lines that do not fit. Parquet files
are listed by Spark and read by pyarrow: one whose columns are others than declared is told with both schemas, where Spark would
fill in nulls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.connect.parquet_files import CHANGED_AT, PATH, ParquetFiles, schema_in
from millstream.pipelines.formats import ERROR, RECORD, quoted, struct_type, value_format
from millstream.pipelines.origins import SOURCE, record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader
    from pyspark.sql.types import StructType

    from millstream.connect.files import FilesOrigin

CORRUPT = "_corrupt"
LISTED = "path string, modificationTime timestamp, length bigint, content binary"
UNKNOWN_CHARACTER = "\ufffd"
NOT_TEXT = "the line has bytes that are no text in this encoding"
OPEN_QUOTE = "a quote is open up to the end of the file"
OTHER_END = "the line ends with \\r\\n, and those before it with \\n"
NOT_CSV = "the line does not have the declared columns, or a value is of another type"
# For ever: Spark would otherwise leave out files that are a week older than the newest, which is how a file looks that was moved in.
ANY_AGE = {"maxFileAge": "36500d"}


def json_rows(spark: SparkSession, files: FilesOrigin) -> DataFrame:
    """One object a line; empty lines are nothing."""
    from pyspark.sql import functions as F

    found = _listed(spark, files, "text").load(files.path)
    raw = found.where(F.length(F.trim("value")) > 0).select(
        F.col("value").cast("binary").alias("value"),
        F.col("_metadata.file_path").alias(
            "topic"
        ),  # carried through decoding, and then put where it belongs
        F.col("_metadata.file_modification_time").alias("timestamp"),
    )
    rows = value_format("json", files.schema).decode(raw)
    moved = F.col(RECORD).withField(SOURCE, F.col(f"{RECORD}.topic"))
    return rows.withColumn(RECORD, moved.withField("topic", F.lit(None).cast("string")))


def csv_rows(spark: SparkSession, files: FilesOrigin) -> DataFrame:
    """Columns by their place; with a header their names are checked."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField

    schema = struct_type(files.schema, format="csv")
    header = files.options.get("header", "true")
    options = {
        "header": header,
        "enforceSchema": "false" if header == "true" else "true",
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": CORRUPT,
        "columnPruning": "false",  # whether a row is bad must not depend on the columns that a flow uses
    }
    # As RFC 4180 has it: a quote within quotes is doubled, and a line may end within them.
    quoting = {"escape": files.options.get("quote", '"'), "multiLine": "true"}
    chosen = {one.lower() for one in files.options}
    options |= {name: value for name, value in quoting.items() if name.lower() not in chosen}
    declared = _nullable(schema).add(StructField(CORRUPT, StringType()))
    found = _listed(spark, files, "csv", options).schema(declared).load(files.path)
    rows = found.select(
        "*",
        F.col("_metadata.file_path").alias(PATH),
        F.col("_metadata.file_modification_time").alias(CHANGED_AT),
    )
    error = F.when(F.col(CORRUPT).isNotNull(), F.lit(NOT_CSV))
    for one in schema.fields:
        if not one.nullable:
            missing = f"column {one.name!r} has no value, and it is NOT NULL"
            error = error.when(F.col(quoted(one.name)).isNull(), F.lit(missing))
    columns = [F.col(quoted(one.name)) for one in schema.fields]
    texts = [isinstance(one.dataType, StringType) for one in schema.fields]
    for column, is_text in zip(columns, texts, strict=True):
        if is_text:
            error = error.when(column.contains(UNKNOWN_CHARACTER), F.lit(NOT_TEXT))
    if texts[-1]:  # Spark goes by the first line of a file; in a column of another type it is no value
        error = error.when(columns[-1].endswith("\r"), F.lit(OTHER_END))
    if texts[-1] and len(texts) > 1:
        swallowed = _row_within(len(texts), files.options.get("sep", ","))
        error = error.when(columns[-1].rlike(swallowed), F.lit(OPEN_QUOTE))
    whole = F.coalesce(F.col(CORRUPT), F.to_csv(F.struct(*columns), {"escape": '"'}))
    kept = record(value=whole, source=F.col(PATH), timestamp=F.col(CHANGED_AT))
    return rows.select(*columns, error.alias(ERROR), kept)


def _row_within(columns: int, separator: str) -> str:
    """How the last column looks when a quote was never closed: it ends as the file does, with the line of another row."""
    apart = re.escape(separator)
    return rf"\n([^\n{re.escape(separator[0])}]*{apart}){{{columns - 1}}}[^\n]*\n$"


def parquet_rows(spark: SparkSession, files: FilesOrigin) -> DataFrame:
    """The columns of the files must be those of the schema: the one declared, or that of the first file."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StringType, StructField, StructType

    schema = schema_in(files.path) if files.schema is None else struct_type(files.schema, format="parquet")
    wanted = to_arrow_schema(schema, timezone="UTC")
    listed = _listed(spark, files, "binaryFile").schema(LISTED).load(files.path)
    made = StructType([*_nullable(schema).fields, *(StructField(one, StringType()) for one in (ERROR, PATH))])
    changed = StructField(CHANGED_AT, listed.schema["modificationTime"].dataType)
    rows = listed.select("path", "modificationTime").mapInArrow(
        ParquetFiles(files.path, wanted), StructType([*made.fields, changed])
    )
    kept = record(value=F.col(PATH), source=F.col(PATH), timestamp=F.col(CHANGED_AT))
    return rows.select(*[F.col(quoted(one.name)) for one in schema.fields], ERROR, kept)


READERS: Mapping[str, Callable[[SparkSession, FilesOrigin], DataFrame]] = {
    "json": json_rows,
    "csv": csv_rows,
    "parquet": parquet_rows,
}


def _listed(
    spark: SparkSession, files: FilesOrigin, kind: str, options: Mapping[str, str] | None = None
) -> DataStreamReader:
    Path(files.path).mkdir(parents=True, exist_ok=True)  # files may come later
    given = {"recursiveFileLookup": "true", "maxFilesPerTrigger": str(files.files_per_batch), **ANY_AGE}
    return spark.readStream.format(kind).options(**{**given, **files.options, **(options or {})})


def _nullable(schema: StructType) -> StructType:
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(one.name, one.dataType) for one in schema.fields])
