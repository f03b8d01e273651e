"""What a client raises: one sentence on what went wrong, one on what to do next.

``ClientError`` is the base; the few subclasses are those that a program handles on its own. ``translate`` makes one
from an error of confluent-kafka, whose numbers above zero are the codes of the protocol
(``core.errors``) and whose numbers below zero are conditions of the library itself.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition

# Conditions that librdkafka itself reports, by the numbers of its public header: naming them here
# keeps this module free of the import of confluent-kafka, which costs more than all of the command
# line.
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

# Records that were dropped because somebody asked for it.
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

# What to do next, for the answers that a user meets.
HINTS: dict[ErrorCode, str] = {
    ErrorCode.TOPIC_ALREADY_EXISTS: "look at it with `millstream topics describe NAME`, or choose another name",
    ErrorCode.INVALID_REPLICATION_FACTOR: "use a replication factor of at most the number of registered brokers",
    ErrorCode.INVALID_PARTITIONS: "the number of partitions can only grow; see `millstream topics describe NAME`",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "use 1 to 249 letters, digits, dots, dashes and underscores",
    ErrorCode.INVALID_CONFIG: "see the names and values of a topic that exists: `millstream configs describe topic TOPIC --all`",
    ErrorCode.MESSAGE_TOO_LARGE: "send smaller records, or raise max.message.bytes with `millstream configs alter topic NAME`",
    ErrorCode.RECORD_LIST_TOO_LARGE: "send smaller batches, or raise segment.bytes of the topic",
    ErrorCode.NOT_ENOUGH_REPLICAS: "bring the missing brokers back, or lower min.insync.replicas of the topic",
    ErrorCode.TOPIC_DELETION_DISABLED: "set delete.topic.enable=true on the brokers",
    ErrorCode.OFFSET_OUT_OF_RANGE: "start from earliest, latest or an offset that still exists",
    ErrorCode.KAFKA_STORAGE_ERROR: "the disk of the broker is full, or one of its log.dirs failed: `millstream doctor` says which",
    ErrorCode.UNSUPPORTED_VERSION: "the broker is too old for this request",
    ErrorCode.INVALID_RECORD: "a compacted topic needs a key on every record",
    ErrorCode.NON_EMPTY_GROUP: "stop its consumers first; see them with `millstream groups describe NAME --members`",
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has members now: stop them first, or let them commit",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "stop the consumers of the topic first",
    ErrorCode.INVALID_TIMESTAMP: "see message.timestamp.before.max.ms and message.timestamp.after.max.ms of the topic",
}


_COLLISION = "'.' and '_' count as the same in topic names, because metrics replace one by the other; choose another name"
_DID_YOU_MEAN = re.compile(r"; (did you mean [^;]*\?)$")
_UNKNOWN_SETTING = re.compile(r"Unknown topic config name: (\S+)$")


class ClientError(Exception):
    """Something the caller has to know: ``message`` says what, ``hint`` what to do next, ``code``
    Kafka's code if any.

    ``final`` when it was waited for long enough to pass (``patience.py``).
    """

    def __init__(self, message: str, *, hint: str = "", code: ErrorCode | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code
        self.final = False

    def __str__(self) -> str:
        """One line, whatever the broker wrote."""
        line = " ".join(self.message.split())
        return f"{line.rstrip('.')}; {self.hint}" if self.hint else line


class BrokerUnreachable(ClientError):
    """No broker answered."""


class UnknownTopic(ClientError):
    """The topic does not exist; the hint has the nearest names that do."""


class UnknownPartition(ClientError):
    """The topic has no partition of this number."""


class TopicExists(ClientError):
    """A topic of this name exists already."""


class UnknownGroup(ClientError):
    """The group does not exist; the hint has the nearest names that do."""


class GroupActive(ClientError):
    """The group has members, and what was asked needs one without."""


class CommitFailed(ClientError):
    """The offsets of a group were not committed: this consumer is no longer the one that may.

    ``passing`` when that is over once the library has joined the group again, or found its coordinator.
    """

    def __init__(
        self, message: str, *, hint: str = "", code: ErrorCode | None = None, passing: bool = False
    ) -> None:
        super().__init__(message, hint=hint, code=code)
        self.passing = passing


class WrongType(ClientError, TypeError):
    """A key, value or header that a client cannot send as it is."""


class NotInTime(ClientError):
    """A record was not written before its time was over; ``partition`` is where it was to go."""

    def __init__(self, message: str, *, hint: str = "", partition: TopicPartition | None = None) -> None:
        super().__init__(message, hint=hint)
        self.partition = partition


class ProducerFenced(ClientError):
    """Another producer with the same transactional id has taken over; this one cannot go on."""


class DeliveryFailed(ClientError):
    """Some records were not accepted; ``failed`` says how many."""

    def __init__(
        self, message: str, *, hint: str = "", code: ErrorCode | None = None, failed: int = 0
    ) -> None:
        super().__init__(message, hint=hint, code=code)
        self.failed = failed

    @classmethod
    def of(cls, first: ClientError, failed: int = 1) -> DeliveryFailed:
        """For what was said of the first of so many."""
        message = first.message
        if failed > 1:
            message = f"{failed:,} records were not delivered; the first: {message}"
        return cls(message, hint=first.hint, code=first.code, failed=failed)


class UndecodableRecord(ClientError):
    """A record whose key or value is not what the consumer was told. Reading on passes over it."""

    def __init__(self, record: Any, reason: object) -> None:
        place = f"{record.topic}-{record.partition} offset {record.offset}"
        super().__init__(
            f"cannot read the record at {place}: {reason}",
            hint="catch this, put the record aside, and read on; or read it as bytes",
        )
        self.record = record


class TooFewRecords(ClientError):
    """The records that were waited for did not come in time."""


def error_code(number: int) -> ErrorCode | None:
    """Kafka's code for a number of confluent-kafka; None for a condition of the library."""
    return _CODES.get(number)


