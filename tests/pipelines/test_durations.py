"""Durations and watermarks as people write them."""

from __future__ import annotations

import pytest

from millstream.pipelines import PipelineError
from millstream.pipelines.durations import Watermark, parse_duration_ms, parse_watermark


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1 minute", 60_000),
        ("90 seconds", 90_000),
        ("1 hour 30 minutes", 5_400_000),
        ("250ms", 250),
        ("2 Days", 172_800_000),
        ("0 seconds", 0),
    ],
)
def test_durations_with_units_are_parsed(text: str, milliseconds: int) -> None:
    assert parse_duration_ms(text) == milliseconds


@pytest.mark.parametrize(
    "text", ["", "minute", "1", "1 fortnight", "-1 minute", "1 minute and more"]
)
def test_invalid_durations_are_rejected_with_an_example(text: str) -> None:
    with pytest.raises(PipelineError, match="write it like '30 seconds'"):
        parse_duration_ms(text)


def test_watermark_has_a_column_and_a_delay() -> None:
    assert parse_watermark("at 1 minute") == Watermark("at", 60_000)
    assert parse_watermark("at 1 minute").delay == "60000 milliseconds"
    with pytest.raises(
        PipelineError, match="'1 minute' is not a watermark; write the column and the delay"
    ):
        parse_watermark("1 minute")
