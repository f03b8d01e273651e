"""Start positions, as text and as offsets of a topic."""

from __future__ import annotations

import time

import pytest

from millstream.client import Admin, ClientError, Position, Producer, consume
from millstream.client.consuming.positions import local_moment
from millstream.core.types import TopicPartition


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", Position("earliest")),
        ("latest", Position("latest")),
        ("17", Position("offset", 17)),
        (17, Position("offset", 17)),
        ("-5", Position("last", 5)),
        (-5, Position("last", 5)),
        ("@1700000000000", Position("timestamp", 1_700_000_000_000)),
        ("-90s", Position("timestamp", 1_000_000_000 - 90_000)),
        ("-15m", Position("timestamp", 1_000_000_000 - 900_000)),
        ("-9999999999d", Position("timestamp", 0)),
        ("1969-12-31T23:59:59.998Z", Position("timestamp", 0)),
        ("@99999999999999999999", Position("timestamp", 2**63 - 1)),
        ("2026-03-01T12:00:00Z", Position("timestamp", 1_772_366_400_000)),
        ("2026-03-01T12:00:00.250+01:00", Position("timestamp", 1_772_362_800_250)),
        (Position("offset", 3), Position("offset", 3)),
    ],
)
def test_positions_are_parsed(text, position: Position):
    assert Position.of(text, now_ms=1_000_000_000) == position


@pytest.mark.parametrize(
    "text", ["", "soon", "-", "@", "1.5", "-5x", "2026-13-01", "²", "@²", "0001-01-01"]
)
def test_invalid_position_is_rejected(text: str):
    with pytest.raises(ClientError, match="is not a position to read from"):
        Position.of(text)


@pytest.fixture
def ten_seconds(shared_broker, topic_name: str) -> str:
    """A topic whose partition 0 has ten records, a second apart, and partition 1 none."""
    with Admin(shared_broker.bootstrap) as admin:
        admin.topics.create(topic_name, partitions=2)
    with Producer(shared_broker.bootstrap) as producer:
        for second in range(10):
            producer.send(
                topic_name, str(second), partition=0, timestamp_ms=1_700_000_000_000 + 1000 * second
            )
    return topic_name


@pytest.mark.parametrize(
    ("start", "values"),
    [
        ("earliest", range(10)),
        ("latest", ()),
        (7, (7, 8, 9)),
        (10, ()),
        (99, ()),
        ("-2", (8, 9)),
        ("-50", range(10)),
        ("@1700000003000", range(3, 10)),
        ("@1700000003001", range(4, 10)),
        ("@1700000099000", ()),
    ],
)
def test_reading_starts_at_the_position(shared_broker, ten_seconds: str, start, values):
    records = consume(shared_broker.bootstrap, ten_seconds, start=start)
    assert [record.value for record in records] == [str(value).encode() for value in values]


def test_deleted_offset_starts_at_the_first_remaining(shared_broker, ten_seconds: str):
    with Admin(shared_broker.bootstrap) as admin:
        admin.offsets.delete_records({TopicPartition(ten_seconds, 0): 6})
    assert [record.offset for record in consume(shared_broker.bootstrap, ten_seconds, start=2)] == [
        6,
        7,
        8,
        9,
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2026-03-01T12:00", "2026-03-01T12:00:00+09:00"),
        ("2026-03-01", "2026-03-01T00:00:00+09:00"),
        ("2026-03-01T12:00Z", None),
        ("2026-03-01T12:00+02:00", None),
        ("20260301", None),  # an offset
        ("-15m", None),
        ("latest", None),
    ],
)
def test_time_without_a_zone_is_local(
    text: str, shown: str | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        moment = local_moment(text)
        assert (moment and moment.isoformat()) == shown
        if shown is not None:
            assert Position.of(text) == Position.of(shown)
    finally:
        monkeypatch.undo()
        time.tzset()
