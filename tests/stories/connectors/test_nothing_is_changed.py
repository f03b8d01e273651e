"""No value is rounded, truncated or replaced on its way: each is read exactly, or its row is a dead
letter. By format and type.
"""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')

import fastavro
import pyarrow as pa
import pyarrow.parquet
from google.protobuf import timestamp_pb2
from pyspark.sql import functions as F
from pyspark.sql import types as T

from connect.files.test_rows import read, write
from millstream.connect import files
from millstream.connect.databases.database import Change, Column, connect
from millstream.connect.databases.table import table
from millstream.connect.databases.table_sink import TableSink
from millstream.connect.files.parquet import schema_in
from millstream.pipelines.formats.arrow import Unreadable
from millstream.pipelines.formats.avro import AvroFormat
from millstream.pipelines.formats.protobuf_messages import files_of_class, message_class
from millstream.pipelines.formats.protobuf_values import _micros, fill, getters
from millstream.pipelines.formats.registry import value_format
from support.connect.store_world import Shop

LETTER = "dead letter"
INTERVAL = "1 02:03:04.1234"
NANOS = "2026-02-28T10:00:00.123456789Z"
# Type, JSON, CSV (None: the same text without its quotes), and what becomes of it in JSON and in
# CSV.
TEXTS: list[tuple[str, str, str | None, str | None, str | None]] = [
    ("tinyint", "127", None, "127", "127"),
    ("tinyint", "128", None, LETTER, LETTER),
    ("int", "2147483648", None, LETTER, LETTER),
    ("int", "1.0", None, LETTER, LETTER),
    ("bigint", "9223372036854775807", None, "9223372036854775807", "9223372036854775807"),
    ("bigint", "9223372036854775808", None, LETTER, LETTER),
    ("decimal(10,3)", "1.234", None, "1.234", "1.234"),
    ("decimal(10,3)", "1.23400", None, "1.234", "1.234"),
    ("decimal(10,3)", "1.2345", None, LETTER, LETTER),
    ("decimal(10,3)", "12345678.1", None, LETTER, LETTER),
    ("decimal(10,3)", "125e-2", None, "1.250", "1.250"),
    ("decimal(10,3)", "1e-40", None, LETTER, LETTER),
    ("decimal(10,3)", "1.00000000000000000000000000000000000000001", None, LETTER, LETTER),
    ("decimal(10,3)", '"1,5"', '"1,5"', LETTER, LETTER),
    ("decimal(38,10)", "1.12345678901", None, LETTER, LETTER),
    ("double", "0.1", None, "0.1", "0.1"),
    ("double", "1e400", None, LETTER, LETTER),
    ("double", '"NaN"', None, "NaN", "NaN"),
    ("double", '"-Infinity"', None, "-Infinity", "-Infinity"),
    ("double", "NaN", None, LETTER, "NaN"),
    ("float", "1e39", None, LETTER, LETTER),
    ("timestamp", '"2026-02-28T10:00:00.123456Z"', None, "2026-02-28 10:00:00.123456", "2026-02-28 10:00:00.123456"),
    ("timestamp", f'"{NANOS}"', None, LETTER, LETTER),
    ("timestamp", '"2026-02"', None, LETTER, LETTER),
    ("timestamp", '"10:00:00"', None, LETTER, LETTER),
    ("timestamp", "18446744073710", None, LETTER, LETTER),
    ("timestamp_ntz", '"2026-02-28T10:00:00.1234567"', None, LETTER, LETTER),
    ("date", '"2026-02-28"', None, "2026-02-28", "2026-02-28"),
    ("date", '"2026-02-28T23:59:59"', None, LETTER, LETTER),
    ("date", '"2026-02-30"', None, LETTER, LETTER),
    ("date", '"2026"', None, LETTER, LETTER),
    ("interval day to second", f'"{INTERVAL}56"', None, "INTERVAL '1 02:03:04.123456' DAY TO SECOND", "INTERVAL '1 02:03:04.123456' DAY TO SECOND"),
    ("interval day to second", f'"{INTERVAL}56000"', None, "INTERVAL '1 02:03:04.123456' DAY TO SECOND", "INTERVAL '1 02:03:04.123456' DAY TO SECOND"),
    ("interval day to second", f'"{INTERVAL}56789"', None, LETTER, LETTER),
    ("string", r'"\ud83d"', "\ufffd", LETTER, LETTER),
    ("string", r'"\ud83d\ude00"', "😀", "😀", "😀"),
    ("string", "1.10", None, LETTER, "1.10"),
    ("string", '""', '""', "", ""),
    ("string", "null", "", None, None),
    ("boolean", "true", None, "true", "true"),
    ("boolean", "1", None, LETTER, LETTER),
    ("boolean", '"yes"', None, LETTER, LETTER),
    ("binary", '"YQA="', "a", "a\0", "a"),
    ("binary", '"YQ"', "a", LETTER, "a"),
]  # fmt: skip
KINDS = list(dict.fromkeys(kind for kind, *_ in TEXTS))
NAMES = {kind: f"c{place}" for place, kind in enumerate(KINDS)}
SCHEMA = "id int, " + ", ".join(f"{NAMES[kind]} {kind}" for kind in KINDS)
IDS = [f"{kind}: {text}" for kind, text, *_ in TEXTS]


