"""Options are case-insensitive and checked; unknown ones are rejected with the nearest name."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.spark.options import (
    BATCH,
    SINK,
    STREAM,
    OptionError,
    check_batch_positions,
    only_for,
    parse,
    table,
    without_effect,
    without_overridden,
)
from millstream.spark.source.data_loss import warn_without_effect


def test_names_are_case_insensitive_and_values_are_typed():
    options = parse({"SUBSCRIBE": "a, b", "minpartitions": "4", "failondataloss": "FALSE"}, BATCH)
    assert (options["subscribe"], options["minPartitions"], options["failOnDataLoss"]) == (
        ("a", "b"),
        4,
        False,
    )


def test_offsets_are_words_or_json():
    assert parse({"startingOffsets": "Earliest"}, STREAM)["startingOffsets"] == "earliest"
    options = parse({"startingOffsets": '{"t": {"0": 23, "1": -2}}'}, STREAM)
    assert options["startingOffsets"] == {"t": {0: 23, 1: -2}}


def test_connection_settings_and_kafka_aliases_are_parsed(monkeypatch: pytest.MonkeyPatch):
    options = parse(
        {"kafka.bootstrap.servers": "h:1", "kafka.isolation.level": "read_uncommitted"}, BATCH
    )
    assert (options.bootstrap, options["isolationLevel"]) == ("h:1", "read_uncommitted")
    assert parse({"kafka.client.id": "x"}, BATCH).kafka == {"client.id": "x"}
    monkeypatch.setenv("MILLSTREAM_BOOTSTRAP", "other:2")
    assert parse({}, BATCH).bootstrap == "other:2"


def test_only_committed_records_are_read_by_default():
    assert parse({}, STREAM)["isolationLevel"] == "read_committed"


@pytest.mark.parametrize(
    ("text", "millis"),
    [("250", 250), ("15m", 900_000), ("30s", 30_000), ("1h", 3_600_000), ("500ms", 500)],
)
def test_delays_are_milliseconds_or_durations(text: str, millis: int):
    assert parse({"maxTriggerDelay": text}, STREAM)["maxTriggerDelay"] == millis


@pytest.mark.parametrize(
    ("options", "use", "message"),
    [
        ({"startingOffset": "earliest"}, BATCH, "did you mean 'startingOffsets'"),
        ({"frobnicate": "1"}, BATCH, "the options are subscribe"),
        (
            {"maxOffsetsPerTrigger": "10"},
            BATCH,
            "does not apply to a batch read; it is for streams",
        ),
        ({"endingOffsets": "latest"}, STREAM, "does not apply to a stream"),
        ({"minPartitions": "many"}, BATCH, "a whole number above 0"),
        ({"isolationLevel": "dirty"}, BATCH, "read_committed or read_uncommitted"),
        ({"startingOffsets": "newest"}, BATCH, "earliest, latest, or JSON"),
        ({"assign": '{"t": 0}'}, BATCH, 'JSON like {"topic": [0, 1]}'),
        ({"assign": '{"t": ["x"]}'}, BATCH, "'x' is not a whole number"),
        ({"startingOffsets": '{"t": {"0": 1.9}}'}, BATCH, "earliest, latest, or JSON"),
        ({"startingOffsetsByTimestamp": '{"t": {"0": null}}'}, BATCH, "None is not a whole number"),
        (
            {"subscribePattern": "orders["},
            STREAM,
            "a regular expression (unterminated character set",
        ),
        ({"kafka.auto.offset.reset": "earliest"}, BATCH, "see startingOffsets"),
        ({"groupIdPrefix": "x"}, STREAM, "groupId"),
        ({"maxTriggerDelay": "soon"}, STREAM, "15m"),
        ({"kafka.security.protocol": "SASL_SSL"}, STREAM, "TLS and SASL are not available yet"),
        ({"kafka.ssl.ca.location": "ca.pem"}, BATCH, "TLS and SASL are not available yet"),
        ({"kafka.sasl.mechanism": "PLAIN"}, SINK, "use the address of a PLAINTEXT listener"),
    ],
)
def test_invalid_options_are_rejected_with_a_remedy(
    options: dict[str, str], use: str, message: str
):
    with pytest.raises(OptionError) as error:
        parse(options, use)
    assert message in str(error.value)


BATCH_FROM_LATEST = [
    ({"startingOffsets": "latest"}, "'startingOffsets' is latest: a batch read cannot begin there"),
    (
        {"startingOffsets": '{"t": {"0": 3, "1": -1}}'},
        "'startingOffsets' is latest (-1) for t-1: a batch read cannot begin there",
    ),
    ({"endingOffsets": "earliest"}, "'endingOffsets' is earliest: a batch read cannot end there"),
    (
        {"endingOffsets": '{"t": {"0": -2}}'},
        "'endingOffsets' is earliest (-2) for t-0: a batch read cannot end there",
    ),
]


@pytest.mark.parametrize(("options", "message"), BATCH_FROM_LATEST)
def test_batch_read_that_would_always_be_empty_is_rejected(options: dict[str, str], message: str):
    """As Spark's connector does."""
    with pytest.raises(OptionError) as error:
        check_batch_positions(parse(options, BATCH))
    assert message in str(error.value)


