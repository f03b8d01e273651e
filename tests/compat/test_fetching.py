"""Waiting fetches, fetch sessions (KIP-227), deleted topics and records under a reader, by raw
frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from compat.crafted import base_offset_of, batch
from compat.raw_client import RawConnection, read_answer
from compat.raw_requests import (
    UNKNOWN_ID,
    delete_records,
    delete_topics,
    errors,
    fetch,
    produce,
    stored,
    values,
)
from compat.topics import topic_id
from millstream.core.errors import ErrorCode as E
from millstream.local.broker import LocalBroker
from millstream.wire.schema import Struct

# Longer than a raw connection waits: an answer that comes only when the time is over fails the
# test.
FOREVER_MS = 100_000


@pytest.fixture
def other(shared_broker: LocalBroker) -> Any:
    with RawConnection(shared_broker.bootstrap) as made:
        yield made


def append(connection: RawConnection, topic: str, records: bytes | None = None, **how: Any) -> None:
    answer = connection.call("Produce", 9, produce(topic, records or batch(), **how))
    assert errors(answer) == [0], answer


# ---- waiting ----


def test_a_waiting_fetch_is_answered_when_records_come(
    connection: RawConnection, other: RawConnection, new_topic: Callable[..., str]
):
    topic = new_topic()
    connection.send("Fetch", 12, fetch(topic, min_bytes=1, max_wait_ms=FOREVER_MS))
    append(other, topic)
    assert stored(read_answer("Fetch", 12, connection.receive()))


def test_a_waiting_fetch_waits_for_its_least_bytes(
    connection: RawConnection, other: RawConnection, new_topic: Callable[..., str]
):
    topic = new_topic()
    sent = batch([(None, b"x" * 100)])
    connection.send("Fetch", 12, fetch(topic, min_bytes=3 * len(sent), max_wait_ms=FOREVER_MS))
    for _ in range(3):
        append(other, topic, sent)
    assert len(stored(read_answer("Fetch", 12, connection.receive()))) == 3 * len(sent)


def test_a_waiting_fetch_ends_with_its_time(
    connection: RawConnection, new_topic: Callable[..., str]
):
    topic = new_topic()
    append(connection, topic)
    answer = connection.call("Fetch", 12, fetch(topic, 0, min_bytes=1 << 20, max_wait_ms=300))
    assert stored(answer), "what there is must come when the time is over"


def test_a_waiting_fetch_hears_of_any_of_its_partitions(
    connection: RawConnection, other: RawConnection, new_topic: Callable[..., str]
):
    topic = new_topic(3)
    rows = [{"partition": p, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for p in range(3)]
    asked = fetch(None, min_bytes=1, max_wait_ms=FOREVER_MS)
    asked.topics = [_topic(topic, rows)]  # type: ignore[attr-defined]
    connection.send("Fetch", 12, asked)
    append(other, topic, partition=2)
    answer = read_answer("Fetch", 12, connection.receive())
    assert [bool(data) for data in values(answer, "records")] == [False, False, True]


def _topic(name: str, rows: list[dict[str, int]]) -> Struct:
    from millstream.wire.messages.fetch import FetchPartition, FetchTopic

    return FetchTopic(topic=name, partitions=[FetchPartition(**row) for row in rows])


def test_a_waiting_fetch_is_told_that_its_topic_is_gone(
    connection: RawConnection,
    other: RawConnection,
    shared_broker: LocalBroker,
    new_topic: Callable[..., str],
):
    topic = new_topic()
    identity = topic_id(shared_broker.bootstrap, topic)
    connection.send("Fetch", 13, fetch(identity, min_bytes=1, max_wait_ms=FOREVER_MS))
    assert errors(other.call("DeleteTopics", 6, delete_topics(topic))) == [0]
    failed = set(errors(read_answer("Fetch", 13, connection.receive()))) - {0}
    # Kafka says one or the other, depending on who notices first.
    assert failed <= {E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_TOPIC_ID} and failed


def test_a_fetch_of_a_closed_connection_is_forgotten(
    shared_broker: LocalBroker, other: RawConnection, new_topic: Callable[..., str]
):
    topic = new_topic()
    for _ in range(20):
        with RawConnection(shared_broker.bootstrap) as leaving:
            leaving.send("Fetch", 12, fetch(topic, min_bytes=1, max_wait_ms=FOREVER_MS))
    append(other, topic)
    assert stored(other.call("Fetch", 12, fetch(topic)))


def test_records_below_the_log_start_are_out_of_range(
    connection: RawConnection, new_topic: Callable[..., str]
):
    topic = new_topic()
    for _ in range(5):
        append(connection, topic, batch([(b"k", b"v")] * 2))
    deleted = connection.call("DeleteRecords", 2, delete_records(topic, 3))
    assert values(deleted, "low_watermark") == [3]
    for offset in (0, 2):
        assert errors(connection.call("Fetch", 12, fetch(topic, offset))) == [
            0,
            E.OFFSET_OUT_OF_RANGE,
        ]
    answer = connection.call("Fetch", 12, fetch(topic, 3))
    assert values(answer, "log_start_offset") == [3]
    assert base_offset_of(stored(answer)) == 2  # batches leave whole


# ---- sessions ----


class Session:
    """A fetch session over one partition that has ten records."""

    def __init__(self, connection: RawConnection, topic: str | bytes, version: int = 12) -> None:
        self.connection = connection
        self.topic = topic
        self.version = version
        answer = connection.call("Fetch", version, fetch(topic, session=(0, 0)))
        self.id = answer.session_id
        assert self.id != 0

    def ask(self, epoch: int, topic: str | bytes | None = None, offset: int = 0, **how: Any) -> Any:
        """(error, session id kept, [(error, has records) of the partitions told])."""
        request = fetch(topic, offset, session=(self.id, epoch), **how)
        answer = self.connection.call("Fetch", how.pop("version", self.version), request)
        assert answer.session_id in (0, self.id)
        rows = [row for one in answer.responses for row in one.partitions]
        told = sorted((row.error_code, bool(row.records)) for row in rows)
        return answer.error_code, answer.session_id == self.id, told


READ = (0, True, [(0, True)])
NOTHING_NEW: tuple[int, bool, list[Any]] = (0, True, [])
LOST: tuple[int, bool, list[Any]] = (E.FETCH_SESSION_ID_NOT_FOUND, False, [])
WRONG_EPOCH: tuple[int, bool, list[Any]] = (E.INVALID_FETCH_SESSION_EPOCH, False, [])


@pytest.fixture
def topic(connection: RawConnection, new_topic: Callable[..., str]) -> str:
    name = new_topic()
    append(connection, name, batch([(b"k", b"v")] * 10))
    return name


@pytest.fixture
def session(connection: RawConnection, topic: str) -> Session:
    return Session(connection, topic)


def test_a_session_remembers_its_partitions(session: Session):
    assert session.ask(1) == READ
    assert session.ask(2) == READ


def test_a_session_tells_only_what_is_new(session: Session):
    assert session.ask(1, session.topic, 10) == NOTHING_NEW
    assert session.ask(2) == NOTHING_NEW
    append(session.connection, str(session.topic))
    assert session.ask(3) == READ


def test_a_wrong_epoch_is_refused_and_leaves_the_session_alone(session: Session):
    assert session.ask(5) == WRONG_EPOCH
    assert session.ask(1) == READ
    assert session.ask(1) == WRONG_EPOCH


def test_a_session_is_closed_by_epoch_minus_one(session: Session):
    assert session.ask(-1) == (0, False, [])
    assert session.ask(1) == LOST


def test_a_new_session_takes_the_place_of_the_old_one(session: Session):
    again = session.connection.call("Fetch", 12, fetch(session.topic, session=(session.id, 0)))
    assert again.session_id not in (0, session.id)
    assert session.ask(1) == LOST


def test_a_session_without_partitions_ends(session: Session):
    assert session.ask(1, forget=[(session.topic, [0])]) == (0, False, [])
    assert session.ask(2) == LOST


def test_errors_are_told_again_until_they_are_gone(session: Session):
    out_of_range = (0, True, [(E.OFFSET_OUT_OF_RANGE, False)])
    assert session.ask(1, session.topic, 99) == out_of_range
    assert session.ask(2) == out_of_range
    assert session.ask(3, session.topic, 0) == READ


def test_an_unknown_topic_joins_a_session_with_its_error(session: Session):
    both = (0, True, [(0, True), (E.UNKNOWN_TOPIC_OR_PARTITION, False)])
    assert session.ask(1, f"{session.topic}-not") == both
    assert session.ask(2) == both


def test_a_session_by_id(connection: RawConnection, shared_broker: LocalBroker, topic: str):
    session = Session(connection, topic_id(shared_broker.bootstrap, topic), 18)
    assert session.ask(1) == READ
    both = (0, True, [(0, True), (E.UNKNOWN_TOPIC_ID, False)])
    assert session.ask(2, UNKNOWN_ID) == both
    assert session.ask(3, forget=[(UNKNOWN_ID, [0])]) == READ
    assert session.ask(4, forget=[(session.topic, [0])]) == (0, False, [])


def test_a_session_may_not_change_from_names_to_ids(
    session: Session, shared_broker: LocalBroker, connection: RawConnection
):
    identity = topic_id(shared_broker.bootstrap, str(session.topic))
    answer = connection.call("Fetch", 18, fetch(identity, session=(session.id, 1)))
    assert (answer.error_code, answer.session_id) == (E.FETCH_SESSION_TOPIC_ID_ERROR, 0)


def test_a_session_belongs_to_no_connection(session: Session, other: RawConnection):
    answer = other.call("Fetch", 12, fetch(None, session=(session.id, 1)))
    assert (answer.session_id, bool(stored(answer))) == (session.id, True)
