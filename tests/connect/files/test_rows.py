"""Rows of files: quotes, encodings, partitions, and types that Spark does not have."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')

import pyarrow as pa
import pyarrow.parquet
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, StringType, StructType

from millstream.connect import files
from millstream.connect.files.parquet import ParquetFiles, schema_in
from millstream.pipelines.errors import PipelineError

CSV = {
    "quotes.csv": b'id,name\n1,"say ""hi"", x"\n2,"two\nlines"\n3,back\\slash\n4,"a\\"\n',
    "open.csv": b'id,name\n5,"abc\n6,x\n',
    "latin.csv": b"id,name\n7,caf\xe9\n8,ok\n",
    "unix-then-dos.csv": b'id,name\n9,a\n10,b\r\n11,"c"\r\n12,d\n',
    "dos-then-unix.csv": b'id,name\r\n13,a\r\n14,b\n15,"c"\n16,d\r\n',
}


def test_csv_follows_rfc_4180_and_other_lines_are_errors(spark: Any, tmp_path: Path) -> None:
    for name, content in CSV.items():
        (tmp_path / name).write_bytes(content)
    rows = files(str(tmp_path), format="csv", schema="id int, name string").rows(spark)
    query = (
        rows.writeStream.format("memory").queryName("csv_rows").trigger(availableNow=True).start()
    )
    assert query.awaitTermination(120)
    found = {row.id: (row.name, row._error) for row in spark.table("csv_rows").collect()}
    fine = {id: name for id, (name, error) in found.items() if error is None}
    lines = {9: "a", 11: "c", 12: "d", 13: "a", 16: "d"}
    assert fine == {1: 'say "hi", x', 2: "two\nlines", 3: "back\\slash", 4: "a\\", 8: "ok"} | lines
    assert "a quote is open" in found[5][1] and "not text in this encoding" in found[7][1]
    assert (
        "the line ends with" in found[10][1]
        and "as many values as there are columns" in found[14][1]
    )


def csv_rows(
    spark: Any, directory: Path, lines: list[str], schema: str, **options: Any
) -> list[Any]:
    """Return the rows of one file in order; each has its number in the column ``id``."""
    (directory / "x.csv").write_text("\n".join(lines) + "\n")
    rows = files(str(directory), format="csv", schema=schema, **options).rows(spark)
    name = f"csv_{directory.name}".replace("-", "_")
    query = rows.writeStream.format("memory").queryName(name).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    return sorted(spark.table(name).collect(), key=lambda row: row.id)


def test_csv_empty_text_is_quoted_and_null_is_not(spark: Any, tmp_path: Path) -> None:
    lines = ["id,s,n", "1,,", '2,"",""', '3," x ",1']
    rows = csv_rows(spark, tmp_path, lines, "id int, s string, n int")
    assert [(row.s, row.n, row._error) for row in rows] == [
        (None, None, None),
        ("", None, None),
        (" x ", 1, None),
    ]


def test_csv_reasons_name_the_column_and_records_hold_the_line(spark: Any, tmp_path: Path) -> None:
    schema = "id int, s string NOT NULL, n int, d decimal(10,3)"
    lines = [
        "id;s;n;d",
        "1;'a;b';x;1.5",
        "2;;1;1.5",
        "3;a;1;1.2345",
        "4; a ;3000000000;1",
        "5;a;1;1;2",
    ]
    rows = csv_rows(spark, tmp_path, lines, schema, sep=";", quote="'")
    assert [row._error for row in rows[:4]] == [
        "column 'n': 'x' is not int, or out of its range",
        "column 's' has no value, and it is NOT NULL",
        "column 'd': '1.2345' has more than the 3 decimals of decimal(10,3)",
        "column 'n': '3000000000' is not int, or out of its range",
    ]
    assert [bytes(row._record.value).decode() for row in rows] == lines[1:]
    explain = files(str(tmp_path), format="csv", schema=schema, sep=";", quote="'").explainer()
    assert explain is not None
    assert [explain(line.encode()) for line in lines[1:]] == [
        *[None] * 4,
        "the line has 5 values for 4 columns (id, s, n, d)",
    ]


def test_csv_values_follow_the_given_formats_and_locale(spark: Any, tmp_path: Path) -> None:
    lines = ["id,day,d", '1,28.02.2026,"1.234,5"', '2,28.02.2026,"1.234,55"', "3,2026-02-28,NA"]
    options = {"dateFormat": "dd.MM.yyyy", "locale": "de-DE", "nullValue": "NA"}
    rows = csv_rows(spark, tmp_path, lines, "id int, day date, d decimal(5,1)", **options)
    assert (rows[0].day, rows[0].d, rows[0]._error) == (date(2026, 2, 28), Decimal("1234.5"), None)
    assert rows[1]._error == "column 'd': '1.234,55' does not fit decimal(5,1) exactly"
    assert rows[2]._error == "column 'day': '2026-02-28' is not date, or out of its range"


def write(path: Path, table: pa.Table, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, path, **options)
    return path


def read(directory: Path, schema: StructType, path: Path) -> list[dict[str, Any]]:
    """Return the rows that an executor reads from one listed file."""
    at = pa.array([datetime(2026, 3, 1, tzinfo=UTC)], pa.timestamp("us", tz="UTC"))
    listed = pa.record_batch([pa.array([f"file:{quote(str(path))}"]), at], names=["path", "at"])
    batches = ParquetFiles(str(directory), to_arrow_schema(schema, timezone="UTC"))(iter([listed]))
    return [row for batch in batches for row in batch.to_pylist()]


def test_parquet_types_unknown_to_spark_are_read_as_wider_types(tmp_path: Path) -> None:
    at = datetime(2026, 3, 1, 12, 0, 0, 123456)
    table = pa.table(
        {
            "small": pa.array([255], pa.uint8()),
            "large": pa.array([2**64 - 1], pa.uint64()),
            "text": pa.array(["x"], pa.large_string()),
            "time": pa.array([time(12, 0, 1)], pa.time64("us")),
            "zoned": pa.array([at.replace(tzinfo=UTC)], pa.timestamp("us", tz="UTC")),
            "plain": pa.array([at], pa.timestamp("us")),
        }
    )
    path = write(
        tmp_path / "day=2026-03-01" / "a%20b=__HIVE_DEFAULT_PARTITION__" / "x.parquet", table
    )
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 no")
    schema = schema_in(str(tmp_path))
    assert schema.simpleString() == (
        "struct<small:smallint,large:decimal(20,0),text:string,time:string,zoned:timestamp,plain:timestamp_ntz,"
        "day:string,a b:string>"
    )
    (row,) = read(tmp_path, schema, path)
    assert (row["small"], row["large"], row["text"], row["time"]) == (
        255,
        2**64 - 1,
        "x",
        "12:00:01.000000",
    )
    assert (row["zoned"], row["plain"]) == (at.replace(tzinfo=UTC), at)
    assert (row["day"], row["a b"], row["_error"]) == ("2026-03-01", None, None)

    old = write(
        tmp_path / "old" / "int96.parquet",
        table.select(["zoned"]),
        use_deprecated_int96_timestamps=True,
    )
    assert schema_in(str(old.parent)).simpleString() == "struct<zoned:timestamp>"
    assert read(old.parent, schema_in(str(old.parent)), old)[0]["zoned"] == at.replace(tzinfo=UTC)


def test_parquet_rows_that_do_not_fit_are_single_errors(tmp_path: Path) -> None:
    schema = StructType().add("id", IntegerType(), nullable=False).add("at", "timestamp_ntz")
    times = pa.array([1000, 1001, 2000, 3000], pa.timestamp("ns"))
    path = write(tmp_path / "x.parquet", pa.table({"id": [1, 2, None, 2**40], "at": times}))
    found = [(row["id"], row["_error"]) for row in read(tmp_path, schema, path)]
    assert [row for row in found if row[1] is None] == [(1, None)]
    reasons = [error for _, error in found if error]
    assert "row 2: " in reasons[0] and "would lose data" in reasons[0]
    assert "column 'id' has no value, and it is NOT NULL" in reasons[1] and "row 4: " in reasons[2]


def test_directory_without_a_readable_parquet_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        PipelineError, match=r"has no Parquet file to take the schema from; give schema="
    ):
        schema_in(str(tmp_path))
    (tmp_path / "a.parquet").write_bytes(b"")
    with pytest.raises(
        PipelineError, match=r"that can be read \(\S+a\.parquet: .*\) to take the schema from"
    ):
        schema_in(str(tmp_path))
    write(tmp_path / "b.parquet", pa.table({"v": pa.array([1], pa.duration("s")), "id": ["x"]}))
    assert schema_in(str(tmp_path))["id"].dataType == StringType()