def test_batch_read_between_any_other_positions_is_accepted():
    check_batch_positions(parse({}, BATCH))
    check_batch_positions(parse({"startingOffsets": "earliest", "endingOffsets": "latest"}, BATCH))
    options = {"startingOffsets": '{"t": {"0": -2}}', "endingOffsets": '{"t": {"0": -1}}'}
    check_batch_positions(parse(options, BATCH))


@pytest.mark.parametrize(
    ("options", "use", "message"),
    [
        ({"groupId": "g"}, BATCH, "'groupId' has no effect: a batch read commits no offsets"),
        ({"kafka.group.id": "g"}, BATCH, "'kafka.group.id' has no effect: a batch read"),
        (
            {"startingTimestamp": "1", "startingoffsets": "earliest"},
            STREAM,
            "'startingOffsets' has no effect: 'startingTimestamp' overrides",
        ),
        (
            {"endingTimestamp": "1", "endingOffsets": "latest"},
            BATCH,
            "'endingOffsets' has no effect: 'endingTimestamp' overrides",
        ),
        (
            {"maxTriggerDelay": "1s"},
            STREAM,
            "'maxTriggerDelay' has no effect: it needs 'minOffsetsPerTrigger'",
        ),
        (
            {"startingOffsetsByTimestampStrategy": "latest"},
            BATCH,
            "it needs 'startingTimestamp' or",
        ),
        ({"kafka.max.poll.records": "5"}, STREAM, "'kafka.max.poll.records' has no effect"),
        ({"delivery": "at-least-once", "transactionTimeoutMs": "1"}, SINK, "without transactions"),
    ],
)
def test_option_without_effect_has_a_sentence(options: dict[str, str], use: str, message: str):
    [sentence] = without_effect(options, use)
    assert message in sentence


def test_options_with_effect_have_no_sentence():
    assert (
        without_effect({"subscribe": "t", "groupId": "g", "kafka.bootstrap.servers": "h:1"}, STREAM)
        == []
    )
    assert without_effect({"batchAttempts": "2", "transactionTimeoutMs": "1"}, SINK) == []
    [sentence] = without_effect({"batchAttempts": "2"}, SINK, batch_write=True)
    assert "it is for TopicSink" in sentence


def test_option_without_effect_causes_one_warning(capfd: pytest.CaptureFixture[str]):
    for _ in range(3):
        warn_without_effect({"kafka.max.poll.interval.ms": "5"}, STREAM)
    assert capfd.readouterr().err == (
        "millstream: warning: option 'kafka.max.poll.interval.ms' has no effect: "
        "this connector does not use Kafka's Java client\n"
    )


def test_without_overridden_removes_overridden_defaults():
    options = {"startingOffsets": "earliest", "startingTimestamp": "5", "subscribe": "t"}
    assert without_overridden(options) == {"startingTimestamp": "5", "subscribe": "t"}
    assert only_for({"groupId": "g", "minPartitions": "2"}, BATCH) == {"minPartitions": "2"}


def test_every_option_of_the_source_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    for use in (BATCH, STREAM):
        for row in table(use):
            assert f"| `{row.name}` |" in page and row.help in page, row.name
