"""Decoded rows of files: their columns, ``_error`` if a row does not fit, and the raw ``_record``.

JSON is read line by line and decoded like the values of a topic. CSV is read by Spark, which keeps
the text of lines that do not fit. Parquet files are listed by Spark and read by pyarrow. If a file
has other columns than declared, the error names both schemas; Spark would fill in nulls.
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
# No limit. By default Spark ignores files that are a week older than the newest, and a file that is
# moved in may look like that.
ANY_AGE = {"maxFileAge": "36500d"}


def json_rows(spark: SparkSession, files: FilesOrigin) -> DataFrame:
    """Return the rows of JSON files: one object per line, empty lines ignored."""
    from pyspark.sql import functions as F

    lines = _listed(spark, files, "text").load(files.path)
    raw = lines.where(F.length(F.trim("value")) > 0).select(
        F.col("value").cast("binary").alias("value"),
        # Carried through decoding as the topic, then moved to the source.
        F.col("_metadata.file_path").alias("topic"),
        F.col("_metadata.file_modification_time").alias("timestamp"),
    )
    rows = value_format("json", files.schema).decode(raw)
    with_source = F.col(RECORD).withField(SOURCE, F.col(f"{RECORD}.topic"))
    return rows.withColumn(RECORD, with_source.withField("topic", F.lit(None).cast("string")))


def csv_rows(spark: SparkSession, files: FilesOrigin) -> DataFrame:
    """Return the rows of CSV files. Columns are matched by position; a header is checked.

    Spark reads texts. Its own conversion would round decimals, read "1,5" as 15 and not say which
    value is bad.
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
        # Whether a row is bad must not depend on the columns that a flow uses.
        "columnPruning": "false",
    }
    chosen = {name.lower() for name in files.options}
    quote, separator = files.options.get("quote", '"'), files.options.get("sep", ",")
    # As in RFC 4180: a quote within quotes is doubled, and a quoted value may contain a line end.
    # An empty text is quoted, and null is not. Spark reads both as null unless null has a text that
    # no file contains.
    defaults = {"escape": quote, "multiLine": "true", "nullValue": NO_NAME}
    options |= {name: value for name, value in defaults.items() if name.lower() not in chosen}
    texts = StructType([StructField(field.name, StringType()) for field in schema.fields])
    declare_header(files.path, schema.names)
    reader = _listed(spark, files, "csv", options).schema(texts.add(CORRUPT, StringType()))
    rows = reader.load(files.path).select(
        "*",
        F.col("_metadata.file_path").alias(PATH),
        F.col("_metadata.file_modification_time").alias(CHANGED_AT),
        typed_columns(schema, files.options).alias(TYPED),
    )
    error = F.when(F.col(CORRUPT).isNotNull(), F.lit(NOT_CSV))
    for field in schema.fields:
        for wrong, reason in column_faults(field, files.options):
            error = error.when(wrong, reason)
    columns = [F.col(quoted(name)) for name in schema.names]
    is_text = [isinstance(field.dataType, StringType) for field in schema.fields]
    # Spark takes the line end from the first line of a file. In a column of another type, \r makes
    # the value invalid anyway.
    if is_text[-1]:
        error = error.when(columns[-1].endswith("\r"), F.lit(OTHER_END))
    if is_text[-1] and len(is_text) > 1:
        swallowed = _row_within(len(is_text), separator)
        error = error.when(columns[-1].rlike(swallowed), F.lit(OPEN_QUOTE))
    written = {"sep": separator, "quote": quote, "escape": quote, **KEPT_SPACES}
    whole = F.coalesce(F.col(CORRUPT), F.to_csv(F.struct(*columns), written))
    kept = record(value=whole, source=F.col(PATH), timestamp=F.col(CHANGED_AT))
    return rows.select(*map(typed_column, schema.fields), error.alias(ERROR), kept)


def _row_within(columns: int, separator: str) -> str:
    """Return the pattern of a last column whose quote was never closed.

    It contains another row, up to the end of the file.
    """
    apart = re.escape(separator)
    return rf"\n([^\n{re.escape(separator[0])}]*{apart}){{{columns - 1}}}[^\n]*\n$"


def parquet_rows(spark: SparkSession, files: FilesOrigin) -> DataFrame:
    """Return the rows of Parquet files.

    Their columns must be those of the declared schema, or of the first file.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StringType, StructField, StructType

    schema = (
        schema_in(files.path)
        if files.schema is None
        else struct_type(files.schema, format="parquet")
    )
    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    listed = _listed(spark, files, "binaryFile").schema(LISTED).load(files.path)
    texts = [StructField(name, StringType()) for name in (ERROR, PATH)]
    changed_at = StructField(CHANGED_AT, listed.schema["modificationTime"].dataType)
    rows = listed.select("path", "modificationTime").mapInArrow(
        ParquetFiles(files.path, arrow_schema),
        StructType([*_nullable(schema).fields, *texts, changed_at]),
    )
    kept = record(value=F.col(PATH), source=F.col(PATH), timestamp=F.col(CHANGED_AT))
    return rows.select(*[F.col(quoted(name)) for name in schema.names], ERROR, kept)


READERS: Mapping[str, Callable[[SparkSession, FilesOrigin], DataFrame]] = {
    "json": json_rows,
    "csv": csv_rows,
    "parquet": parquet_rows,
}


def _listed(
    spark: SparkSession, files: FilesOrigin, kind: str, options: Mapping[str, str] | None = None
) -> DataStreamReader:
    # Files may arrive later.
    Path(files.path).mkdir(parents=True, exist_ok=True)
    defaults = {
        "recursiveFileLookup": "true",
        "maxFilesPerTrigger": str(files.files_per_batch),
        **ANY_AGE,
    }
    return spark.readStream.format(kind).options(**{**defaults, **files.options, **(options or {})})


def _nullable(schema: StructType) -> StructType:
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, field.dataType) for field in schema.fields])