def outcomes(rows: Any) -> list[str | None]:
    """What became of each value, as text."""
    texts = [F.col(name).cast("string").alias(name) for name in NAMES.values()]
    found = rows.select("id", *texts, "_error").collect()
    by_id = {row.id: row for row in found}
    return [
        LETTER if by_id[place]._error is not None else by_id[place][NAMES[kind]]
        for place, (kind, *_) in enumerate(TEXTS)
    ]


@pytest.fixture(scope="module")
def from_json(spark: Any) -> list[str | None]:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    values = [
        f'{{"id":{place},"{NAMES[kind]}":{text}}}' for place, (kind, text, *_) in enumerate(TEXTS)
    ]
    records = spark.createDataFrame([(bytearray(one.encode()),) for one in values], "value binary")
    # What a value does not have is null, also its id.
    numbered = value_format("json", SCHEMA).decode(records)
    place = F.regexp_extract(F.col("_record.value").cast("string"), '"id":([0-9]+)', 1).cast("int")
    return outcomes(numbered.withColumn("id", place))


@pytest.fixture(scope="module")
def from_csv(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> list[str | None]:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    directory = tmp_path_factory.mktemp("csv")
    lines = ["id," + ",".join(NAMES.values())]
    for place, (kind, text, other, *_) in enumerate(TEXTS):
        shown = text.strip('"') if other is None else other
        lines.append(f"{place}," + ",".join(shown if one == kind else "" for one in KINDS))
    (directory / "x.csv").write_text("\n".join(lines) + "\n")
    rows = files(str(directory), format="csv", schema=SCHEMA).rows(spark)
    query = (
        rows.writeStream.format("memory").queryName("exact_csv").trigger(availableNow=True).start()
    )
    assert query.awaitTermination(120)
    return outcomes(spark.table("exact_csv"))


@pytest.mark.parametrize("place", range(len(TEXTS)), ids=IDS)
def test_json_value_is_exact_or_a_dead_letter(from_json: list[str | None], place: int) -> None:
    assert from_json[place] == TEXTS[place][3]


@pytest.mark.parametrize("place", range(len(TEXTS)), ids=IDS)
def test_csv_value_is_exact_or_a_dead_letter(from_csv: list[str | None], place: int) -> None:
    assert from_csv[place] == TEXTS[place][4]


# ---------------------------------------------------------------- Avro and protobuf

MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
AT = dt.datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (MILLIS, AT, "is more exact than timestamp-millis"),
        (MILLIS, AT.replace(microsecond=123000), None),
        ("int", 2**31, "is not a value of int"),
        ("int", Decimal("1.5"), "is not a value of int"),
        (["null", "int", "long"], 2**40, None),
        ("float", 0.1, "would round 0.1"),
        ("float", 1e39, "would round 1e\\+39"),
        ("float", float("nan"), None),
        (["null", "float", "double"], 0.1, None),
        ("double", 2**53 + 1, "would round"),
        (DECIMAL, Decimal("1.235"), "does not match"),
        (DECIMAL, Decimal("-12.34"), None),
        ({"type": "array", "items": "int"}, [1, 2**31], r"field 'v\[\]'"),
    ],
)
def test_avro_value_is_written_exactly_or_not_at_all(
    kind: Any, value: Any, reason: str | None
) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "v", "type": kind}]}
    format = AvroFormat(schema)
    write = format.writer(T.StructType().add("v", "string"))
    if reason is None:
        found = format.reader()(write({"v": value}))["v"]
        assert found == value or value != value
    else:
        with pytest.raises(ValueError, match=reason):
            write({"v": value})


