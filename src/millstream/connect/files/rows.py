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

from millstream.connect.files.csv_columns import (
    KEPT_SPACES,
    NO_NAME,
    TYPED,
    column_faults,
    typed_column,
    typed_columns,
)
from millstream.connect.files.parquet import CHANGED_AT, PATH, ParquetFiles, schema_in
from millstream.pipelines.formats.csv_headers import declare_header
from millstream.pipelines.formats.registry import ERROR, RECORD, quoted, struct_type, value_format
from millstream.pipelines.origins import SOURCE, record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader
    from pyspark.sql.types import StructType

    from millstream.connect.files.declare import FilesOrigin

CORRUPT = "_corrupt"
LISTED = "path string, modificationTime timestamp, length bigint, content binary"
OPEN_QUOTE = "a quote is open up to the end of the file"
OTHER_END = "the line ends with \\r\\n, and those before it with \\n"
NOT_CSV = "the line does not have as many values as there are columns"
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
    """Columns by their place; with a header their names are checked.

    Spark reads texts. Its own conversion would round decimals, take "1,5" for 15 and say only that some value is bad.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    schema = struct_type(files.schema, format="csv")
    header = files.options.get("header", "true")
    options = {
        "header": header,
        "enforceSchema": "false" if header == "true" else "true",
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": CORRUPT,
        "columnPruning": "false",  # whether a row is bad must not depend on the columns that a flow uses
    }
    chosen = {one.lower() for one in files.options}
    quote, separator = files.options.get("quote", '"'), files.options.get("sep", ",")
    # As RFC 4180 has it: a quote within quotes is doubled, and a line may end within them. An empty text is quoted,
    # and no value is not; Spark has null for both unless null has a name that no file has.
    usual = {"escape": quote, "multiLine": "true", "nullValue": NO_NAME}
    options |= {name: value for name, value in usual.items() if name.lower() not in chosen}
    texts = StructType([StructField(one.name, StringType()) for one in schema.fields])
    declare_header(files.path, schema.names)
    found = _listed(spark, files, "csv", options).schema(texts.add(CORRUPT, StringType())).load(files.path)
    rows = found.select(
        "*",
        F.col("_metadata.file_path").alias(PATH),
        F.col("_metadata.file_modification_time").alias(CHANGED_AT),
        typed_columns(schema, files.options).alias(TYPED),
    )
    error = F.when(F.col(CORRUPT).isNotNull(), F.lit(NOT_CSV))
    for one in schema.fields:
        for wrong, reason in column_faults(one, files.options):
            error = error.when(wrong, reason)
    columns = [F.col(quoted(one.name)) for one in schema.fields]
    is_text = [isinstance(one.dataType, StringType) for one in schema.fields]
    if is_text[-1]:  # Spark goes by the first line of a file; in a column of another type it is no value
        error = error.when(columns[-1].endswith("\r"), F.lit(OTHER_END))
    if is_text[-1] and len(is_text) > 1:
        swallowed = _row_within(len(is_text), separator)
        error = error.when(columns[-1].rlike(swallowed), F.lit(OPEN_QUOTE))
    written = {"sep": separator, "quote": quote, "escape": quote, **KEPT_SPACES}
    whole = F.coalesce(F.col(CORRUPT), F.to_csv(F.struct(*columns), written))
    kept = record(value=whole, source=F.col(PATH), timestamp=F.col(CHANGED_AT))
    return rows.select(*map(typed_column, schema.fields), error.alias(ERROR), kept)


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
