"""The options of the ``millstream`` format, named as in Spark's Kafka connector.

One table serves the source and the sink. Names are case-insensitive. An unknown option is rejected
with the nearest name. An option that Spark's connector has and this one lacks is rejected with the
reason: an option that is silently ignored helps no user.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from millstream.client.connection import DEFAULT_BOOTSTRAP, Connection
from millstream.client.errors import ClientError, nearest

BATCH, STREAM, SINK = "batch", "stream", "sink"
READ = frozenset({BATCH, STREAM})
BOOTSTRAP_VARIABLE = "MILLSTREAM_BOOTSTRAP"
ISOLATION_LEVELS = ("read_committed", "read_uncommitted")
EARLIEST_MARK, LATEST_MARK = -2, -1
STRATEGIES = ("error", "latest")
DELIVERIES = ("exactly-once", "at-least-once")


class OptionError(ClientError):
    """An option is unknown, missing, or has an invalid value."""


@dataclass(frozen=True)
class Option:
    """A row of the table: ``parse`` converts the text, ``used_by`` says where it applies."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    used_by: frozenset[str]
    help: str


def _words(text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if not words:
        raise ValueError("names separated by commas")
    return words


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ValueError("a whole number above 0")
    return int(text)


def _natural(text: str) -> int:
    if not text.isdigit():
        raise ValueError("a whole number")
    return int(text)


def _millis(text: str) -> int:
    """Parse milliseconds, or a duration such as ``15m`` as Spark writes it."""
    units = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text.strip()[len(number) :] or "ms"
    if not number.strip().isdigit() or unit not in units:
        raise ValueError("milliseconds, or a duration such as 15m, 30s or 500ms")
    return int(number) * units[unit]


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(" or ".join(allowed))
        return text.lower()

    return parse


def _partitions(text: str) -> dict[str, list[int]]:
    """Parse ``{"orders": [0, 1]}``."""
    shape = '{"topic": [0, 1]}'
    by_topic = _json(text, shape)
    if not all(isinstance(numbers, list) and numbers for numbers in by_topic.values()):
        raise ValueError(f"JSON like {shape}")
    return {
        topic: sorted({_whole(number, shape) for number in numbers})
        for topic, numbers in by_topic.items()
    }


def _numbers(text: str) -> dict[str, dict[int, int]]:
    """Parse ``{"orders": {"0": 23}}``."""
    shape = '{"topic": {"0": 23}}'
    by_topic = _json(text, shape)
    if not all(isinstance(numbers, dict) for numbers in by_topic.values()):
        raise ValueError(f"JSON like {shape}")
    return {
        topic: {
            _whole(partition, shape): _whole(number, shape) for partition, number in numbers.items()
        }
        for topic, numbers in by_topic.items()
    }


def _whole(number: Any, shape: str) -> int:
    """Parse a whole number or its text; reject everything that would have to be rounded."""
    if (
        isinstance(number, bool | float)
        or number is None
        or not re.fullmatch(r"-?[0-9]+", str(number))
    ):
        raise ValueError(f"JSON like {shape}, and {number!r} is not a whole number")
    return int(number)


def _pattern(text: str) -> str:
    """Parse a regular expression, as Python reads it."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from None
    return text


def _position(text: str) -> str | dict[str, dict[int, int]]:
    """Parse ``earliest``, ``latest`` or offsets by partition."""
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    try:
        return _numbers(text)
    except ValueError:
        raise ValueError('earliest, latest, or JSON like {"topic": {"0": 23, "1": -2}}') from None


def _json(text: str, shape: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict) or not parsed:
        raise ValueError(f"JSON like {shape}")
    return parsed


def _rows(*rows: tuple[str, Callable[[str], Any], Any, frozenset[str], str]) -> tuple[Option, ...]:
    return tuple(Option(*row) for row in rows)


_READ_BATCH = frozenset({BATCH})
_READ_STREAM = frozenset({STREAM})

SOURCE_OPTIONS = _rows(
    ("subscribe", _words, None, READ, "topics to read, separated by commas"),
    (
        "subscribePattern",
        _pattern,
        None,
        READ,
        "a regular expression: all topics whose whole name matches",
    ),
    ("assign", _partitions, None, READ, 'partitions to read, as JSON: {"orders": [0, 1]}'),
    (
        "startingOffsets",
        _position,
        None,
        READ,
        "earliest, latest or JSON offsets (-2 earliest, -1 latest): where a new query begins; the default "
        "is latest for streams, earliest for batches, which cannot begin at latest",
    ),
    (
        "endingOffsets",
        _position,
        "latest",
        _READ_BATCH,
        "latest or JSON offsets (-1 latest): where a batch ends",
    ),
    (
        "startingTimestamp",
        _natural,
        None,
        READ,
        "begin at the first record of this time (ms) or later",
    ),
    (
        "startingOffsetsByTimestamp",
        _numbers,
        None,
        READ,
        'the same by partition: {"orders": {"0": 1700000000000}}',
    ),
    (
        "startingOffsetsByTimestampStrategy",
        _choice(*STRATEGIES),
        "error",
        READ,
        "if no record is that late: error, or begin at latest",
    ),
    (
        "endingTimestamp",
        _natural,
        None,
        _READ_BATCH,
        "end before the first record of this time (ms) or later",
    ),
    ("endingOffsetsByTimestamp", _numbers, None, _READ_BATCH, "the same by partition"),
    (
        "isolationLevel",
        _choice(*ISOLATION_LEVELS),
        "read_committed",
        READ,
        "read_committed leaves out records of aborted transactions; kafka.isolation.level is the same option",
    ),
    (
        "failOnDataLoss",
        _boolean,
        True,
        READ,
        "fail if offsets to read are lost; false: continue and report skipped offsets",
    ),
    ("includeHeaders", _boolean, False, READ, "add the column headers"),
    (
        "minPartitions",
        _positive,
        None,
        READ,
        "split large offset ranges until there are at least this many tasks",
    ),
    (
        "maxRecordsPerPartition",
        _positive,
        None,
        READ,
        "split offset ranges so that no task reads more offsets than this",
    ),
    (
        "maxOffsetsPerTrigger",
        _positive,
        None,
        _READ_STREAM,
        "maximum offsets in a micro-batch, spread over the partitions by size",
    ),
    (
        "minOffsetsPerTrigger",
        _positive,
        None,
        _READ_STREAM,
        "minimum offsets for a micro-batch; waits for them no longer than maxTriggerDelay",
    ),
    (
        "maxTriggerDelay",
        _millis,
        900_000,
        _READ_STREAM,
        "how long minOffsetsPerTrigger may hold data back (15m)",
    ),
    (
        "groupId",
        str,
        None,
        READ,
        "the consumer group that shows the progress of a stream; kafka.group.id is the same option",
    ),
    (
        "queryName",
        str,
        None,
        READ,
        "the name of the query, if it is known: names the consumer group unless groupId does",
    ),
    (
        "pollTimeoutMs",
        _natural,
        500,
        _READ_STREAM,
        "how long an idle query waits at the broker for new records before it retries",
    ),
    (
        "fetchMaxBytes",
        _positive,
        4 << 20,
        READ,
        "maximum bytes of one fetch; kafka.fetch.max.bytes is the same option",
    ),
    (
        "retryTimeoutMs",
        _millis,
        60_000,
        READ,
        "how long to wait for unavailable brokers and leaders before a query fails",
    ),
)

_WRITE = frozenset({SINK})

SINK_OPTIONS = _rows(
    (
        "topic",
        str,
        None,
        _WRITE,
        "the topic of all rows; without it the column topic has the topic of each row",
    ),
    (
        "delivery",
        _choice(*DELIVERIES),
        "exactly-once",
        _WRITE,
        "exactly-once: all of a batch or nothing; at-least-once: tasks write directly, and repeated tasks "
        "duplicate records",
    ),
    (
        "compression",
        _choice("none", "gzip", "snappy", "lz4", "zstd"),
        "none",
        _WRITE,
        "how record batches are compressed; kafka.compression.type is the same option",
    ),
    (
        "batchBytes",
        _positive,
        1_000_000,
        _WRITE,
        "maximum size of a record batch with several records; kafka.batch.size is the same option",
    ),
    (
        "transactionTimeoutMs",
        _millis,
        300_000,
        _WRITE,
        "when the broker aborts an abandoned transaction; kafka.transaction.timeout.ms is the same option",
    ),
    (
        "deliveryTimeoutMs",
        _millis,
        120_000,
        _WRITE,
        "how long to wait for unavailable brokers and leaders; kafka.delivery.timeout.ms is the same option",
    ),
    (
        "batchAttempts",
        _positive,
        3,
        _WRITE,
        "total attempts for a batch whose job fails, each in a new transaction, before the query fails",
    ),
    (
        "driverBytes",
        _natural,
        4 << 20,
        _WRITE,
        "a local driver writes batches up to this size itself, without writing tasks, and small ones without "
        "any task; 0: never",
    ),
    (
        "progressTopic",
        str,
        "__millstream_progress",
        _WRITE,
        "the compacted topic with the last committed batch of each sink",
    ),
)

# Settings of Kafka's clients that are aliases of our options.
SAME_AS = {
    "kafka.isolation.level": "isolationLevel",
    "kafka.group.id": "groupId",
    "kafka.fetch.max.bytes": "fetchMaxBytes",
    "kafka.max.partition.fetch.bytes": "fetchMaxBytes",
    "kafka.default.api.timeout.ms": "retryTimeoutMs",
    "kafka.compression.type": "compression",
    "kafka.batch.size": "batchBytes",
    "kafka.transaction.timeout.ms": "transactionTimeoutMs",
    "kafka.delivery.timeout.ms": "deliveryTimeoutMs",
}

# Options of Spark's connector that are rejected, and the reason.
REJECTED = {
    "kafka.auto.offset.reset": "see startingOffsets",
    "kafka.enable.auto.commit": "progress is stored in the checkpoint, and shown in the group groupId",
    "kafka.key.deserializer": "keys and values are bytes: decode them with Spark's functions",
    "kafka.value.deserializer": "keys and values are bytes: decode them with Spark's functions",
    "kafka.interceptor.classes": "this source has no Java classes",
    "kafka.key.serializer": "keys and values are bytes: encode them with Spark's functions",
    "kafka.value.serializer": "keys and values are bytes: encode them with Spark's functions",
    "kafka.acks": "records are always written with acks=all",
    "kafka.enable.idempotence": "see delivery",
    "kafka.transactional.id": "the name of the sink is its transactional id",
    "groupIdPrefix": "set the whole name as groupId",
    "fetchOffset.numRetries": "see retryTimeoutMs",
    "fetchOffset.retryIntervalMs": "see retryTimeoutMs",
    "kafkaConsumer.pollTimeoutMs": "see retryTimeoutMs",
}
# Options of secure connections. Continuing without them would be worse than stopping.
SECURITY = ("kafka.security.", "kafka.ssl.", "kafka.sasl.", "kafka.enable.ssl.")
# Spark adds these to the options of any source.
IGNORED = frozenset({"path", "checkpointlocation", "withwatermark"})


@dataclass(frozen=True)
class Options:
    """The parsed options: ``options["minPartitions"]``, and ``kafka`` for the connection."""

    values: Mapping[str, Any]
    bootstrap: str
    kafka: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def is_set(self, name: str) -> bool:
        return self.values.get(name) is not None

    def connection(self, timeout_s: float) -> Connection:
        return Connection(self.bootstrap, timeout_s, self.kafka)


def table(used_by: str) -> tuple[Option, ...]:
    """Return the rows that apply to a batch, a stream or the sink."""
    return tuple(row for row in (*SOURCE_OPTIONS, *SINK_OPTIONS) if used_by in row.used_by)


def parse(texts: Mapping[str, str], used_by: str) -> Options:
    """Parse the options of one reader or writer. Those of other uses only have to exist."""
    rows = {row.name.lower(): row for row in (*SOURCE_OPTIONS, *SINK_OPTIONS)}
    values = {row.name: row.default for row in table(used_by)}
    kafka: dict[str, str] = {}
    for name, text in texts.items():
        row = rows.get(SAME_AS.get(name.lower(), name).lower())
        if row is not None:
            # Spark passes options in lower case: show them as the documents write them.
            shown = row.name if name.lower() == row.name.lower() else name
            _check_use(row, shown, used_by)
            values[row.name] = _value(row, shown, text)
        elif name.lower().startswith("kafka."):
            kafka[name.lower().removeprefix("kafka.")] = str(text)
            _check_rejected(name)
            _check_security(name, str(text))
        elif name.lower() not in IGNORED:
            raise _unknown(name, used_by)
    bootstrap = (
        kafka.pop("bootstrap.servers", None)
        or os.environ.get(BOOTSTRAP_VARIABLE)
        or DEFAULT_BOOTSTRAP
    )
    return Options(values, bootstrap, kafka)


# Option -> options that override it, as in Spark's connector.
_OVERRIDDEN = {
    "startingOffsetsByTimestamp": ("startingTimestamp",),
    "startingOffsets": ("startingTimestamp", "startingOffsetsByTimestamp"),
    "endingOffsetsByTimestamp": ("endingTimestamp",),
    "endingOffsets": ("endingTimestamp", "endingOffsetsByTimestamp"),
}
# Option -> options that it needs.
_DEPENDS_ON = {
    "startingOffsetsByTimestampStrategy": ("startingTimestamp", "startingOffsetsByTimestamp"),
    "maxTriggerDelay": ("minOffsetsPerTrigger",),
}
# A batch commits nothing to a group.
_STREAM_ONLY = ("groupId", "queryName")
# A batch is one job, which Spark retries by task, and keeps no progress.
_NOT_IN_BATCH_WRITES = ("batchAttempts", "driverBytes", "progressTopic")
_EXACTLY_ONCE_ONLY = ("transactionTimeoutMs",)
_KAFKA_WITH_EFFECT = frozenset({"kafka.bootstrap.servers", "kafka.security.protocol", *SAME_AS})


def without_effect(
    texts: Mapping[str, str], used_by: str, *, batch_write: bool = False
) -> list[str]:
    """Return a sentence for each known option that changes nothing."""
    rows = {row.name.lower(): row.name for row in table(used_by)}
    names = {}
    for name in texts:
        known = rows.get(SAME_AS.get(name.lower(), name).lower())
        if known is not None:
            names[known] = known if name.lower() == known.lower() else name
    sentences = [
        f"option {name!r} has no effect: this connector does not use Kafka's Java client"
        for name in texts
        if name.lower().startswith("kafka.") and name.lower() not in _KAFKA_WITH_EFFECT
    ]
    for known, shown in names.items():
        reason = _no_effect(known, names.keys(), texts, used_by, batch_write)
        if reason is not None:
            sentences.append(f"option {shown!r} has no effect: {reason}")
    return sentences


def without_overridden(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the options without overridden ones.

    A pipeline uses it for defaults that it adds to a user's options.
    """
    names = {SAME_AS.get(name.lower(), name).lower() for name in texts}
    overridden = {
        name.lower()
        for name, winners in _OVERRIDDEN.items()
        if any(winner.lower() in names for winner in winners)
    }
    return {name: text for name, text in texts.items() if name.lower() not in overridden}


def _no_effect(
    name: str, names: Collection[str], texts: Mapping[str, str], used_by: str, batch_write: bool
) -> str | None:
    if winner := next((other for other in _OVERRIDDEN.get(name, ()) if other in names), None):
        return f"{winner!r} overrides it"
    needed = _DEPENDS_ON.get(name)
    if needed and not any(other in names for other in needed):
        return f"it needs {' or '.join(map(repr, needed))}"
    if used_by == BATCH and name in _STREAM_ONLY:
        return "a batch read commits no offsets to a group"
    if batch_write and name in _NOT_IN_BATCH_WRITES:
        return "it is for TopicSink, not for df.write"
    if name in _EXACTLY_ONCE_ONLY and parse(texts, used_by)["delivery"] == "at-least-once":
        return "delivery is at-least-once, without transactions"
    return None


def check_batch_positions(options: Options) -> None:
    """Reject positions with which a batch read is always empty, as Spark's connector does."""
    _reject_mark(options["startingOffsets"], "startingOffsets", "latest", LATEST_MARK, "begins")
    _reject_mark(options["endingOffsets"], "endingOffsets", "earliest", EARLIEST_MARK, "ends")


def _reject_mark(position: Any, name: str, word: str, mark: int, verb: str) -> None:
    other, number = ("earliest", EARLIEST_MARK) if word == "latest" else ("latest", LATEST_MARK)
    if position == word:
        shown = word
    elif isinstance(position, Mapping) and (
        marked := [
            f"{topic}-{partition}"
            for topic, offsets in sorted(position.items())
            for partition, offset in sorted(offsets.items())
            if offset == mark
        ]
    ):
        shown = f"{word} ({mark}) for {marked[0]}"
    else:
        return
    raise OptionError(
        f"option {name!r} is {shown}: a batch read cannot {verb.removesuffix('s')} there",
        hint=f"a batch {verb} at {other} ({number}) or at an offset; a stream can begin at latest",
    )


def only_for(texts: Mapping[str, str], used_by: str) -> dict[str, str]:
    """Return the options that apply to this use; unknown ones are kept.

    The given options are for reading and writing together.
    """
    rows = {row.name.lower(): row for row in (*SOURCE_OPTIONS, *SINK_OPTIONS)}

    def concerns(name: str) -> bool:
        row = rows.get(SAME_AS.get(name.lower(), name).lower())
        if row is not None and used_by == BATCH and row.name in _STREAM_ONLY:
            return False
        return row is None or used_by in row.used_by

    return {name: text for name, text in texts.items() if concerns(name)}


def _value(row: Option, name: str, text: str) -> Any:
    try:
        return row.parse(str(text).strip())
    except ValueError as error:
        raise OptionError(f"option {name!r} is {text!r}", hint=f"it takes {error}") from None


def _check_use(row: Option, name: str, used_by: str) -> None:
    if used_by not in row.used_by:
        where = " and ".join(
            {BATCH: "batch reads", STREAM: "streams", SINK: "writes"}[use]
            for use in sorted(row.used_by)
        )
        here = {BATCH: "a batch read", STREAM: "a stream", SINK: "a write"}[used_by]
        raise OptionError(
            f"option {name!r} does not apply to {here}", hint=f"it is for {where}: remove it"
        )


def _check_rejected(name: str) -> None:
    for rejected, reason in REJECTED.items():
        if name.lower() == rejected.lower():
            raise OptionError(f"option {name!r} is not supported", hint=reason)


def _check_security(name: str, text: str) -> None:
    if name.lower() == "kafka.security.protocol" and text.lower() == "plaintext":
        return
    if name.lower().startswith(SECURITY):
        raise OptionError(
            f"option {name!r} is not supported: TLS and SASL are not available yet",
            hint="use the address of a PLAINTEXT listener and remove the option",
        )


def _unknown(name: str, used_by: str) -> OptionError:
    _check_rejected(name)
    known = [row.name for row in table(used_by)] + ["kafka.bootstrap.servers"]
    close = nearest(name, known)
    if close:
        hint = "did you mean " + " or ".join(map(repr, close)) + "?"
    else:
        hint = "the options are " + ", ".join(known)
    return OptionError(f"there is no option {name!r}", hint=hint)
