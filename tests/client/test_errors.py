"""The error messages of the client: the problem, and what to do next."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from millstream.client.errors import (
    BrokerUnreachable,
    ClientError,
    TopicExists,
    UnknownTopic,
    nearest,
    refusal,
    translate,
    unknown_topic,
)
from millstream.core.errors import ErrorCode


def test_error_is_one_line_with_the_next_step():
    error = ClientError("the broker\nsaid   no.", hint="ask again")
    assert str(error) == "the broker said no; ask again"
    assert str(ClientError("no")) == "no"


def test_unknown_topic_names_the_nearest_topics():
    error = unknown_topic("ordes", ["payments", "Orders", "customers"])
    assert isinstance(error, UnknownTopic)
    assert str(error) == "topic 'ordes' does not exist; did you mean 'Orders'?"
    assert "millstream topics create zzz" in str(unknown_topic("zzz", ["orders"]))


def test_nearest_keeps_the_case_of_the_known_name():
    assert nearest("RETENTION.MS", ["retention.ms", "segment.ms"])[0] == "retention.ms"


def test_code_of_the_protocol_is_kept():
    error = translate(
        KafkaException(KafkaError(36, "Topic 'a' already exists")),
        doing="create topic 'a'",
        subject="a",
    )
    assert isinstance(error, TopicExists)
    assert error.code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert str(error).startswith("cannot create topic 'a': Topic 'a' already exists; ")
    assert "millstream topics describe a" in str(error)


def test_code_without_a_message_of_the_broker_gets_ours():
    error = translate(KafkaError(19), doing="produce to 'a'")
    assert error.message == "cannot produce to 'a': fewer in-sync replicas than min.insync.replicas"


@pytest.mark.parametrize("name", ["_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE"])
def test_missing_response_is_an_unreachable_broker(name: str):
    assert isinstance(
        translate(KafkaError(getattr(KafkaError, name)), doing="list topics"), BrokerUnreachable
    )


def test_late_record_is_not_an_unreachable_broker():
    """Brokers may have rejected it repeatedly; librdkafka does not report that."""
    error = translate(KafkaError(KafkaError._MSG_TIMED_OUT), doing="produce to 'a'")
    assert not isinstance(error, BrokerUnreachable)
    assert str(error).startswith("cannot produce to 'a': not written in time (")
    assert "too few of its replicas in sync" in error.hint and "`millstream doctor`" in error.hint


def test_numbers_of_local_conditions_are_those_of_librdkafka():
    from millstream.client import errors

    names = [name for name in vars(errors) if name.startswith("LOCAL_")]
    assert len(names) > 5
    assert {name: getattr(errors, name) for name in names} == {
        name: getattr(KafkaError, name.removeprefix("LOCAL")) for name in names
    }


@pytest.mark.parametrize(
    ("code", "reason", "said"),
    [
        (
            ErrorCode.INVALID_CONFIG,
            "Unknown topic config name: retentoin.ms; did you mean retention.ms?",
            "cannot create it: Unknown topic config name: retentoin.ms; did you mean retention.ms?",
        ),
        (  # as Apache Kafka says it
            ErrorCode.INVALID_CONFIG,
            "Unknown topic config name: retentoin.ms",
            "cannot create it: Unknown topic config name: retentoin.ms; did you mean retention.ms?",
        ),
        (
            ErrorCode.INVALID_CONFIG,
            "Unknown topic config name: zzz",
            "cannot create it: Unknown topic config name: zzz; see the names and values of an existing topic: "
            "`millstream configs describe topic TOPIC --all`",
        ),
        (
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "Topic 'a_b' collides with existing topic: a.b",
            "cannot create it: Topic 'a_b' collides with existing topic: a.b; '.' and '_' count as the same in topic "
            "names, because metrics replace one by the other; choose another name",
        ),
    ],
)
def test_next_step_fits_the_reason(code: ErrorCode, reason: str, said: str):
    assert str(refusal(code, doing="create it", subject="a_b", reason=reason)) == said