def test_avro_decimal_with_more_digits_than_declared_is_refused() -> None:
    fields = [{"name": "v", "type": "bytes"}]
    stream = io.BytesIO()
    raw = {"v": (1234567).to_bytes(4, signed=True)}
    plain = fastavro.parse_schema({"type": "record", "name": "R", "fields": fields})
    fastavro.schemaless_writer(stream, plain, raw)
    format = AvroFormat({"type": "record", "name": "R", "fields": [{"name": "v", "type": DECIMAL}]})
    with pytest.raises(Unreadable, match="more than the 4 digits"):
        format.reader()(stream.getvalue())


@pytest.mark.parametrize(
    ("nanos", "reason"),
    [
        (123_456_000, None),
        (123_456_789, "has microseconds"),
        (1_000_000_000, "not part of a second"),
    ],
)
def test_protobuf_time_is_exact_or_a_dead_letter(nanos: int, reason: str | None) -> None:
    from google.protobuf import (
        struct_pb2,  # a message with a field of each kind is not at hand; one of times is
    )

    assert struct_pb2
    get = getters_of_time()
    moment = timestamp_pb2.Timestamp(seconds=1, nanos=nanos)
    if reason is None:
        assert get(moment) == 1_000_000 + nanos // 1000
    else:
        with pytest.raises(Unreadable, match=reason):
            get(moment)


def getters_of_time() -> Any:

    return _micros


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("Int64Value", Decimal("1.5"), "is an integer"),
        ("Int64Value", Decimal("2.00"), None),
        ("FloatValue", 0.1, "would round 0.1"),
        ("FloatValue", 0.5, None),
        ("DoubleValue", 2**53 + 1, "would round"),
        ("DoubleValue", float("nan"), None),
    ],
)
def test_protobuf_number_is_written_exactly_or_not_at_all(
    name: str, value: Any, reason: str | None
) -> None:
    message = message_class(*files_of_class(f"google.protobuf.wrappers_pb2:{name}"))()
    if reason is None:
        fill(message, {"value": value})
        found = getters(message.DESCRIPTOR)["value"](message)
        assert found == value or value != value
    else:
        with pytest.raises(ValueError, match=reason):
            fill(message, {"value": value})


# ---------------------------------------------------------------- Parquet


def test_parquet_int96_times_beyond_2262_are_read_and_nanoseconds_refused(tmp_path: Path) -> None:
    late = dt.datetime(3000, 1, 1, 0, 0, 0, 5)
    far = pa.table({"at": pa.array([late], pa.timestamp("us"))})
    path = write(tmp_path / "far" / "x.parquet", far, use_deprecated_int96_timestamps=True)
    (row,) = read(path.parent, schema_in(str(path.parent)), path)
    assert (row["at"], row["_error"]) == (late.replace(tzinfo=dt.UTC), None)
    fine = pa.table({"at": pa.array([1_000, 1_001], pa.timestamp("ns"))})
    path = write(tmp_path / "fine" / "x.parquet", fine, use_deprecated_int96_timestamps=True)
    found = read(path.parent, schema_in(str(path.parent)), path)
    assert [row["_error"] is None for row in found] == [True, False]
    assert "would lose data" in found[1]["_error"]


