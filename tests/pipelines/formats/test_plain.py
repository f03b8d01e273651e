"""String and raw values to columns and back."""

from __future__ import annotations

import pytest

from millstream.pipelines.errors import PipelineError
from millstream.pipelines.formats.registry import value_format
from support.pipelines.avro_values import decoded


def test_string_and_raw_keep_the_columns_of_the_record(spark):
    values: list[bytes | None] = ["é".encode(), b"\xff", None]
    rows = decoded(spark, value_format("string"), values)
    assert [(row["value"], row["_error"]) for row in rows] == [
        ("é", None),
        (None, "the value is not valid UTF-8"),
        (None, None),
    ]
    assert rows[1]["_record"]["value"] == b"\xff"
    rows = decoded(spark, value_format("raw"), values, tombstones="error")
    assert [(row["value"], row["offset"], row["_error"]) for row in rows] == [
        (bytearray("é".encode()), 0, None),
        (bytearray(b"\xff"), 1, None),
        (None, 2, "the value is null"),
    ]


def test_string_and_raw_write_the_sink_columns_of_rows(spark):
    frame = spark.createDataFrame(
        [("k", "v", "t", 1)], "key string, value string, topic string, other int"
    )
    for name in ("string", "raw"):
        (record,) = value_format(name).encode(frame).collect()
        assert (bytes(record.key), bytes(record.value), record.topic) == (b"k", b"v", "t")
        assert "other" not in record
    (record,) = (
        value_format("string").encode(frame.selectExpr("other AS value"), key="value").collect()
    )
    assert (bytes(record.key), bytes(record.value)) == (b"1", b"1")
    with pytest.raises(PipelineError, match="writes bytes or text, but `value` is integer"):
        value_format("raw").encode(frame.selectExpr("other AS value"))
    with pytest.raises(PipelineError, match="needs a column `value`"):
        value_format("raw").encode(frame.select("key"))
