"""What does not parse, in its dead-letter topic: the bytes as they were, the reason, the origin, each once."""

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

# Each run of a query is many processes; give them time on a busy machine.
pytestmark = pytest.mark.timeout(300)
SCHEMA = "id string NOT NULL, amount decimal(12,2)"


@pytest.fixture
def bury(spark, stream, shared_broker, admin, topic: str, tmp_path: Path):
    """Write the dead letters of the topic that there are now; again, for those that came since."""

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
    found = [dead_letter(one) for one in consume(bootstrap, topic + ".dlq")]
    return sorted(found, key=lambda one: (one.partition or 0, one.offset or 0))


def test_what_does_not_parse_is_kept_with_its_reason_and_origin(shared_broker, admin, topic: str, bury):
    headers = [("trace", b"\x00\xff"), ("trace", None), ("dlq.redriven", b"2"), ("dlq.reason", b"of old")]
    bad = b'{"id":"a","amount":1.239}'
    with Producer(shared_broker.bootstrap) as producer:
        for number in range(50):
            producer.send(topic, f'{{"id":"{number}"}}', partition=number % 2)
        producer.send(topic, bad, key=b"\xff", headers=headers, partition=1, timestamp_ms=1_700_000_000_123)
        producer.send(topic, b"\xff\x00", partition=0)
        producer.send(topic, None, partition=0)
        producer.send(topic, b'{"id":"a","amount":"\\ud800"}', partition=0)  # half a character
        producer.send(topic, None, key="gone", partition=0)  # a tombstone, with which nothing is wrong
    bury()
    rows = letters(shared_broker.bootstrap, topic)
    assert [
        (one.record.key, one.record.value, one.topic, one.partition, one.offset, one.reason) for one in rows
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


def test_every_bad_record_is_written_once_and_comes_back_once(shared_broker, admin, topic: str, bury):
    with Producer(shared_broker.bootstrap) as producer:
        producer.send(topic, "one", partition=0)
    bury()
    with Producer(shared_broker.bootstrap) as producer:
        producer.send(topic, "two", partition=1)
    bury()
    assert [one.record.value for one in letters(shared_broker.bootstrap, topic)] == [b"one", b"two"]
    assert execute(admin, RedriveRequest(topic + ".dlq")).count == 2
    bury()  # they are still bad, and the count tells
    rows = letters(shared_broker.bootstrap, topic)
    assert [(one.record.value, one.offset, one.redriven) for one in rows] == [
        (b"one", 0, 0),
        (b"one", 1, 1),
        (b"two", 0, 0),
        (b"two", 1, 1),
    ]
    # The place of the original stays on the record: it decides which record of a key is newer.
    assert [one.first and one.first.offset for one in rows] == [None, 0, None, 0]


def test_a_record_as_large_as_its_topic_allows_has_room(shared_broker, admin, topic: str, bury):
    admin.configs.alter("topic", topic, {"max.message.bytes": "20000"})
    with Producer(shared_broker.bootstrap) as producer:
        producer.send(topic, b"x" * 19_900, partition=0)
    bury()
    (one,) = letters(shared_broker.bootstrap, topic)
    assert len(one.record.value or b"") == 19_900
