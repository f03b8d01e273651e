"""The settings of a topic, and the broker settings that supply their defaults."""

from __future__ import annotations

import re
from dataclasses import dataclass

from millstream.core.settings import LONG_MAX, Setting, Type, Value, table

_B, _S, _I, _L, _D, _LIST = Type.BOOLEAN, Type.STRING, Type.INT, Type.LONG, Type.DOUBLE, Type.LIST
CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")

_THROTTLED = re.compile(r"[0-9]+:[0-9]+")


def _throttled_problem(value: Value) -> str | None:
    if value == ("*",) or (isinstance(value, tuple) and all(map(_THROTTLED.fullmatch, value))):
        return None
    return (
        "must be the literal '*' or a list of replicas in the following format: "
        "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
    )


TOPIC_SETTINGS = table(
    (
        Setting(
            "cleanup.policy",
            _LIST,
            ("delete",),
            "Treatment of old records: delete them, compact them by key, or both.",
            choices=("compact", "delete"),
        ),
        Setting(
            "compression.gzip.level",
            _I,
            -1,
            "Level for gzip when the broker compresses.",
            low=-1,
            high=9,
        ),
        Setting(
            "compression.lz4.level",
            _I,
            9,
            "Level for lz4 when the broker compresses.",
            low=1,
            high=17,
        ),
        Setting(
            "compression.type",
            _S,
            "producer",
            "The codec of stored batches; `producer` keeps the producer's codec.",
            choices=CODECS,
        ),
        Setting(
            "compression.zstd.level",
            _I,
            3,
            "Level for zstd when the broker compresses.",
            low=-131072,
            high=22,
        ),
        Setting(
            "delete.retention.ms",
            _L,
            86400000,
            "How long tombstones stay visible after their first compaction.",
            low=0,
        ),
        Setting(
            "file.delete.delay.ms",
            _L,
            60000,
            "How long the file of a deleted segment is kept on disk.",
            low=0,
        ),
        Setting("flush.messages", _L, LONG_MAX, "fsync after this many records.", low=1),
        Setting(
            "flush.ms",
            _L,
            LONG_MAX,
            "fsync when the oldest unflushed record is this many ms old.",
            low=0,
        ),
        Setting(
            "follower.replication.throttled.replicas",
            _LIST,
            (),
            "Replicas whose follower side is throttled: `partition:broker,...`, or `*` for all.",
            problem=_throttled_problem,
        ),
        Setting(
            "index.interval.bytes",
            _I,
            4096,
            "Bytes of log between two entries of the offset index.",
            low=0,
        ),
        Setting(
            "internal.segment.bytes",
            _I,
            None,
            "Segment size for tests, without the lower bound of segment.bytes.",
            low=61,
            internal=True,
        ),
        Setting(
            "leader.replication.throttled.replicas",
            _LIST,
            (),
            "Replicas whose leader side is throttled: `partition:broker,...`, or `*` for all.",
            problem=_throttled_problem,
        ),
        Setting(
            "local.retention.bytes",
            _L,
            -2,
            "Tiered storage: accepted, no effect.",
            low=-2,
            inert=True,
        ),
        Setting(
            "local.retention.ms", _L, -2, "Tiered storage: accepted, no effect.", low=-2, inert=True
        ),
        Setting(
            "max.compaction.lag.ms",
            _L,
            LONG_MAX,
            "Maximum age at which a record is compacted.",
            low=1,
        ),
        Setting(
            "max.message.bytes", _I, 1048588, "Maximum size of a record batch, as stored.", low=0
        ),
        Setting(
            "message.timestamp.after.max.ms",
            _L,
            3600000,
            "How far a record timestamp may be ahead of the broker's clock.",
            low=0,
        ),
        Setting(
            "message.timestamp.before.max.ms",
            _L,
            LONG_MAX,
            "How far a record timestamp may be behind the broker's clock.",
            low=0,
        ),
        Setting(
            "message.timestamp.type",
            _S,
            "CreateTime",
            "Whether timestamps are the producer's or the append time.",
            choices=("CreateTime", "LogAppendTime"),
        ),
        Setting(
            "message.validation.deep",
            _B,
            False,
            "Decode and check every record on produce, not only the batch (Millstream only).",
        ),
        Setting(
            "min.cleanable.dirty.ratio",
            _D,
            0.5,
            "Compaction starts when this share of the log is dirty.",
            low=0,
            high=1,
        ),
        Setting("min.compaction.lag.ms", _L, 0, "Minimum age before a record is compacted.", low=0),
        Setting(
            "min.insync.replicas",
            _I,
            1,
            "Minimum number of in-sync replicas for a write with acks=all.",
            low=1,
        ),
        Setting("preallocate", _B, False, "Reserve the file size when a segment is created."),
        Setting(
            "remote.log.copy.disable", _B, False, "Tiered storage: accepted, no effect.", inert=True
        ),
        Setting(
            "remote.log.delete.on.disable",
            _B,
            False,
            "Tiered storage: accepted, no effect.",
            inert=True,
        ),
        Setting(
            "remote.storage.enable", _B, False, "Tiered storage: accepted, no effect.", inert=True
        ),
        Setting(
            "retention.bytes",
            _L,
            -1,
            "Old segments are deleted if a partition is larger than this; -1 is unlimited.",
            low=-1,
        ),
        Setting(
            "retention.ms",
            _L,
            604800000,
            "Segments are deleted if their newest record is older than this; -1 is forever.",
            low=-1,
        ),
        Setting(
            "segment.bytes", _I, 1073741824, "The size at which a segment is rolled.", low=1048576
        ),
        Setting(
            "segment.index.bytes",
            _I,
            10485760,
            "The size of the offset index at which a segment is rolled.",
            low=4,
        ),
        Setting(
            "segment.jitter.ms",
            _L,
            0,
            "Maximum random time subtracted from segment.ms, to spread rolls.",
            low=0,
        ),
        Setting("segment.ms", _L, 604800000, "The age at which a segment is rolled.", low=1),
        Setting(
            "unclean.leader.election.enable",
            _B,
            False,
            "Whether a replica outside the ISR may lead as a last resort, losing data.",
        ),
    )
)


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker setting that supplies the default of a topic setting, with a unit factor."""

    name: str
    factor: int = 1


HOUR_MS = 3_600_000
MINUTE_MS = 60_000

# The first synonym that is set wins, as in Kafka.
TOPIC_SYNONYMS: dict[str, tuple[Synonym, ...]] = {
    "cleanup.policy": (Synonym("log.cleanup.policy"),),
    "compression.gzip.level": (Synonym("compression.gzip.level"),),
    "compression.lz4.level": (Synonym("compression.lz4.level"),),
    "compression.type": (Synonym("compression.type"),),
    "compression.zstd.level": (Synonym("compression.zstd.level"),),
    "delete.retention.ms": (Synonym("log.cleaner.delete.retention.ms"),),
    "file.delete.delay.ms": (Synonym("log.segment.delete.delay.ms"),),
    "flush.messages": (Synonym("log.flush.interval.messages"),),
    "flush.ms": (Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
    "index.interval.bytes": (Synonym("log.index.interval.bytes"),),
    "local.retention.bytes": (Synonym("log.local.retention.bytes"),),
    "local.retention.ms": (Synonym("log.local.retention.ms"),),
    "max.compaction.lag.ms": (Synonym("log.cleaner.max.compaction.lag.ms"),),
    "max.message.bytes": (Synonym("message.max.bytes"),),
    "message.timestamp.after.max.ms": (Synonym("log.message.timestamp.after.max.ms"),),
    "message.timestamp.before.max.ms": (Synonym("log.message.timestamp.before.max.ms"),),
    "message.timestamp.type": (Synonym("log.message.timestamp.type"),),
    "message.validation.deep": (Synonym("log.message.validation.deep"),),
    "min.cleanable.dirty.ratio": (Synonym("log.cleaner.min.cleanable.ratio"),),
    "min.compaction.lag.ms": (Synonym("log.cleaner.min.compaction.lag.ms"),),
    "min.insync.replicas": (Synonym("min.insync.replicas"),),
    "preallocate": (Synonym("log.preallocate"),),
    "retention.bytes": (Synonym("log.retention.bytes"),),
    "retention.ms": (
        Synonym("log.retention.ms"),
        Synonym("log.retention.minutes", MINUTE_MS),
        Synonym("log.retention.hours", HOUR_MS),
    ),
    "segment.bytes": (Synonym("log.segment.bytes"),),
    "segment.index.bytes": (Synonym("log.index.size.max.bytes"),),
    "segment.jitter.ms": (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", HOUR_MS)),
    "segment.ms": (Synonym("log.roll.ms"), Synonym("log.roll.hours", HOUR_MS)),
    "unclean.leader.election.enable": (Synonym("unclean.leader.election.enable"),),
}