def kafka_error(error: Any) -> Any:
    """The KafkaError inside a KafkaException, or the error itself."""
    return error.args[0] if isinstance(error, Exception) and error.args else error


def translate(error: Any, *, doing: str, subject: str = "") -> ClientError:
    """The ClientError for a KafkaError or KafkaException met while ``doing`` something, like
    "create topic 'a'".
    """
    error = kafka_error(error)
    number = error.code() if hasattr(error, "code") else LOCAL_INVALID_ARG
    reason = error.str() if hasattr(error, "str") else str(error)
    if number in NO_ANSWER:
        return BrokerUnreachable(
            f"cannot {doing}: no answer from the broker ({reason})", hint=NEXT_WHEN_SILENT
        )
    if number == LOCAL_MSG_TIMED_OUT:
        # The library keeps to itself why it had to try again. Brokers may well have answered: that
        # there are too few replicas in sync, say.
        return NotInTime(f"cannot {doing}: not written in time ({reason})", hint=NEXT_WHEN_LATE)
    if number in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, LOCAL_UNKNOWN_TOPIC) and subject:
        return unknown_topic(subject, ())
    # "No leaders found" is all that the library says of a partition whose leader is just changing.
    code = ErrorCode.LEADER_NOT_AVAILABLE if number == LOCAL_NOENT else error_code(number)
    if code is not None and reason.startswith("Broker: "):
        reason = (
            code.message
        )  # the broker sent no sentence of its own; ours says more than the name of the code
    return _refused(code, reason, doing, subject)


def refusal(number: int, *, doing: str, subject: str = "", reason: str | None = None) -> ClientError:
    """The ClientError for an error code that an answer carries."""
    code = error_code(number)
    return _refused(code, reason or (code.message if code else f"error {number}"), doing, subject)


def _refused(code: ErrorCode | None, reason: str, doing: str, subject: str) -> ClientError:
    reason, hint = _next_step(code, reason)
    if code is ErrorCode.INVALID_TOPIC_EXCEPTION and doing.startswith("describe"):
        hint += "; a pattern begins with ^, for example '^orders-.*'"
    kind = _KINDS.get(code, ClientError) if code is not None else ClientError
    return kind(f"cannot {doing}: {reason}", hint=hint.replace("NAME", subject or "NAME"), code=code)


def _next_step(code: ErrorCode | None, reason: str) -> tuple[str, str]:
    """The reason and what to do about it. A suggestion that a broker made is the hint, and the only
    one.
    """
    if code is None:
        return reason, ""
    if code is ErrorCode.INVALID_TOPIC_EXCEPTION and "collides" in reason:
        return reason, _COLLISION
    if suggested := _DID_YOU_MEAN.search(reason):
        return reason[: suggested.start()], suggested[1]
    if unknown := _UNKNOWN_SETTING.search(reason):  # of a broker that suggests nothing
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

NEXT_WHEN_LATE = "its leader may be away, too few of its replicas in sync, or the disk full: `millstream doctor` says which"
NEXT_WHEN_SILENT = (
    "see that a broker runs there (`millstream serve`) and that the address it advertises can be reached"
)


def nearest(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """The known names that look most like ``name``, best first."""
    by_lower = {one.lower(): one for one in known}
    return [by_lower[one] for one in difflib.get_close_matches(name.lower(), by_lower, n=limit, cutoff=0.6)]


def unknown_topic(name: str, known: Iterable[str]) -> UnknownTopic:
    """The error for a topic that does not exist, with the nearest of the known ones; for a pattern
    that matches none.
    """
    if name.startswith("^"):
        return no_match(name)
    close = nearest(name, known)
    if close:
        hint = "did you mean " + " or ".join(repr(one) for one in close) + "?"
    else:
        hint = f"create it with `millstream topics create {name}`, or see `millstream topics list`"
    return UnknownTopic(
        f"topic {name!r} does not exist", hint=hint, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


def no_match(pattern: str) -> UnknownTopic:
    """The error for a pattern of topics that matches none."""
    return UnknownTopic(
        f"no topic matches the pattern {pattern!r}",
        hint="see the names with `millstream topics list`; a pattern is a regular expression, for example '^orders-.*'",
        code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )


def unknown_group(name: str, known: Iterable[str]) -> UnknownGroup:
    """The error for a group that does not exist, with the nearest of the known ones."""
    close = nearest(name, known)
    if close:
        hint = "did you mean " + " or ".join(repr(one) for one in close) + "?"
    else:
        hint = "see `millstream groups list`; a group exists once it has a member or a committed offset"
    return UnknownGroup(f"group {name!r} does not exist", hint=hint, code=ErrorCode.GROUP_ID_NOT_FOUND)
