"""Parquet files read by pyarrow: their columns as Spark types, and their rows.

A row that does not fit the schema becomes a dead letter; the other rows of the file are read. The
columns are those of the file and those of its directories (``date=2026-03-01``), which a
partitioning writer leaves out of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from millstream.connect.schemas import differing
from millstream.pipelines.errors import PipelineError
from millstream.pipelines.formats.registry import ERROR

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

PATH, CHANGED_AT = "_path", "_changed_at"
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


def schema_in(directory: str) -> StructType:
    """Return the schema of the first readable file."""
    import pyarrow as pa
    import pyarrow.parquet

    unreadable = ""
    for path in sorted(Path(directory).rglob("*.parquet")):
        inside = path.relative_to(directory)
        if any(part.startswith((".", "_")) for part in inside.parts):
            continue
        try:
            file = _open(path)
        except (pa.ArrowException, OSError) as error:
            unreadable = unreadable or f" that can be read ({path}: {error})"
            continue
        return _spark_schema(path, file, partition_of(inside))
    raise PipelineError(
        f"{directory} has no Parquet file{unreadable} to take the schema from",
        hint="give schema='id string, n int'",
    )


def _spark_schema(
    path: Path, file: pa.parquet.ParquetFile, partition: dict[str, str | None]
) -> StructType:
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    fields = [*columns_of(file), *(pa.field(name, pa.string()) for name in partition)]
    schema = StructType()
    for field in fields:
        try:
            schema.add(from_arrow_schema(pa.schema([field]), prefer_timestamp_ntz=True).fields[0])
        # pyspark raises several types of exceptions for this
        except Exception:
            raise PipelineError(
                f"the column {field.name!r} of the file {path} is {field.type}, which Spark does not have",
                hint="give schema= with the type to read it as, or leave the column out of the files",
            ) from None
    return schema


def _open(path: Path) -> pa.parquet.ParquetFile:
    """Open a file with its INT96 times in microseconds.

    In nanoseconds, times after the year 2262 would wrap around.
    """
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(path, coerce_int96_timestamp_unit="us")


def _batches(path: Path, file: pa.parquet.ParquetFile) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file.

    An INT96 time that is not whole microseconds stays in nanoseconds, so that its row is rejected.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet

    names = instants_of(file).intersection(file.schema_arrow.names)
    if not names:
        yield from file.iter_batches()
        return
    exact = pyarrow.parquet.ParquetFile(path)
    for batch, nanos in zip(file.iter_batches(), exact.iter_batches(), strict=True):
        columns = []
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if field.name in names:
                # Both wrap around alike, so they only differ by a fraction of a microsecond.
                written = nanos[field.name].cast(pa.int64())
                if not pc.all(
                    pc.equal(pc.multiply(column.cast(pa.int64()), 1000), written)
                ).as_py():
                    column = nanos[field.name]
            columns.append(column)
        yield pa.record_batch(columns, names=batch.schema.names)


def instants_of(file: pa.parquet.ParquetFile) -> set[str]:
    """Return the INT96 columns, which are always UTC."""
    columns = [file.schema.column(i) for i in range(len(file.schema))]
    return {column.path for column in columns if column.physical_type == "INT96"}


def columns_of(file: pa.parquet.ParquetFile) -> list[pa.Field]:
    """Return the columns of a file with types that Spark has."""
    import pyarrow as pa

    instants = instants_of(file)
    zoned = pa.timestamp("us", tz="UTC")
    return [
        field.with_type(zoned if field.name in instants else plain(field.type))
        for field in file.schema_arrow
    ]


def plain(kind: pa.DataType) -> pa.DataType:
    """Return the Spark-compatible type that holds all values of a type."""
    import pyarrow as pa
    import pyarrow.types as kinds

    known = {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
        pa.float16(): pa.float32(),
        pa.date64(): pa.date32(),
        pa.large_string(): pa.string(),
        pa.large_binary(): pa.binary(),
        pa.null(): pa.string(),
    }
    if kinds.is_time(kind):
        return pa.string()
    if kinds.is_dictionary(kind):
        return plain(kind.value_type)
    if kinds.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    return known.get(kind, kind)


def partition_of(inside: Path) -> dict[str, str | None]:
    """Return the columns that the directories of a file encode."""
    pairs = [part.split("=", 1) for part in inside.parts[:-1] if "=" in part]
    return {unquote(name): None if value == NO_VALUE else unquote(value) for name, value in pairs}


class ParquetFiles:
    """Reads listed files on an executor.

    Rows and files that cannot be read become rows with an error. A file with other columns stops
    the flow.
    """

    def __init__(self, directory: str, schema: pa.Schema) -> None:
        self._directory = directory
        self._required = [field.name for field in schema if not field.nullable]
        self._schema = _nullable(schema)

    def __call__(self, listed: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in listed:
            for path, at in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
                yield from self._rows(path, at)

    def _rows(self, path: str, at: pa.Scalar) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.parquet

        place = Path(unquote(path.removeprefix("file:")))
        try:
            file = _open(place)
        except (pa.ArrowException, OSError) as error:
            if getattr(error, "errno", None) is not None:
                # The file could not be reached, which says nothing about its content.
                raise
            yield from self._with_errors(self._schema.empty_table(), [str(error)], path, at)
            return
        partition = partition_of(place.relative_to(self._directory))
        self._check(path, columns_of(file), partition)
        number = 0
        try:
            for batch in _batches(place, file):
                whole = self._with_partition(pa.Table.from_batches([batch]), partition)
                for fitting, errors in self._cast_rows(whole, number):
                    yield from self._with_errors(fitting, errors, path, at)
                number += len(batch)
        except (pa.ArrowException, OSError) as error:
            if getattr(error, "errno", None) is not None:
                raise
            yield from self._with_errors(
                self._schema.empty_table(), [f"after row {number}: {error}"], path, at
            )

    def _with_partition(self, rows: pa.Table, partition: dict[str, str | None]) -> pa.Table:
        import pyarrow as pa

        for name, value in partition.items():
            if name in self._schema.names and name not in rows.column_names:
                rows = rows.append_column(name, pa.array([value] * len(rows), pa.string()))
        return rows.select(self._schema.names)

    def _cast_rows(
        self, rows: pa.Table, number: int
    ) -> Iterator[tuple[pa.Table, list[str | None]]]:
        """Yield the rows in the declared types. Bisects to find rows that cannot be cast."""
        import pyarrow as pa

        try:
            cast = _cast(rows, self._schema)
        except (pa.ArrowException, ValueError) as error:
            if len(rows) == 1:
                yield self._schema.empty_table(), [f"row {number + 1}: {error}"]
                return
            middle = len(rows) // 2
            yield from self._cast_rows(rows.slice(0, middle), number)
            yield from self._cast_rows(rows.slice(middle), number + middle)
            return
        yield cast, self._missing(cast)

    def _missing(self, rows: pa.Table) -> list[str | None]:
        errors: list[str | None] = [None] * len(rows)
        for name in self._required:
            if rows[name].null_count:
                for i, valid in enumerate(rows[name].is_valid().to_pylist()):
                    if not valid:
                        errors[i] = f"column {name!r} has no value, and it is NOT NULL"
        return errors

    def _with_errors(
        self, rows: pa.Table, errors: list[str | None], path: str, at: pa.Scalar
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows with their errors; an error without a row gets a row of nulls."""
        import pyarrow as pa

        count = len(errors)
        if len(rows) < count:
            rows = pa.table(
                [pa.nulls(count, field.type) for field in self._schema], schema=self._schema
            )
        texts = [pa.array(errors, pa.string()), pa.array([path] * count, pa.string())]
        columns = [*rows.columns, *texts, pa.array([at.as_py()] * count, at.type)]
        names = [*self._schema.names, ERROR, PATH, CHANGED_AT]
        yield from pa.table(columns, names=names).combine_chunks().to_batches()

    def _check(self, path: str, columns: list[pa.Field], partition: dict[str, str | None]) -> None:
        import pyarrow as pa

        names = self._schema.names
        types = {field.name: field.type for field in columns}
        types |= {name: pa.string() for name in partition if name in names and name not in types}
        fits = types.keys() == set(names) and all(
            field.name in partition or _compatible(types[field.name], field.type)
            for field in self._schema
        )
        if not fits:
            theirs = {name: str(kind) for name, kind in types.items()}
            ours = {field.name: str(field.type) for field in self._schema}
            raise differing(f"the file {path}", "that reads it", theirs, ours)


def _nullable(schema: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([field.with_nullable(True) for field in schema])


def _cast(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast rows to the types of a schema, without loss."""
    import pyarrow as pa

    columns = []
    for field in schema:
        column = rows[field.name]
        # Types such as large_string need an intermediate cast.
        between = plain(column.type)
        columns.append(
            (column if between == column.type else column.cast(between)).cast(field.type)
        )
    return pa.table(columns, schema=schema)


def _compatible(stored: pa.DataType, declared: pa.DataType) -> bool:
    """Return whether a cast can be lossless, whatever unit or width the values are stored in."""
    import pyarrow.types as kinds

    pairs: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], bool]]] = [
        (kinds.is_timestamp, kinds.is_timestamp),
        (kinds.is_integer, kinds.is_integer),
        (kinds.is_decimal, kinds.is_integer),
        (kinds.is_fixed_size_binary, kinds.is_binary),
    ]
    return plain(stored) == declared or any(
        is_stored(stored) and is_declared(declared) for is_stored, is_declared in pairs
    )
