"""Rows of files, decoded: their columns, ``_error`` where a row does not fit the schema, and ``_record`` with what was read.

JSON is read by the line and decoded like the values of a topic. CSV is read by Spark, which keeps the text of lines that do not fit. Parquet files
are listed by Spark and read by pyarrow: one whose columns are others than declared is told with both schemas, where Spark would
fill in nulls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from millstream.connect.schemas import differing
from millstream.pipelines.errors import PipelineError
from millstream.pipelines.formats import ERROR, RECORD, quoted, struct_type, value_format
from millstream.pipelines.origins import SOURCE, record

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader
    from pyspark.sql.types import StructType

    from millstream.connect.files import FilesOrigin

CORRUPT = "_corrupt"
PATH, CHANGED_AT = "_path", "_changed_at"
LISTED = "path string, modificationTime timestamp, length bigint, content binary"
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
    whole = F.coalesce(F.col(CORRUPT), F.to_csv(F.struct(*columns)))
    kept = record(value=whole, source=F.col(PATH), timestamp=F.col(CHANGED_AT))
    return rows.select(*columns, error.alias(ERROR), kept)


def parquet_rows(spark: SparkSession, files: FilesOrigin) -> DataFrame:
    """The columns of the files must be those of the schema: the one declared, or that of the first file."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StringType, StructField, StructType

    schema = _parquet_schema(files)
    wanted = to_arrow_schema(schema)
    listed = _listed(spark, files, "binaryFile").schema(LISTED).load(files.path)
    made = StructType([*_nullable(schema).fields, *(StructField(one, StringType()) for one in (ERROR, PATH))])
    changed = StructField(CHANGED_AT, listed.schema["modificationTime"].dataType)
    rows = listed.select("path", "modificationTime").mapInArrow(
        _ParquetFiles(wanted), StructType([*made.fields, changed])
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


def _parquet_schema(files: FilesOrigin) -> StructType:
    if files.schema is not None:
        return struct_type(files.schema, format="parquet")
    import pyarrow.parquet
    from pyspark.sql.pandas.types import from_arrow_schema

    for path in sorted(Path(files.path).rglob("*.parquet")):
        if not path.name.startswith((".", "_")):
            return from_arrow_schema(pyarrow.parquet.read_schema(path), prefer_timestamp_ntz=True)
    raise PipelineError(
        f"there is no Parquet file in {files.path} to take the schema from",
        hint="give schema='id string, n int'",
    )


class _ParquetFiles:
    """Reads listed files on an executor. One that cannot be read is a row with an error; one with other columns stops the flow."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def __call__(self, listed: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in listed:
            for path, at in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
                yield from self._rows(path, at)

    def _rows(self, path: str, at: pa.Scalar) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.parquet

        try:
            file = pyarrow.parquet.ParquetFile(unquote(path.removeprefix("file:")))
        except (pa.ArrowException, OSError) as error:
            if getattr(error, "errno", None) is not None:
                raise  # the file could not be reached: that says nothing about what is in it
            yield self._with(self._schema.empty_table().to_batches(), path, at, 1, str(error))
            return
        self._check(path, file.schema_arrow)
        for batch in file.iter_batches():
            table = pa.Table.from_batches([batch]).select(self._schema.names).cast(self._schema)
            yield self._with(table.to_batches(), path, at, len(batch), None)

    def _with(
        self, batches: list[pa.RecordBatch], path: str, at: pa.Scalar, rows: int, error: str | None
    ) -> pa.RecordBatch:
        import pyarrow as pa

        columns = (
            batches[0].columns
            if batches and error is None
            else [pa.nulls(rows, one.type) for one in self._schema]
        )
        told = [pa.array([error] * rows, pa.string()), pa.array([path] * rows, pa.string())]
        times = pa.array([at.as_py()] * rows, at.type)
        return pa.record_batch([*columns, *told, times], names=[*self._schema.names, ERROR, PATH, CHANGED_AT])

    def _check(self, path: str, found: pa.Schema) -> None:
        theirs, ours = ({one.name: str(one.type) for one in schema} for schema in (found, self._schema))
        fits = theirs.keys() == ours.keys() and all(
            _alike(found.field(one.name).type, one.type) for one in self._schema
        )
        if not fits:
            raise differing(f"the file {path}", "that reads it", theirs, ours)


def _alike(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type can be had as the other without loss, whatever unit or width they are stored in."""
    import pyarrow.types as kinds

    pairs = (
        (kinds.is_timestamp, kinds.is_timestamp),
        (kinds.is_integer, kinds.is_integer),
        (kinds.is_large_string, kinds.is_string),
        (kinds.is_large_binary, kinds.is_binary),
        (kinds.is_dictionary, kinds.is_string),
    )
    return found == wanted or any(one(found) and other(wanted) for one, other in pairs)