# ---------------------------------------------------------------- databases

POSTGRESQL: list[tuple[str, str, Any, str | None]] = [
    (
        "numeric(10,2)",
        "decimal(10,3)",
        Decimal("1.235"),
        "has more than the 2 decimals of numeric(10,2)",
    ),
    ("numeric(10,2)", "decimal(10,3)", Decimal("1.230"), None),
    ("numeric(10,2)", "double", 1.239, "has more than the 2 decimals"),
    ("numeric(10,2)", "double", float("nan"), None),
    ("money", "decimal(10,3)", Decimal("1.235"), "has more than the 2 decimals of money"),
    (
        "timestamp(3) with time zone",
        "timestamp",
        AT,
        "is more precise than timestamp(3) with time zone",
    ),
    ("timestamp(3) with time zone", "timestamp", AT.replace(microsecond=1000), None),
    ("timestamp with time zone", "timestamp", AT, None),
    ("double precision", "bigint", 2**53 + 1, "too large for double precision"),
    ("real", "int", 2**24 + 1, "too large for real"),
    ("character varying(3)", "string", "abc  ", "has spaces that character varying(3) truncates"),
    ("name", "string", "x" * 64, "longer than name keeps"),
    ('"char"', "string", "ab", 'longer than "char" keeps'),
]
SQLITE: list[tuple[str, str, Any, str | None]] = [
    ("REAL", "double", float("nan"), "SQLite has no NaN"),
    ("REAL", "double", float("inf"), None),
    ("REAL", "bigint", 2**53 + 1, "too large for REAL"),
    ("STRING", "string", "007", "stores as the number 7"),
    ("STRING", "string", "7", None),
    ("STRING", "string", "x7", None),
    ("TEXT", "string", "007", None),
    ("", "string", "1.10", None),
]


def stored(shop: Shop, declared: str, kind: str, value: Any) -> tuple[str | None, list[Any]]:
    """The reason of a dead letter, and what is in the table."""
    shop.execute(f"CREATE TABLE t (v {declared})")
    schema = T.StructType.fromDDL(f"v {kind}")
    sink = TableSink(table(shop.url, "t"), "w.f")
    sink.open()
    try:
        sink._check(schema)
        with sink._db.connection.transaction():
            refused = sink._put(["v"], [Change((value,))])
    finally:
        sink.close()
    return (refused[0].reason if refused else None), [
        row[0] for row in shop.execute("SELECT v FROM t")
    ]


@pytest.mark.parametrize(("declared", "kind", "value", "reason"), POSTGRESQL)
def test_postgresql_stores_a_value_exactly_or_refuses_it(
    spark: Any, postgres_server: Any, declared: str, kind: str, value: Any, reason: str | None
) -> None:
    postgres_server.execute("DROP SCHEMA public CASCADE")
    postgres_server.execute("CREATE SCHEMA public")
    told, found = stored(Shop(postgres_server), declared, kind, value)
    check(told, found, value, reason)


@pytest.mark.parametrize(("declared", "kind", "value", "reason"), SQLITE)
def test_sqlite_stores_a_value_exactly_or_refuses_it(
    spark: Any, tmp_path: Path, declared: str, kind: str, value: Any, reason: str | None
) -> None:
    told, found = stored(Shop(tmp_path / "shop.db"), declared, kind, value)
    check(told, [str(one) for one in found] if kind == "string" else found, value, reason)


def check(told: str | None, found: list[Any], value: Any, reason: str | None) -> None:
    if reason is not None:
        assert told is not None and reason in told and told.startswith("column 'v': ")
        assert found == []
    else:
        assert told is None
        assert value != value or found == [value]


