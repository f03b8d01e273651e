"""Bad records in their dead-letter topic: the original bytes, the reason, the origin, each once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream.client import Producer, consume
from millstream.client.dead_letters.letters import DeadLetter, dead_letter
from millstream.client.dead_letters.redrive import RedriveRequest, execute
from millstream.pipelines.dead_letters.queries import (
    SOURCE_OPTIONS,
    create_topic,
    query_name,
    start,
)
from millstream.pipelines.formats.registry import value_format

# Each run of a query starts many processes, which need time on a busy machine.
pytestmark = pytest.mark.timeout(300)
SCHEMA = "id string NOT NULL, amount decimal(12,2)"


@pytest.fixture
def write_dead_letters(spark, stream, shared_broker, admin, topic: str, tmp_path: Path):
    """Write the dead letters of the topic, and later those of new records."""

    def run(format: Any = None) -> None:
        create_topic(admin, topic + ".dlq", topic)
        records = stream(topic, startingOffsets="earliest", **SOURCE_OPTIONS)
        query, sink = start(
            records,
            format or value_format("json", SCHEMA),
            bootstrap=shared_broker.bootstrap,
            pipeline="revenue",
            flow="totals",
            stream=topic,
            topic=topic + ".dlq",
            checkpoint=str(tmp_path / "checkpoint"),
            once=True,
        )
        assert query.name == query_name("revenue", topic) == f"revenue.dlq.{topic}"
        assert query.awaitTermination(250)
        sink.close()

    return run


def letters(bootstrap: str, topic: str) -> list[DeadLetter]:
    rejected = [dead_letter(record) for record in consume(bootstrap, topic + ".dlq")]
    return sorted(rejected, key=lambda letter: (letter.partition or 0, letter.offset or 0))


def test_bad_records_are_kept_with_reason_and_origin(
    shared_broker, admin, topic: str, write_dead_letters
):
    headers = [
        ("trace", b"\x00\xff"),
        ("trace", None),
        ("dlq.redriven", b"2"),
        ("dlq.reason", b"of old"),
    ]
    bad = b'{"id":"a","amount":1.239}'
    with Producer(shared_broker.bootstrap) as producer:
        for number in range(50):
            producer.send(topic, f'{{"id":"{number}"}}', partition=number % 2)
        producer.send(
            topic, bad, key=b"\xff", headers=headers, partition=1, timestamp_ms=1_700_000_000_123
        )
        producer.send(topic, b"\xff\x00", partition=0)
        producer.send(topic, None, partition=0)
        # half of a surrogate pair
        producer.send(topic, b'{"id":"a","amount":"\\ud800"}', partition=0)
        # A tombstone is not an error.
        producer.send(topic, None, key="gone", partition=0)
    write_dead_letters()
    rows = letters(shared_broker.bootstrap, topic)
    assert [
        (
            letter.record.key,
            letter.record.value,
            letter.topic,
            letter.partition,
            letter.offset,
            letter.reason,
        )
        for letter in rows
    ] == [
        (None, b"\xff\x00", topic, 0, 25, "not UTF-8: byte 0xff at position 0"),
        (None, None, topic, 0, 26, "the value is null"),
        (
            None,
            b'{"id":"a","amount":"\\ud800"}',
            topic,
            0,
            27,
            "field 'amount': \"\\ud800\" is text, not decimal(12,2)",
        ),
        (
            b"\xff",
            bad,
            topic,
            1,
            25,
            "field 'amount': 1.239 has more than the 2 decimals of decimal(12,2)",
        ),
    ]
    last = rows[-1]
    assert (last.timestamp_ms, last.redriven) == (1_700_000_000_123, 2)
    assert (last.pipeline, last.flow) == ("revenue", "totals")
    assert last.headers == (("trace", b"\x00\xff"), ("trace", None))


def test_bad_records_are_written_once_and_redriven_once(
    shared_broker, admin, topic: str, write_dead_letters
):
    with Producer(shared_broker.bootstrap) as producer:
        producer.send(topic, "one", partition=0)
    write_dead_letters()
    with Producer(shared_broker.bootstrap) as producer:
        producer.send(topic, "two", partition=1)
    write_dead_letters()
    assert [letter.record.value for letter in letters(shared_broker.bootstrap, topic)] == [
        b"one",
        b"two",
    ]
    assert execute(admin, RedriveRequest(topic + ".dlq")).count == 2
    # The records are still bad, and the count shows it.
    write_dead_letters()
    rows = letters(shared_broker.bootstrap, topic)
    assert [(letter.record.value, letter.offset, letter.redriven) for letter in rows] == [
        (b"one", 0, 0),
        (b"one", 1, 1),
        (b"two", 0, 0),
        (b"two", 1, 1),
    ]
    # The original position stays on the record. It decides which record of a key is newer.
    assert [letter.first and letter.first.offset for letter in rows] == [None, 0, None, 0]


def test_record_of_maximum_size_fits_the_dead_letter_topic(
    shared_broker, admin, topic: str, write_dead_letters
):
    admin.configs.alter("topic", topic, {"max.message.bytes": "20000"})
    with Producer(shared_broker.bootstrap) as producer:
        producer.send(topic, b"x" * 19_900, partition=0)
    write_dead_letters()
    (letter,) = letters(shared_broker.bootstrap, topic)
    assert len(letter.record.value or b"") == 19_900
