"""The progress topic of the sink, on a real broker."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from millstream.client.connection import Connection
from millstream.client.protocol import Protocol
from millstream.local.broker import LocalBroker
from millstream.spark.sink.failures import (
    ProgressConflict,
    SinkError,
)
from millstream.spark.sink.progress import Progress, ProgressTopic
from support.spark.sink_parts import owner
from support.spark.sink_world import create_topic


def progress_of(sink: str, batch: int) -> Progress:
    return Progress(sink, "query", batch, f"hash-{batch}", batch + 1, {"t": 3}, 1000)


def test_the_newest_committed_progress_of_a_sink_is_found(
    shared_broker, protocol, topic_name
) -> None:
    topic = ProgressTopic(protocol, Connection(shared_broker.bootstrap), topic_name)
    topic.open(10)
    assert topic.read("one", 10) is None
    mine, other = owner(protocol, f"{topic_name}-1"), owner(protocol, f"{topic_name}-2")
    mine.fence(), other.fence()
    for batch, commit in enumerate((True, True, False)):
        topic.write(progress_of("one", batch), mine.transactional_id, mine.producer, 120.0)
        mine.end(commit=commit)
        topic.write(progress_of("two", batch + 10), other.transactional_id, other.producer, 120.0)
        other.end(commit=True)
    assert topic.read("one", 10) == progress_of("one", 1)
    assert topic.read("two", 10) == progress_of("two", 12)


def test_reading_progress_waits_for_open_transactions_of_others(
    shared_broker: LocalBroker, protocol: Protocol, topic_name: str
) -> None:
    connection = Connection(shared_broker.bootstrap)
    topic = ProgressTopic(protocol, connection, topic_name)
    topic.open(10)
    mine, stranger = owner(protocol, f"{topic_name}-1"), owner(protocol, f"{topic_name}-2")
    mine.fence(), stranger.fence()
    topic.write(progress_of("stranger", 0), stranger.transactional_id, stranger.producer, 120.0)
    topic.write(progress_of("one", 5), mine.transactional_id, mine.producer, 120.0)
    mine.end(commit=True)
    with pytest.raises(ProgressConflict, match="millstream transactions list"):
        topic.read("one", 0.1)

    def end_the_stranger() -> None:
        with closing(Protocol(connection)) as another:
            owner(another, f"{topic_name}-2").fence()

    # Its transaction is aborted before or while the reader waits.
    ending = threading.Thread(target=end_the_stranger)
    ending.start()
    assert topic.read("one", 60) == progress_of("one", 5)
    ending.join()
    assert topic.read("stranger", 10) is None


def test_progress_topic_without_compaction_is_rejected(shared_broker, protocol, topic_name) -> None:
    create_topic(shared_broker.bootstrap, topic_name, 1)
    with pytest.raises(SinkError, match="not compacted"):
        ProgressTopic(protocol, Connection(shared_broker.bootstrap), topic_name).open(10)