@pytest.mark.parametrize(
    ("declared", "kind", "taken"),
    [
        ("real", T.DoubleType(), False),
        ("real", T.FloatType(), True),
        ("double precision", T.DecimalType(16, 2), False),
        ("double precision", T.DecimalType(15, 2), True),
        ("date", T.TimestampType(), False),
        ("date", T.DateType(), True),
    ],
)
def test_postgresql_column_that_would_round_every_value_is_refused(
    declared: str, kind: Any, taken: bool
) -> None:
    pytest.importorskip("psycopg", reason='needs pip install "millstream[connect]"')
    from millstream.connect.databases.postgresql.column_types import family_of_sql

    db = connect("postgresql://localhost/x")
    assert db.types.accepts(Column("v", declared, family_of_sql(declared)), kind) is taken


def decoded(spark: Any, shop: Shop, columns: dict[str, str], end: Any) -> list[Any]:
    """The rows of the table ``t`` as a stream reads them."""
    db = connect(shop.url)
    try:
        values = [
            row for chunk in db.reader.rows("t", columns, ("id",), None, (end,)) for row in chunk
        ]
    finally:
        db.connection.close()
    records = spark.createDataFrame([(place, bytearray(one)) for place, one in enumerate(values)], "offset bigint, value binary")  # fmt: skip
    schema = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    rows = value_format("json", schema).decode(records)
    return sorted(rows.collect(), key=lambda row: row._record.offset)


def test_postgresql_rows_are_read_exactly_or_refused(spark: Any, postgres_server: Any) -> None:
    postgres_server.execute("DROP SCHEMA public CASCADE")
    postgres_server.execute("CREATE SCHEMA public")
    shop = Shop(postgres_server)
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY, x float8, y float4, j jsonb, a numeric[], n numeric)"
    )
    shop.execute("""INSERT INTO t VALUES (1, 'NaN', '-Infinity', '{"a": 1.10}', '{1.10,2}', 1.10),
        (2, 0.1, 1.1, '"text"', NULL, NULL), (3, 'Infinity', 'NaN', 'null', NULL, 'NaN')""")
    columns = {"id": "int", "x": "double", "y": "float", "j": "string", "a": "string"}
    rows = decoded(spark, shop, columns, "3")
    assert [row._error for row in rows] == [None] * 3
    assert [str((row.x, row.y)) for row in rows] == [
        "(nan, -inf)",
        "(0.1, 1.100000023841858)",
        "(inf, nan)",
    ]
    assert [row.j for row in rows] == ['{"a": 1.10}', "text", None] and rows[0].a == "[1.10,2]"
    rows = decoded(spark, shop, {"id": "int", "n": "decimal(38,18)"}, "3")
    assert [row._error is None for row in rows] == [True, True, False]
    assert [row.n for row in decoded(spark, shop, {"id": "int", "n": "string"}, "1")] == ["1.10"]


def test_sqlite_rows_are_read_exactly_or_refused(spark: Any, tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop.db")
    shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, s TEXT, b BLOB, x REAL)")
    shop.execute("INSERT INTO t VALUES (1, 'é', x'00ff', 9e999), (2, x'6162', NULL, 1)")
    shop.execute("INSERT INTO t VALUES (3, 'x', 'YWI=', 1), (4, CAST(x'ff' AS TEXT), NULL, 1)")
    rows = decoded(spark, shop, {"id": "bigint", "s": "string", "b": "binary", "x": "double"}, 4)
    assert [row._error is None for row in rows] == [True, False, False, False]
    assert (rows[0].s, bytes(rows[0].b), rows[0].x) == ("é", b"\x00\xff", float("inf"))


def test_refused_row_with_nan_is_a_letter_in_valid_json(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop.db")
    shop.execute("CREATE TABLE t (v REAL)")
    sink = TableSink(table(shop.url, "t"), "w.f")
    letter = sink._refused_row(["v", "w"], Change((float("nan"), float("-inf"))), "no")
    assert json.loads(letter.value or "", parse_constant=pytest.fail) == {
        "v": "NaN",
        "w": "-Infinity",
    }
