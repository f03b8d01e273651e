"""The writer of the sink: every batch once, on a real broker."""

from __future__ import annotations

import threading

import pytest

from millstream.client.connection import Connection
from millstream.client.protocol import Protocol
from millstream.spark.sink.failures import (
    RecordTooLarge,
)
from millstream.spark.sink.writer import Writer
from support.spark.sink_parts import batch_of, destination, owner
from support.spark.sink_world import DroppingProxy, committed, create_topic, start_behind


def test_record_that_the_broker_rejects_fails_the_write(
    shared_broker, protocol, topic_name
) -> None:
    create_topic(shared_broker.bootstrap, topic_name, 1, **{"max.message.bytes": "1000"})
    mine = owner(protocol, topic_name)
    mine.fence()
    writer = Writer(destination(shared_broker.bootstrap, protocol, [topic_name], mine))
    with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes"):
        writer.send(topic_name, 0, *batch_of(b"x" * 2000))
        writer.finish()
    writer.close()


def test_lost_produce_responses_repeat_nothing(broker, topic_name) -> None:
    with DroppingProxy() as proxy:
        start_behind(proxy, broker)
        create_topic(proxy.bootstrap, topic_name, 2)
        protocol = Protocol(Connection(proxy.bootstrap, timeout_s=5))
        mine = owner(protocol, topic_name)
        mine.fence()
        writer = Writer(destination(proxy.bootstrap, protocol, [topic_name], mine))
        for index in range(60):
            if index in (5, 20, 41):
                proxy.drop_answers(0, times=1)
            writer.send(topic_name, index % 2, *batch_of(b"%d" % index))
        writer.finish()
        mine.end(commit=True)
        assert proxy.dropped == 3
        expected = [b"%d" % i for i in range(0, 60, 2)] + [b"%d" % i for i in range(1, 60, 2)]
        assert committed(proxy.bootstrap, topic_name) == expected
        protocol.close()


def test_restarted_broker_gets_every_batch_once(broker, topic_name) -> None:
    made = broker({})
    create_topic(made.bootstrap, topic_name, 1)
    protocol = Protocol(Connection(made.bootstrap))
    mine = owner(protocol, topic_name)
    mine.fence()
    writer = Writer(destination(made.bootstrap, protocol, [topic_name], mine))
    for index in range(40):
        if index == 20:
            made.kill()
            threading.Thread(target=made.restart).start()
        writer.send(topic_name, 0, *batch_of(b"%d" % index))
    writer.finish()
    mine.end(commit=True)
    assert committed(made.bootstrap, topic_name) == [b"%d" % index for index in range(40)]
    protocol.close()
