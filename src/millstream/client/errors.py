"""Errors of the client: one sentence on the problem, one on what to do next.

``ClientError`` is the base class; the subclasses are those that a program handles. ``translate``
converts an error of confluent-kafka. Its numbers above zero are the codes of the protocol
(``core.errors``), those below zero are conditions of librdkafka.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition

# Conditions that librdkafka reports, with the numbers of its public header. Naming them here avoids
# importing confluent-kafka, which takes longer than the rest of the command line.
LOCAL_TRANSPORT = -195
LOCAL_RESOLVE = -193
LOCAL_MSG_TIMED_OUT = -192
LOCAL_PARTITION_EOF = -191
LOCAL_PURGE_INFLIGHT = -151
LOCAL_PURGE_QUEUE = -152
LOCAL_UNKNOWN_PARTITION = -190
LOCAL_UNKNOWN_TOPIC = -188
LOCAL_ALL_BROKERS_DOWN = -187
LOCAL_INVALID_ARG = -186
LOCAL_TIMED_OUT = -185
LOCAL_STATE = -172
LOCAL_WAIT_COORD = -180
LOCAL_TIMED_OUT_QUEUE = -166
LOCAL_NOENT = -156

# Records that were dropped on request.
DROPPED = frozenset({LOCAL_PURGE_INFLIGHT, LOCAL_PURGE_QUEUE})
NO_ANSWER = frozenset(
    {
        LOCAL_TRANSPORT,
        LOCAL_RESOLVE,
        LOCAL_ALL_BROKERS_DOWN,
        LOCAL_TIMED_OUT,
        LOCAL_TIMED_OUT_QUEUE,
        LOCAL_WAIT_COORD,
    }
)

_CODES: dict[int, ErrorCode] = {code.value: code for code in ErrorCode}

# What to do next, for the errors that users meet.
HINTS: dict[ErrorCode, str] = {
    ErrorCode.TOPIC_ALREADY_EXISTS: "see it with `millstream topics describe NAME`, or choose another name",
    ErrorCode.INVALID_REPLICATION_FACTOR: "use a replication factor of at most "
    "the number of registered brokers",
    ErrorCode.INVALID_PARTITIONS: "the number of partitions can only grow; "
    "see `millstream topics describe NAME`",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "use 1 to 249 letters, digits, dots, dashes and underscores",
    ErrorCode.INVALID_CONFIG: "see the names and values of an existing topic: "
    "`millstream configs describe topic TOPIC --all`",
    ErrorCode.MESSAGE_TOO_LARGE: "send smaller records, or raise max.message.bytes "
    "with `millstream configs alter topic NAME`",
    ErrorCode.RECORD_LIST_TOO_LARGE: "send smaller batches, or raise segment.bytes of the topic",
    ErrorCode.NOT_ENOUGH_REPLICAS: "start the missing brokers, or lower min.insync.replicas of the topic",
    ErrorCode.TOPIC_DELETION_DISABLED: "set delete.topic.enable=true on the brokers",
    ErrorCode.OFFSET_OUT_OF_RANGE: "start from earliest, latest or an offset that still exists",
    ErrorCode.KAFKA_STORAGE_ERROR: "the disk of the broker is full, or one of its log.dirs failed: "
    "`millstream doctor` shows which",
    ErrorCode.UNSUPPORTED_VERSION: "the broker is too old for this request",
    ErrorCode.INVALID_RECORD: "a compacted topic needs a key on every record",
    ErrorCode.NON_EMPTY_GROUP: "stop its consumers first; see them "
    "with `millstream groups describe NAME --members`",
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has members: stop them first, or let them commit",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "stop the consumers of the topic first",
    ErrorCode.INVALID_TIMESTAMP: "see message.timestamp.before.max.ms and "
    "message.timestamp.after.max.ms of the topic",
}


_COLLISION = (
    "'.' and '_' count as the same in topic names, because metrics replace one by the other; "
    "choose another name"
)
_DID_YOU_MEAN = re.compile(r"; (did you mean [^;]*\?)$")
_UNKNOWN_SETTING = re.compile(r"Unknown topic config name: (\S+)$")


class ClientError(Exception):
    """An error for the caller: ``message`` is the problem, ``hint`` what to do next.

    ``code`` is Kafka's error code, if any. ``final`` errors were retried long enough
    (``retries.py``).
    """

    def __init__(self, message: str, *, hint: str = "", code: ErrorCode | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code
        self.final = False

    def __str__(self) -> str:
        """Return one line, even if the broker sent several."""
        line = " ".join(self.message.split())
        return f"{line.rstrip('.')}; {self.hint}" if self.hint else line


class BrokerUnreachable(ClientError):
    """No broker answered."""


class UnknownTopic(ClientError):
    """The topic does not exist; the hint has the nearest names that do."""


class UnknownPartition(ClientError):
    """The topic has no partition with this number."""


class TopicExists(ClientError):
    """A topic with this name already exists."""


class UnknownGroup(ClientError):
    """The group does not exist; the hint has the nearest names that do."""


class GroupActive(ClientError):
    """The group has members, but the operation needs a group without."""


class CommitFailed(ClientError):
    """The offsets of a group were not committed: another consumer owns the partitions.

    ``passing`` if the error ends when the library has rejoined the group or found its coordinator.
    """

    def __init__(
        self, message: str, *, hint: str = "", code: ErrorCode | None = None, passing: bool = False
    ) -> None:
        super().__init__(message, hint=hint, code=code)
        self.passing = passing


class WrongType(ClientError, TypeError):
    """A key, value or header of a type that a client cannot send."""


class NotInTime(ClientError):
    """A record was not written before its timeout; ``partition`` is its target."""

    def __init__(
        self, message: str, *, hint: str = "", partition: TopicPartition | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.partition = partition


class ProducerFenced(ClientError):
    """Another producer with the same transactional id has fenced this one."""


class DeliveryFailed(ClientError):
    """Some records were not accepted; ``failed`` is their number."""

    def __init__(
        self, message: str, *, hint: str = "", code: ErrorCode | None = None, failed: int = 0
    ) -> None:
        super().__init__(message, hint=hint, code=code)
        self.failed = failed

    @classmethod
    def of(cls, first: ClientError, failed: int = 1) -> DeliveryFailed:
        """Return the error for ``failed`` records, with the message of the first."""
        message = first.message
        if failed > 1:
            message = f"{failed:,} records were not delivered; the first: {message}"
        return cls(message, hint=first.hint, code=first.code, failed=failed)


class UndecodableRecord(ClientError):
    """A record whose key or value the consumer cannot decode. The next poll skips it."""

    def __init__(self, record: Any, reason: object) -> None:
        position = f"{record.topic}-{record.partition} offset {record.offset}"
        super().__init__(
            f"cannot read the record at {position}: {reason}",
            hint="catch this error, store the record elsewhere, and continue; or read it as bytes",
        )
        self.record = record


class TooFewRecords(ClientError):
    """The expected records did not arrive in time."""


def error_code(number: int) -> ErrorCode | None:
    """Return Kafka's code for a number of confluent-kafka, or None if it is librdkafka's."""
    return _CODES.get(number)


def kafka_error(error: Any) -> Any:
    """Return the KafkaError inside a KafkaException, or the error itself."""
    return error.args[0] if isinstance(error, Exception) and error.args else error


def translate(error: Any, *, doing: str, subject: str = "") -> ClientError:
    """Return the ClientError for a KafkaError or KafkaException.

    ``doing`` is the operation that failed, like "create topic 'a'".
    """
    error = kafka_error(error)
    number = error.code() if hasattr(error, "code") else LOCAL_INVALID_ARG
    reason = error.str() if hasattr(error, "str") else str(error)
    if number in NO_ANSWER:
        return BrokerUnreachable(
            f"cannot {doing}: no answer from the broker ({reason})", hint=NEXT_WHEN_SILENT
        )
    if number == LOCAL_MSG_TIMED_OUT:
        # librdkafka does not report why it retried. Brokers may have answered, for example that too
        # few replicas are in sync.
        return NotInTime(f"cannot {doing}: not written in time ({reason})", hint=NEXT_WHEN_LATE)
    if number in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, LOCAL_UNKNOWN_TOPIC) and subject:
        return unknown_topic(subject, ())
    # librdkafka reports "No leaders found" for a partition whose leader is changing.
    code = ErrorCode.LEADER_NOT_AVAILABLE if number == LOCAL_NOENT else error_code(number)
    if code is not None and reason.startswith("Broker: "):
        # The broker sent only a code, so use our sentence for it.
        reason = code.message
    return _error(code, reason, doing, subject)


def refusal(
    number: int, *, doing: str, subject: str = "", reason: str | None = None
) -> ClientError:
    """Return the ClientError for an error code in a response."""
    code = error_code(number)
    return _error(code, reason or (code.message if code else f"error {number}"), doing, subject)


def _error(code: ErrorCode | None, reason: str, doing: str, subject: str) -> ClientError:
    reason, hint = _next_step(code, reason)
    if code is ErrorCode.INVALID_TOPIC_EXCEPTION and doing.startswith("describe"):
        hint += "; a pattern begins with ^, for example '^orders-.*'"
    kind = _KINDS.get(code, ClientError) if code is not None else ClientError
    return kind(
        f"cannot {doing}: {reason}", hint=hint.replace("NAME", subject or "NAME"), code=code
    )


def _next_step(code: ErrorCode | None, reason: str) -> tuple[str, str]:
    """Return the reason and what to do about it.

    If the broker made a suggestion, that is the only hint.
    """
    if code is None:
        return reason, ""
    if code is ErrorCode.INVALID_TOPIC_EXCEPTION and "collides" in reason:
        return reason, _COLLISION
    if suggested := _DID_YOU_MEAN.search(reason):
        return reason[: suggested.start()], suggested[1]
    if unknown := _UNKNOWN_SETTING.search(reason):  # the broker suggests nothing
        from millstream.core.topic_settings import TOPIC_SETTINGS

        if close := nearest(unknown[1], TOPIC_SETTINGS, 1):
            return reason, f"did you mean {close[0]}?"
    return reason, HINTS.get(code, "")


_KINDS: dict[ErrorCode, type[ClientError]] = {
    ErrorCode.TOPIC_ALREADY_EXISTS: TopicExists,
    ErrorCode.NON_EMPTY_GROUP: GroupActive,
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: GroupActive,
    ErrorCode.GROUP_ID_NOT_FOUND: UnknownGroup,
}

NEXT_WHEN_LATE = (
    "its leader may be down, too few of its replicas in sync, or the disk full: "
    "`millstream doctor` shows which"
)
NEXT_WHEN_SILENT = "check that a broker runs there (`millstream serve`) and that its advertised address is reachable"


def nearest(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Return the known names that are most similar to ``name``, best first."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    return [
        by_lower[candidate]
        for candidate in difflib.get_close_matches(name.lower(), by_lower, n=limit, cutoff=0.6)
    ]


def unknown_topic(name: str, known: Iterable[str]) -> UnknownTopic:
    """Return the error for a missing topic, with the nearest known names, or for a pattern."""
    if name.startswith("^"):
        return no_match(name)
    close = nearest(name, known)
    if close:
        hint = "did you mean " + " or ".join(repr(candidate) for candidate in close) + "?"
    else:
        hint = f"create it with `millstream topics create {name}`, or see `millstream topics list`"
    return UnknownTopic(
        f"topic {name!r} does not exist", hint=hint, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


def no_match(pattern: str) -> UnknownTopic:
    """Return the error for a pattern that matches no topic."""
    return UnknownTopic(
        f"no topic matches the pattern {pattern!r}",
        hint="see the names with `millstream topics list`; a pattern is a regular expression, "
        "for example '^orders-.*'",
        code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )


def unknown_group(name: str, known: Iterable[str]) -> UnknownGroup:
    """Return the error for a missing group, with the nearest known names."""
    close = nearest(name, known)
    if close:
        hint = "did you mean " + " or ".join(repr(candidate) for candidate in close) + "?"
    else:
        hint = "see `millstream groups list`; a group exists once it has a member or a committed offset"
    return UnknownGroup(
        f"group {name!r} does not exist", hint=hint, code=ErrorCode.GROUP_ID_NOT_FOUND
    )
