"""JSON that Arrow parses while reading: all values it proves equal those of Spark's parser and our
checks.
"""

from __future__ import annotations

import datetime as dt
import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from millstream.local.broker import LocalBroker
from millstream.pipelines import Pipeline
from millstream.pipelines import topic as to_topic
from millstream.pipelines.dead_letters.ownership import dead_letter_flows
from millstream.pipelines.declare import Flow
from millstream.pipelines.formats.registry import value_format
from millstream.pipelines.frames.builder import Frames
from millstream.spark.source import arrow_json
from millstream.spark.source.arrow_json import FEWEST, PROVEN, UNPROVEN, Plan, parse, plan_for
from pipelines.formats.test_json import BAD, GOOD
from support.spark.pipeline_world import create, received, records, run_once, send

SCHEMA = """
    id string NOT NULL, n int, big bigint, small smallint, tiny tinyint, d decimal(12,2), x double, b boolean, t timestamp, day date,
    s struct<c: int, e: decimal(5,1), f: string>, a array<int>, xs array<double>, ss array<struct<c: int, y: double>>
"""
# Without decimals, exponents and escapes are no reason for doubt.
WITHOUT_DECIMALS = SCHEMA.replace("d decimal(12,2), ", "").replace("e: decimal(5,1), ", "")
# Pieces that are inserted into values where they are invalid, or nearly.
PIECES = """
    NaN -NaN Inf Infinity -Infinity nan null true false 0 -0 -0.0 -0e5 0e0 1.0 1. .5 +1 01 1e5 1E400 1e-400 1e1000 0e2000 9223372036854775807
    9223372036854775808 -129 128 32768 2147483648 1.239 1.20 123456789012.1 "1.5" "+1.5" "1e3" "NaN" "" " " "\\u0041" "\\ud800" "\\ud83d\\ude00" "\\x41"
    "\\/" "2026-02-28" "2026-02-30" "0000-01-01" "0001-01-01" "10000-01-01" "2026-1-2" "2026-02-28T10:00:00Z" "2026-02-28T24:00:00Z" "2026-02-28T10:00:60Z"
    "2026-02-28T10:00:00.123456789Z" "2026-02-28 10:00:00+02:00" "2026-02-28T10:00:00-13:59" "2026-02-28T10:00:00+19:00" "2026-02-28T10:00Z" "0000-12-31T00:00:00Z"
    "2026-02-28T10:00:00" {} [] [1] [1,"x"] {"c":1} {"c":"x"} {"y":-0} [[]] [{}] [null] , : } { ] [ // /**/ \u00a0 \ufeff \u0001
""".split()  # noqa: SIM905 - more readable than a list


def plan_of(schema: str) -> Plan:
    plan = plan_for(StructType.fromDDL(schema))
    assert plan is not None
    return plan


@pytest.fixture
def plan(spark: SparkSession) -> Plan:
    return plan_of(SCHEMA)


def alone(values: list[bytes], plan: Plan) -> list[Any]:
    """Parse values together, however few they are."""
    return arrow_json._parse_or_nulls(pa.array(values, pa.binary()), plan).to_pylist()


