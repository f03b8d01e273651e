"""Parquet files read by pyarrow: which columns they have, as Spark has them, and their rows, of which one that does not fit is told by itself.

Columns are those of the file and those of its directories (``date=2026-03-01``), which a writer of partitions leaves out of the file.
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
    """That of the first file that can be read."""
    import pyarrow as pa
    import pyarrow.parquet

    unreadable = ""
    for path in sorted(Path(directory).rglob("*.parquet")):
        inside = path.relative_to(directory)
        if any(part.startswith((".", "_")) for part in inside.parts):
            continue
        try:
            file = _opened(path)
        except (pa.ArrowException, OSError) as error:
            unreadable = unreadable or f" that can be read ({path}: {error})"
            continue
        return _spark_schema(path, file, partition_of(inside))
    raise PipelineError(
        f"there is no Parquet file in {directory}{unreadable} to take the schema from",
        hint="give schema='id string, n int'",
    )


def _spark_schema(path: Path, file: pa.parquet.ParquetFile, partition: dict[str, str | None]) -> StructType:
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    fields = [*columns_of(file), *(pa.field(name, pa.string()) for name in partition)]
    made = StructType()
    for one in fields:
        try:
            made.add(from_arrow_schema(pa.schema([one]), prefer_timestamp_ntz=True).fields[0])
        except Exception:  # pyspark has several words for it
            raise PipelineError(
                f"the column {one.name!r} of the file {path} is {one.type}, which Spark does not have",
                hint="give schema= with the type to read it as, or leave the column out of the files",
            ) from None
    return made


def _opened(path: Path) -> pa.parquet.ParquetFile:
    """A file with its INT96 times in microseconds: in nanoseconds they end in the year 2262, and those behind wrap around."""
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(path, coerce_int96_timestamp_unit="us")


def _batches(path: Path, file: pa.parquet.ParquetFile) -> Iterator[pa.RecordBatch]:
    """The rows of a file; an INT96 time with nanoseconds stays one in nanoseconds, so that its row is refused."""
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
                # Both wrap around alike, so they differ in nothing but a part of a microsecond.
                written = nanos[field.name].cast(pa.int64())
                if not pc.all(pc.equal(pc.multiply(column.cast(pa.int64()), 1000), written)).as_py():
                    column = nanos[field.name]
            columns.append(column)
        yield pa.record_batch(columns, names=batch.schema.names)


def instants_of(file: pa.parquet.ParquetFile) -> set[str]:
    """The columns that are INT96, which is always UTC."""
    parts = [file.schema.column(i) for i in range(len(file.schema))]
    return {one.path for one in parts if one.physical_type == "INT96"}


def columns_of(file: pa.parquet.ParquetFile) -> list[pa.Field]:
    """The columns of a file with types that Spark has."""
    import pyarrow as pa

    instants = instants_of(file)
    zoned = pa.timestamp("us", tz="UTC")
    return [one.with_type(zoned if one.name in instants else plain(one.type)) for one in file.schema_arrow]


def plain(kind: pa.DataType) -> pa.DataType:
    """The type that holds all values of one that Spark does not have."""
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
    """The columns that the directories of a file stand for."""
    pairs = [part.split("=", 1) for part in inside.parts[:-1] if "=" in part]
    return {unquote(name): None if value == NO_VALUE else unquote(value) for name, value in pairs}


class ParquetFiles:
    """Reads listed files on an executor. What cannot be read is a row with an error; a file with other columns stops the flow."""

    def __init__(self, directory: str, schema: pa.Schema) -> None:
        self._directory = directory
        self._required = [one.name for one in schema if not one.nullable]
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
            file = _opened(place)
        except (pa.ArrowException, OSError) as error:
            if getattr(error, "errno", None) is not None:
                raise  # the file could not be reached: that says nothing about what is in it
            yield from self._told(self._schema.empty_table(), [str(error)], path, at)
            return
        partition = partition_of(place.relative_to(self._directory))
        self._check(path, columns_of(file), partition)
        number = 0
        try:
            for batch in _batches(place, file):
                whole = self._with_partition(pa.Table.from_batches([batch]), partition)
                for some, errors in self._fitting(whole, number):
                    yield from self._told(some, errors, path, at)
                number += len(batch)
        except (pa.ArrowException, OSError) as error:
            if getattr(error, "errno", None) is not None:
                raise
            yield from self._told(self._schema.empty_table(), [f"after row {number}: {error}"], path, at)

    def _with_partition(self, rows: pa.Table, partition: dict[str, str | None]) -> pa.Table:
        import pyarrow as pa

        for name, value in partition.items():
            if name in self._schema.names and name not in rows.column_names:
                rows = rows.append_column(name, pa.array([value] * len(rows), pa.string()))
        return rows.select(self._schema.names)

    def _fitting(self, rows: pa.Table, number: int) -> Iterator[tuple[pa.Table, list[str | None]]]:
        """The rows with the declared types; those that have other values are found by halving."""
        import pyarrow as pa

        try:
            made = _cast(rows, self._schema)
        except (pa.ArrowException, ValueError) as error:
            if len(rows) == 1:
                yield self._schema.empty_table(), [f"row {number + 1}: {error}"]
                return
            middle = len(rows) // 2
            yield from self._fitting(rows.slice(0, middle), number)
            yield from self._fitting(rows.slice(middle), number + middle)
            return
        yield made, self._missing(made)

    def _missing(self, rows: pa.Table) -> list[str | None]:
        errors: list[str | None] = [None] * len(rows)
        for name in self._required:
            if rows[name].null_count:
                for i, valid in enumerate(rows[name].is_valid().to_pylist()):
                    if not valid:
                        errors[i] = f"column {name!r} has no value, and it is NOT NULL"
        return errors

    def _told(
        self, rows: pa.Table, errors: list[str | None], path: str, at: pa.Scalar
    ) -> Iterator[pa.RecordBatch]:
        """Rows with their errors; an error for which there is no row has one without values."""
        import pyarrow as pa

        count = len(errors)
        if len(rows) < count:
            rows = pa.table([pa.nulls(count, one.type) for one in self._schema], schema=self._schema)
        told = [pa.array(errors, pa.string()), pa.array([path] * count, pa.string())]
        columns = [*rows.columns, *told, pa.array([at.as_py()] * count, at.type)]
        names = [*self._schema.names, ERROR, PATH, CHANGED_AT]
        yield from pa.table(columns, names=names).combine_chunks().to_batches()

    def _check(self, path: str, columns: list[pa.Field], partition: dict[str, str | None]) -> None:
        import pyarrow as pa

        found = {one.name: one.type for one in columns}
        found |= {name: pa.string() for name in partition if name in self._schema.names and name not in found}
        fits = found.keys() == set(self._schema.names) and all(
            one.name in partition or _alike(found[one.name], one.type) for one in self._schema
        )
        if not fits:
            theirs = {name: str(kind) for name, kind in found.items()}
            raise differing(
                f"the file {path}", "that reads it", theirs, {one.name: str(one.type) for one in self._schema}
            )


def _nullable(schema: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([one.with_nullable(True) for one in schema])


def _cast(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with the types of a schema, without loss."""
    import pyarrow as pa

    columns = []
    for one in schema:
        column = rows[one.name]
        between = plain(column.type)  # large_string and the like, on the way to what is wanted
        columns.append((column if between == column.type else column.cast(between)).cast(one.type))
    return pa.table(columns, schema=schema)


def _alike(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type can be had as the other without loss, whatever unit or width they are stored in."""
    import pyarrow.types as kinds

    pairs: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], bool]]] = [
        (kinds.is_timestamp, kinds.is_timestamp),
        (kinds.is_integer, kinds.is_integer),
        (kinds.is_decimal, kinds.is_integer),
        (kinds.is_fixed_size_binary, kinds.is_binary),
    ]
    return plain(found) == wanted or any(one(found) and other(wanted) for one, other in pairs)
