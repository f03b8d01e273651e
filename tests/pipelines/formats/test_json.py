"""JSON values to columns and back: accepted values, rejected values, and the reasons."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from millstream.pipelines.errors import PipelineError
from millstream.pipelines.formats.json import CORRUPT
from millstream.pipelines.formats.registry import value_format

SCHEMA = """
    id string NOT NULL, n int, big bigint, d decimal(12,2), x double, b boolean, t timestamp, day date, bin binary,
    s struct<c: int, e: decimal(5,1)>, a array<int>, m map<string, int>, ss array<struct<c: int, d: decimal(4,2)>>,
    tiny tinyint
"""

GOOD: dict[bytes, dict[str, Any]] = {
    b'{"id":"a"}': {},
    b' {"id" : "a", "unknown": [1, {"x": 2}]}\n': {},
    b'{"id":"a","n":null}': {},
    '{"id":"é😀","n":-7}'.encode(): {"id": "é😀", "n": -7},
    b'{"id":"a","big":9007199254740993}': {"big": 9007199254740993},
    b'{"id":"a","d":1234567890.12}': {"d": Decimal("1234567890.12")},
    b'{"id":"a","d":-1.500}': {"d": Decimal("-1.50")},
    b'{"id":"a","d":"1.25"}': {"d": Decimal("1.25")},
    b'{"id":"a","d":1e2}': {"d": Decimal("100.00")},
    b'{"id":"a","x":1}': {"x": 1.0},
    b'{"id":"a","b":true,"day":"2026-02-28"}': {"b": True, "day": dt.date(2026, 2, 28)},
    b'{"id":"a","bin":"YWI="}': {"bin": bytearray(b"ab")},
    b'{"id":"a","s":{"c":1,"e":0.5,"other":"x"}}': {"s": {"c": 1, "e": Decimal("0.5")}},
    b'{"id":"a","a":[1,null,3],"m":{"k":5,"j":null}}': {
        "a": [1, None, 3],
        "m": {"k": 5, "j": None},
    },
    b'{"id":"a","ss":[{"c":1,"d":0.25},{}]}': {
        "ss": [{"c": 1, "d": Decimal("0.25")}, {"c": None, "d": None}]
    },
    b'{"id":"a","_millstream_value":[]}': {},
    b'{"id":"1e12345678","d":1.5,"other":"\\"1e99999"}': {"id": "1e12345678", "d": Decimal("1.50")},
    b'{"id":"a","d":1e-1,"x":1e-300}': {"d": Decimal("0.10"), "x": 1e-300},
    b'{"id":"a","x":"Infinity"}': {"x": float("inf")},
    b'{"id":"NaN, Infinity","x":"-Infinity"}': {"id": "NaN, Infinity", "x": float("-inf")},
    b'{"id":"\\ud83d\\ude00 \\\\ud800","other":"\\ud800"}': {"id": "😀 \\ud800"},
    b'{"id":{"a":[1.10,0.0005,12345678.5]},"d":1.500}': {
        "id": '{"a":[1.1,5.0E-4,1.23456785E7]}',
        "d": Decimal("1.50"),
    },
    b'{"id":1.5,"tiny":-128}': {"id": "1.5", "tiny": -128},
    b'{"id":"a","day":"2026-02-28T00:00:00Z"}': {"day": dt.date(2026, 2, 28)},
}

# the value, the error of Spark's columns alone, the error for people
BAD: list[tuple[bytes, str]] = [
    (b"", "the value is empty"),
    (b"  ", "the value is empty"),
    (b"null", "not a JSON object but null"),
    (b"5", "not a JSON object but a number: 5"),
    (b'"x"', 'not a JSON object but text: "x"'),
    (b'[{"id":"a"}]', "not a JSON object but an array"),
    (b'[{"id":"a"},{"id":"b"}]', "not a JSON object but an array"),
    (b'{"id":"a"', "not JSON: Expecting ',' delimiter at position 9"),
    (b'{"id":"a",}', "not JSON"),
    (b"{'id':'a'}", "not JSON"),
    (b'{"id":"a"} xyz', "unexpected data after the JSON at position 11: xyz"),
    (b'{"id":"a"}{"id":"b"}', "unexpected data after the JSON at position 10"),
    (b'{"id":"a"},{"id":"b"}', "unexpected data after the JSON at position 10"),
    (b'{"id":"a"}]', "unexpected data after"),
    (b'{"id":"a"}] {}', "unexpected data after"),
    (b'{"id":"a"}],"v":[{"id":"b"}', "unexpected data after"),
    (b'{"id":"a"}\x00', "unexpected data after"),
    (b'{"id":"a"},null', "unexpected data after"),
    (b'{"id":"a"},null,null]', "unexpected data after"),
    (b'{"id":"a"},null]}', "unexpected data after"),
    (b'{"id":"a"},null,null],"x":[{}', "unexpected data after"),
    (b'{"id":"a"}],"_millstream_value":[{"id":"b"}', "unexpected data after"),
    (b'{"id":"a\xff"}', "not UTF-8: byte 0xff at position 8"),
    (b'{"n":1}', "field 'id' is missing, and it is NOT NULL"),
    (b'{"id":null}', "field 'id' is null, and it is NOT NULL"),
    (b'{"id":"a","n":"1"}', "field 'n': \"1\" is text, not int"),
    (b'{"id":"a","n":1.5}', "field 'n': 1.5 is not a whole number (int)"),
    (b'{"id":"a","n":3000000000}', "field 'n': 3000000000 is out of the range of int"),
    (b'{"id":"a","big":9223372036854775808}', "out of the range of bigint"),
    (b'{"id":"a","d":1.239}', "field 'd': 1.239 has more than the 2 decimals of decimal(12,2)"),
    (
        b'{"id":"a","d":0.30000000000000004}',
        "field 'd': 0.30000000000000004 has more than the 2 decimals",
    ),
    (
        b'{"id":"a","d":12345678901.1}',
        "field 'd': 12345678901.1 is out of the range of decimal(12,2)",
    ),
    (b'{"id":"a","d":"x"}', "field 'd': \"x\" is text, not decimal(12,2)"),
    # Numbers that would keep Java busy for hours.
    (b'{"id":"a","d":1e999999999}', "field 'd': 1E+999999999 is out of the range of decimal(12,2)"),
    (b'{"id":"a","d":1E-999999999}', "field 'd': 1E-999999999 has more than the 2 decimals"),
    (
        b'{"id":"a","d":"1e+0999999999"}',
        "field 'd': 1e+0999999999 is out of the range of decimal(12,2)",
    ),
    (
        b'{"id":"a","ss":[{},{"d":1.5e999999999}]}',
        "field 'ss[1].d': 1.5E+999999999 is out of the range",
    ),
    (b'{"id":"a","x":1e400}', "field 'x': 1E+400 is out of the range of double"),
    (b'{"id":"a","x":NaN}', "not JSON: NaN is not a number"),
    (b'{"id":"a","other":-Infinity}', "not JSON: -Infinity is not a number"),
    (b'{"id":"a","x":"INF"}', "field 'x': \"INF\" is text, not double"),
    (b'{"id":"a","tiny":128}', "field 'tiny': 128 is out of the range of tinyint"),
    (b'{"id":"a","tiny":255}', "field 'tiny': 255 is out of the range of tinyint"),
    (b'{"id":"a","d":1.25000000000000000000000000000000000001}', "has more than the 2 decimals"),
    (b'{"id":"a","d":1.5e-40}', "field 'd': 1.5E-40 has more than the 2 decimals of decimal(12,2)"),
    (b'{"id":"a","d":"1,5"}', "field 'd': \"1,5\" is text, not decimal(12,2)"),
    (b'{"id":"a\\ud83d"}', "has half of a surrogate pair"),
    (b'{"id":"a","m":{"\\ude00":1}}', "has half of a surrogate pair"),
    (b'{"id":1.10}', "field 'id': 1.10 is a number that a text field would change"),
    (
        b'{"id":{"a":0.12345678901234567}}',
        "0.12345678901234567 is a number that a text field would change",
    ),
    (
        b'{"id":"a","t":"2026-02-28T10:00:00.123456789Z"}',
        "has nanoseconds, but a timestamp has micro",
    ),
    (
        b'{"id":"a","t":"10:00:00"}',
        "field 't': \"10:00:00\" is not a timestamp with a complete date",
    ),
    (b'{"id":"a","t":"2026-02"}', "is not a timestamp with a complete date"),
    (b'{"id":"a","t":18446744073710}', "numbers are seconds since 1970"),
    (
        b'{"id":"a","day":"2026-02-28T23:59:59Z"}',
        "field 'day': \"2026-02-28T23:59:59Z\" has more than a date",
    ),
    (b'{"id":"a","day":"2026"}', "field 'day': \"2026\" is not a date"),
    (b'{"id":"a","x":"1.5"}', "field 'x': \"1.5\" is text, not double"),
    (b'{"id":"a","b":1}', "field 'b': 1 is a number, not a boolean"),
    (b'{"id":"a","t":"yesterday"}', "field 't': \"yesterday\" is not a timestamp"),
    (b'{"id":"a","t":"2026-02-30T00:00:00Z"}', "is not a timestamp"),
    (b'{"id":"a","t":1700000000000}', "numbers are seconds since 1970"),
    (b'{"id":"a","day":"2026-02-30"}', "field 'day': \"2026-02-30\" is not a date"),
    (b'{"id":"a","day":"10000-01-01"}', "field 'day': \"10000-01-01\" is not a date"),
    (b'{"id":"a","bin":"!!"}', "is not base64"),
    (b'{"id":"a","s":{"c":"x"}}', "field 's.c': \"x\" is text, not int"),
    (b'{"id":"a","s":{"e":0.55}}', "field 's.e': 0.55 has more than the 1 decimals"),
    (b'{"id":"a","s":5}', "field 's': 5 is a number, not an object"),
    (b'{"id":"a","a":[1,"x"]}', "field 'a[1]': \"x\" is text, not int"),
    (b'{"id":"a","a":{"0":1}}', "is an object, not an array"),
    (b'{"id":"a","m":{"k":"x"}}', "field 'm.k': \"x\" is text, not int"),
    (b'{"id":"a","ss":[{"c":1},{"c":"z"}]}', "field 'ss[1].c': \"z\" is text, not int"),
    (b'{"id":"a","ss":[{"d":1.005}]}', "field 'ss[0].d': 1.005 has more than the 2 decimals"),
    (b'{"id":"a","n":"1","x":"2","b":3,"t":4.5,"day":5}', "(and 1 more)"),
]


Decode = Callable[..., list[Any]]


@pytest.fixture
def decode(spark) -> Decode:
    """Return a function that decodes values to rows, in the same order."""

    def run(
        schema: str,
        values: list[bytes | None],
        tombstones: str | None = None,
        *,
        columns: list[str] | None = None,
        **options: Any,
    ) -> list[Any]:
        rows = [
            (index, None if value is None else bytearray(value))
            for index, value in enumerate(values)
        ]
        records = spark.createDataFrame(rows, "offset bigint, value binary").repartition(1)
        more = {} if tombstones is None else {"tombstones": tombstones}
        decoded = value_format("json", schema, **options).decode(records, **more)
        # Python's datetime cannot hold some of them.
        if columns is not None:
            decoded = decoded.select(*columns, "_record")
        return sorted(decoded.collect(), key=lambda row: row._record.offset)

    return run


def test_valid_values_become_columns(decode: Decode):
    rows = decode(SCHEMA, list(GOOD))
    for value, row in zip(GOOD, rows, strict=True):
        seen = row.asDict(recursive=True)
        assert seen.pop("_error") is None, value
        assert bytes(seen.pop("_record")["value"]) == value
        assert {name: error for name, error in seen.items() if error is not None} == {
            "id": "a"
        } | GOOD[value]


def test_invalid_values_are_errors_and_not_nulls(decode: Decode):
    values = [value for value, _ in BAD]
    rows = decode(SCHEMA, values, columns=["_error"])
    assert [value for value, row in zip(values, rows, strict=True) if row._error is None] == []


def test_reason_names_the_field(spark):
    explain = value_format("json", SCHEMA).explainer()
    assert explain is not None
    for value, reason in BAD:
        assert reason in (explain(value) or ""), value
    assert [explain(value) for value in GOOD] == [None] * len(GOOD)


def test_check_names_its_field_without_the_explanation(decode: Decode):
    rows = decode(
        SCHEMA,
        [b'{"n":1}', b'{"id":"a","d":1.239}', b'{"id":"a","t":1700000000000}', b"\xff"],
        columns=["_error"],
    )
    assert [row._error for row in rows] == [
        "field 'id' is missing or null",
        "field 'd' does not fit decimal(12,2)",
        "field 't' does not fit timestamp",
        "the value is not valid UTF-8",
    ]


def test_not_null_is_checked_inside_nested_fields(decode: Decode):
    schema = "s struct<c: int NOT NULL>, ss array<struct<c: int NOT NULL>>, m map<string, struct<c: int NOT NULL>>"
    good = [b"{}", b'{"s":{"c":1},"ss":[{"c":1},null],"m":{"k":{"c":1}}}']
    bad = [b'{"s":{}}', b'{"ss":[{"c":1},{}]}', b'{"m":{"k":{"c":null}}}']
    rows = decode(schema, good + bad)
    assert [row._error for row in rows] == [
        None,
        None,
        "a part of field 's' is missing or null",
        "a part of field 'ss' is missing or null",
        "a part of field 'm' is missing or null",
    ]
    explain = value_format("json", schema).explainer()
    assert explain is not None
    assert [explain(value) for value in bad] == [
        "field 's.c' is missing, and it is NOT NULL",
        "field 'ss[1].c' is missing, and it is NOT NULL",
        "field 'm.k.c' is null, and it is NOT NULL",
    ]


@pytest.mark.parametrize(
    ("tombstones", "errors"), [(None, ["the value is null"]), ("keep", [None]), ("drop", [])]
)
def test_null_value_is_an_error_unless_kept_or_dropped(decode: Decode, tombstones, errors):
    rows = decode("id string NOT NULL", [None, b'{"id":"a"}'], tombstones)
    assert [row._error for row in rows] == [*errors, None]
    assert [row.id for row in rows] == [None] * len(errors) + ["a"]


def test_fields_may_have_names_of_record_columns(decode: Decode):
    value = b'{"key":"k","value":"v","timestamp":"2026-03-01T12:00:00Z","a.b":1,"end`":2}'
    (row,) = decode(
        "key string, value string, timestamp timestamp, `a.b` int, `end``` int", [value]
    )
    assert (row["key"], row["value"], row["a.b"], row["end`"]) == ("k", "v", 1, 2)
    assert bytes(row._record.value) == value


def test_times_follow_the_timestamp_format(decode: Decode):
    rows = decode(
        "t timestamp",
        [b'{"t":"01.03.2026 12:30"}', b'{"t":"soon"}'],
        timestampFormat="dd.MM.yyyy HH:mm",
    )
    assert [(row._error is None, row.t and row.t.minute) for row in rows] == [
        (True, 30),
        (False, None),
    ]


def test_value_is_parsed_once(spark):
    records = spark.createDataFrame([(bytearray(b'{"id":"a","n":1}'),)], "value binary")
    rows = value_format("json", "id string NOT NULL, n int, t timestamp").decode(records)
    good = rows.where("_error IS NULL").where("n > 0").select("id", "n", "t")
    plan = good._jdf.queryExecution().executedPlan().toString()
    # The other parsers have no column for corrupt values. They check doubtful values again.
    assert plan.count(f"StructField({CORRUPT},") == 1


def test_bad_field_is_an_error_even_if_unused(spark):
    records = spark.createDataFrame([(bytearray(b'{"id":"a","n":"x"}'),)], "value binary")
    rows = value_format("json", "id string NOT NULL, n int").decode(records)
    assert rows.where("_error IS NULL").select("id").collect() == []
    assert rows.where("_error IS NOT NULL").select("id").count() == 1


def test_written_rows_are_read_back(spark, decode: Decode):
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    schema = "id string, n int, d decimal(12,2), t timestamp, s struct<c: array<int>>, bin binary"
    at = dt.datetime(2026, 3, 1, 12, 0, 0, 123456)
    row = ("é", 7, Decimal("1.50"), at, ([1, 2],), bytearray(b"\x00\xff"))
    format = value_format("json", schema)
    (record,) = format.encode(spark.createDataFrame([row], schema), key="id").collect()
    assert bytes(record.key) == "é".encode()
    assert bytes(record.value).startswith(
        b'{"id":"\xc3\xa9","n":7,"d":1.50,"t":"2026-03-01T12:00:00.123456Z"'
    )
    (read,) = decode(schema, [bytes(record.value)])
    assert (read._error, read.id, read.n, read.d, read.t, read.s.c, read.bin) == (
        None,
        *row[:4],
        [1, 2],
        row[5],
    )


def test_key_is_bytes_text_or_an_object(spark):
    format = value_format("json")
    rows = spark.createDataFrame([(1, "x", bytearray(b"\xff"))], "n int, s string, b binary")

    def key(of: Any) -> bytes | None:
        (record,) = format.encode(rows, key=of).collect()
        return None if record.key is None else bytes(record.key)

    assert [key(columns) for columns in ("n", "s", "b", ["n", "s"], None)] == [
        b"1",
        b"x",
        b"\xff",
        b'{"n":1,"s":"x"}',
        None,
    ]
    with pytest.raises(
        PipelineError, match=r"the key column 'ss' does not exist; did you mean 's'"
    ):
        format.encode(rows, key="ss")


def test_invalid_declarations_are_rejected_with_a_hint(spark):
    for words, arguments, options in (
        ("value format 'jsn' does not exist; did you mean 'json'", ("jsn", "a int"), {}),
        (
            "no option 'timestampformat'; did you mean 'timestampFormat'",
            ("json", "a int"),
            {"timestampformat": "x"},
        ),
        ("the schema 'a itn' cannot be read", ("json", "a itn"), {}),
        ("cannot be called _error", ("json", "_error int"), {}),
        ("raw has no schema", ("raw", "a int"), {}),
    ):
        with pytest.raises(PipelineError, match=words):
            value_format(*arguments, **options)
    with pytest.raises(PipelineError, match="json needs a schema"):
        _ = value_format("json").schema


def test_map_keys_must_be_strings(spark):
    read = spark.createDataFrame(
        [(bytearray(b'{"m":{"1":"a"},"s":[{"n":{"x":{}}}]}'),)], "value binary"
    )
    decoded = value_format(
        "json", "m map<string,string>, s array<struct<n: map<string,map<string,int>>>>"
    ).decode(read)
    assert decoded.select("m").collect()[0].m == {"1": "a"}
    for schema in ("m map<int,string>", "s array<struct<n: map<string,map<int,string>>>>"):
        with pytest.raises(
            PipelineError, match="map<int,string>, but keys are strings in JSON"
        ) as raised:
            value_format("json", schema).decode(read)
        assert raised.value.hint is not None and "map<string,string>" in raised.value.hint