def comparable(row: dict[str, Any]) -> str:
    """Return a text to compare, with the sign of zero, and times as microseconds."""
    time = row["t"]
    if isinstance(time, dt.datetime):
        row["t"] = (time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    return repr(row)


def by_spark(spark: SparkSession, values: list[bytes], schema: str) -> list[str | None]:
    """Parse each value on the slow path; None for an error."""
    rows = [(index, bytearray(value)) for index, value in enumerate(values)]
    return taken(spark.createDataFrame(rows, "offset bigint, value binary"), len(values), schema)


def taken(read: DataFrame, count: int, schema: str) -> list[str | None]:
    """Return the parsed records by offset; None for an error."""
    decoded = value_format("json", schema).decode(read)
    decoded = decoded.withColumn("t", F.unix_micros("t")).where("_error IS NULL")
    parsed: list[str | None] = [None] * count
    for row in decoded.collect():
        seen = row.asDict(recursive=True)
        offset = seen.pop("_record")["offset"]
        del seen["_error"]
        parsed[offset] = comparable(seen)
    return parsed


def random_row(dice: random.Random) -> dict[str, Any]:
    """Return a row that fits the schema."""
    row = {
        "n": dice.randint(-(2**31), 2**31 - 1),
        "big": dice.randint(-(2**63), 2**63 - 1),
        "small": dice.randint(-(2**15), 2**15 - 1),
        "tiny": dice.randint(-128, 127),
        "d": dice.randint(-(10**12) + 1, 10**12 - 1) / 100,
        "x": dice.choice(
            [
                dice.random(),
                dice.uniform(-9e9, 9e9),
                dice.randint(-(2**70), 2**70),
                0,
                1e300 * dice.random(),
            ]
        ),
        "b": dice.random() < 0.5,
        "t": f"{dice.randint(1, 9999):04}-{dice.randint(1, 12):02}-{dice.randint(1, 28):02}T{dice.randint(0, 23):02}:59:07"
        + dice.choice(["Z", ".5Z", ".123456Z", "+02:00", "-11:30", ".25+00:00"]),
        "day": f"{dice.randint(1, 9999):04}-{dice.randint(1, 12):02}-{dice.randint(1, 28):02}",
        "s": {
            "c": dice.choice([1, None]),
            "e": dice.randint(-9999, 9999) / 10,
            "f": dice.choice(["é\n😀", "x"]),
        },
        "a": [1, None, dice.randint(0, 9)],
        "xs": [dice.random(), -0.5],
        "ss": [{}, {"c": 1, "y": dice.random()}, None],
        "other": {"deep": [[{"x": dice.random()}], None, "text"]},
    }
    kept = {name: value for name, value in row.items() if dice.random() < 0.5}
    return {"id": dice.choice(["a", "é", "", 'quo"te', "back\\slash", "tab\t"]), **kept}


def mutated(text: str, dice: random.Random) -> str:
    """Return a text with random insertions, deletions or replaced values, or unchanged."""
    for _ in range(dice.choice([0, 1, 1, 1, 2])):
        position = dice.randrange(len(text) + 1)
        mutation = dice.randrange(4)
        if mutation == 0:
            text = text[:position] + dice.choice(PIECES) + text[position:]
        elif mutation == 1:
            text = text[:position] + text[position + dice.randint(1, 4) :]
        else:
            colons = [index for index, letter in enumerate(text) if letter == ":"]
            if colons:
                start = dice.choice(colons) + 1
                ends = [index for index in range(start, len(text)) if text[index] in ",}"]
                text = (
                    text[:start]
                    + dice.choice(PIECES)
                    + text[dice.choice(ends[:3] or [len(text)]) :]
                )
    return text


@pytest.mark.parametrize("schema", [SCHEMA, WITHOUT_DECIMALS], ids=["with decimals", "without"])
@pytest.mark.parametrize("rounds", [400, pytest.param(10_000, marks=pytest.mark.long)])
def test_proven_values_equal_what_spark_parses(
    spark: SparkSession, rounds: int, schema: str
) -> None:
    dice, plan = random.Random(rounds), plan_of(schema)
    texts = [json.dumps(random_row(dice), ensure_ascii=dice.random() < 0.2) for _ in range(rounds)]
    values = [mutated(text, dice).encode("utf-8", "surrogatepass") for text in texts]
    values += [*GOOD, *(value for value, _ in BAD)]
    slow = by_spark(spark, values, schema)
    proven = 0
    for value, expected in zip(values, slow, strict=True):
        (parsed,) = alone([value], plan)
        if parsed is not None:
            proven += 1
            assert comparable(parsed) == expected, value
    taken = sum(row is not None for row in slow)
    # Both kinds of values occurred.
    assert rounds / 8 < proven <= taken < len(values)


@pytest.mark.parametrize(
    "value",
    [
        b'{"id":"a","unknown":NaN}',
        b'{"id":"a","unknown":[1, -Infinity]}',
        b'{"id":"a","x":-0}',
        b'{"id":"a","xs":[1,-0.0]}',
        b'{"id":"a","d":"+1.5"}',
        b'{"id":"a","\\u0064":"+1.5"}',
        b'{"id":"a","s":{"e" : "+1.5"}}',
        b'{"id":"a","d":0e2000}',
        b'{"id":"a","t":"9999-12-31T23:59:59-05:00"}',
        b'{"id":"a","t":"9999-12-31T12:00:00Z"}',
        b'{"id":"a","t":"0001-01-01T00:00:00+05:00"}',
        b'{"id":"a"}{"id":"b"}',
        b'{"id":"a"} {"id":"b"}',
        b'\xef\xbb\xbf{"id":"a"}',
        b'{"id":"\xff"}',
        b'{"unknown":"\xff","id":"a"}',
        b'{"id":"a","unknown":' + b"[" * 1_001 + b"]" * 1_001 + b"}",
        b'{"id":"a","unknown":' + b"1" * 1_001 + b"}",
        b'{"id":"a","' + b"n" * 50_001 + b'":1}',
        b'{"id":null}',
        b"{}",
        b"",
    ],
    ids=lambda value: repr(value[:30]),
)
def test_doubtful_values_are_left_to_spark(plan: Plan, value: bytes) -> None:
    good = b'{"id":"a"}'
    assert alone([value], plan) == [None]
    assert alone([good, good], plan)[0]["id"] == "a"


@pytest.mark.parametrize(("precision", "scale"), [(38, 2), (38, 18), (38, 38), (30, 10), (20, 20)])
def test_decimal_with_too_many_digits_is_not_proven(
    spark: SparkSession, precision: int, scale: int
) -> None:
    """Arrow multiplies by ten to the scale in 128 bits, and does not detect an overflow."""
    plan = plan_of(f"d decimal({precision},{scale}), a array<struct<d: decimal(5,1)>>")
    dice = random.Random(scale)
    whole = [dice.randrange(10 ** (precision - 1), 10**precision) for _ in range(100)]
    # These fit into 128 bits.
    whole += [(2**128 * turn + 9 * 10 ** (precision - 1)) // 10**scale + 1 for turn in range(1, 10)]
    values = [f'{{"d":{sign}{number}}}'.encode() for number in whole for sign in ("", "-")]
    assert [value for value in values if alone([value], plan) != [None]] == []
    if scale <= 18:
        assert alone([b'{"d":1.5}'], plan)[0]["d"] == Decimal("1.5")


def test_the_last_day_is_that_of_the_time_zone(spark: SparkSession) -> None:
    texts = [
        "0001-01-01T06:00:00Z",
        "0001-01-02T00:00:00-05:00",
        "9998-12-31T23:59:59-13:59",
        "9999-12-31T12:00:00Z",
    ]
    values = [f'{{"id":"a","t":"{text}"}}'.encode() for text in texts]
    plan = plan_of("id string NOT NULL, t timestamp")
    fast = [row and comparable(row) for row in (alone([value], plan)[0] for value in values)]
    assert [row is not None for row in fast] == [False, True, True, False]
    try:
        for zone in ("Pacific/Kiritimati", "America/Los_Angeles"):
            spark.conf.set("spark.sql.session.timeZone", zone)
            slow = by_spark(spark, values, "id string NOT NULL, t timestamp")
            assert None in slow
            assert all(row in (None, other) for row, other in zip(fast, slow, strict=True))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_zero_bytes_and_null_between_objects_are_no_candidates(plan: Plan) -> None:
    """Some releases stop reading at a zero byte, and for null they need the enclosing object."""
    texts = [
        '{"id":"a"}{"id":"b"}\0}',
        '{"id":"a"} null{}',
        '{"id":"c","a":null}',
        '{"id":"\\u0000"}',
    ]
    without_decimals = plan_of("id string")
    assert arrow_json._candidates(pa.array(texts), without_decimals).tolist() == [
        False,
        False,
        True,
        True,
    ]
    assert arrow_json._candidates(pa.array(texts), plan).tolist() == [False, False, True, False]


def test_no_object_continues_across_values(plan: Plan) -> None:
    """Try parts of objects that are complete when they are joined, and values with two objects."""
    dice, parsed = random.Random(7), 0
    whole = [
        '{"id":"a"}',
        '{"id":"b","n":2}',
        '{"id":"a","s":{"c":1}}',
        '{"id":"}","ss":[{},{"c":1}]}',
        "{}",
    ]
    for _ in range(1_000):
        text = "".join(dice.choice(whole) for _ in range(dice.randint(1, 3)))
        cuts = sorted(dice.sample(range(len(text) + 1), dice.randint(0, 2)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        values = [
            dice.choice([piece, piece, "{" + piece, piece + "}"]).encode() for piece in pieces
        ]
        for value, together in zip(values, alone(values, plan), strict=True):
            if together is not None:
                parsed += 1
                assert alone([value], plan) == [together]
                assert json.loads(value)["id"] == together["id"]
    assert parsed > 20


def test_one_bad_value_leaves_most_others_proven(plan: Plan) -> None:
    values = [json.dumps({"id": str(number), "n": number}).encode() for number in range(3_200)]
    values[17] = b'{"id":"x","n":"text"}'
    values[18] = None  # type: ignore[call-overload]
    values[2_000] = b'{"id":"x","x":NaN}'
    parsed = parse(pa.array(values, pa.binary()), plan).to_pylist()
    proven = [number for number, row in enumerate(parsed) if row is not None]
    assert all(parsed[number]["n"] == number for number in proven)
    assert proven == [number for number in range(200, 3_200) if number != 2_000]
    assert (
        parse(pa.array(values[100 : 100 + FEWEST - 1], pa.binary()), plan).null_count == FEWEST - 1
    )


@pytest.mark.parametrize(
    "schema",
    [
        "a binary",
        "a map<string, int>",
        "a float",
        "a timestamp_ntz",
        "a array<date>",
        "a struct<b: int NOT NULL>",
        "a struct<b: int, B: int>",
        "ID string",
        # JSON has more than one way to write these names without \u.
        "`a/b` decimal(5,1)",
        'a struct<`b"c`: decimal(5,1)>',
    ],
)
def test_schemas_with_other_types_are_left_to_spark(spark: SparkSession, schema: str) -> None:
    assert plan_for(StructType.fromDDL(f"id string, {schema}")) is None
    assert value_format("json", f"id string, {schema}").proven_column() is None


def test_a_schema_without_fields_is_left_to_spark(spark: SparkSession) -> None:
    assert plan_for(StructType()) is None


def test_custom_time_format_is_left_to_spark(spark: SparkSession) -> None:
    assert value_format("json", "id string", timestampFormat="yyyy").proven_column() is None
    assert value_format("json", "id string", ignoreNullFields=False).proven_column() is not None


def test_reader_parses_values(
    spark: SparkSession, shared_broker: LocalBroker, topic_name: str
) -> None:
    create(shared_broker.bootstrap, topic_name, partitions=1)
    send(
        shared_broker.bootstrap,
        topic_name,
        [*({"n": number} for number in range(200)), b'{"n":1.5}', None],
    )

    def read(column: str) -> list[Any]:
        reader = spark.read.format("millstream").schema(f"offset bigint, {column} struct<n: int>")
        reader = reader.option("kafka.bootstrap.servers", shared_broker.bootstrap)
        return sorted(reader.option("subscribe", topic_name).load().collect())

    parsed = {row.offset: row[PROVEN].n for row in read(PROVEN) if row[PROVEN] is not None}
    assert parsed and all(offset == n for offset, n in parsed.items())
    left = {row.offset for row in read(UNPROVEN)}
    assert left == set(range(202)) - set(parsed) >= {200, 201}


def test_all_types_come_through_spark_as_they_were_parsed(
    spark: SparkSession, shared_broker: LocalBroker, topic_name: str
) -> None:
    create(shared_broker.bootstrap, topic_name, partitions=1)
    dice = random.Random(11)
    values = [json.dumps(random_row(dice), ensure_ascii=False).encode() for _ in range(300)]
    values[7], values[8] = b'{"n":1}', b'{"id":"a","d":1.239}'
    send(shared_broker.bootstrap, topic_name, values)
    columns = StructType.fromDDL("offset bigint, value binary").add(
        PROVEN, StructType.fromDDL(SCHEMA)
    )
    reader = spark.read.format("millstream").schema(columns)
    reader = reader.option("kafka.bootstrap.servers", shared_broker.bootstrap).option(
        "subscribe", topic_name
    )
    read = reader.load()
    assert read.where(F.col(PROVEN).isNotNull()).count() > 100
    assert taken(read, len(values), SCHEMA) == by_spark(spark, values, SCHEMA)


def every_flow(pipeline: Pipeline) -> list[Flow]:
    declared = list(pipeline.flows.values())
    return [*declared, *dead_letter_flows(pipeline, declared)]


def column_read(spark: SparkSession, pipeline: Pipeline, flow: Flow) -> str | None:
    """Return which of the two columns the reader requests."""
    plan = Frames(spark, pipeline).build(flow)._jdf.queryExecution().analyzed().toString()
    source = next(line for line in plan.splitlines() if "PythonTable" in line)
    return next((name for name in (UNPROVEN, PROVEN) if name in source), None)


@pytest.mark.parametrize(("policy", "column"), [("legacy", None), ("CORRECTED", PROVEN)])
def test_session_with_legacy_time_rules_is_left_to_spark(
    spark: SparkSession, policy: str, column: str | None
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.legacy.timeParserPolicy", policy)
    pipeline = Pipeline("rules", bootstrap="127.0.0.1:1")
    pipeline.stream("rows", topic="rows", schema="id string, at timestamp")
    pipeline.sql("all", "SELECT * FROM rows", to=to_topic("out"))
    assert column_read(session, pipeline, pipeline.flows["all"]) == column


def test_pipeline_reads_proven_and_unproven_values_without_loss(
    spark: SparkSession, shared_broker: LocalBroker, topic_name: str, tmp_path: Path
) -> None:
    bootstrap, out = shared_broker.bootstrap, f"{topic_name}-out"
    create(bootstrap, topic_name, partitions=1)
    good = [
        {"id": str(number), "n": number, "at": "2026-11-16T10:00:00Z"} for number in range(1_500)
    ]
    doubted = [{"id": "doubted", "n": -1, "at": 1_700_000_000}] * 3
    bad = [b'{"id":"x","n":"text"}', b'{"n":1}', b'{"id":"x","n":1,"other":NaN}', b"\xff"]
    rows = [*good, *doubted, *bad]
    random.Random(3).shuffle(rows)
    send(bootstrap, topic_name, rows)
    pipeline = Pipeline(topic_name, bootstrap=bootstrap)
    pipeline.stream("rows", topic=topic_name, schema="id string NOT NULL, n int, at timestamp")
    pipeline.sql("all", "SELECT id, n, unix_seconds(at) AS at FROM rows", to=to_topic(out))
    assert [column_read(spark, pipeline, flow) for flow in every_flow(pipeline)] == [
        PROVEN,
        UNPROVEN,
    ]
    run_once(pipeline, spark, tmp_path)
    seconds = 1_794_823_200
    expected = [{**row, "at": seconds} for row in good] + doubted
    assert sorted(map(repr, received(bootstrap, out))) == sorted(map(repr, expected))
    assert sorted(value for _, value in records(bootstrap, f"{topic_name}.dlq")) == sorted(bad)
