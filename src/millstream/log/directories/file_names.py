"""The names of files and directories in a data directory, as Apache Kafka writes them."""

from __future__ import annotations

import re
import uuid
from typing import Final, NamedTuple

from millstream.core.types import TopicPartition

LOG: Final = ".log"
OFFSET_INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TRANSACTION_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
INDEXES: Final = (OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)
SEGMENT_FILES: Final = (LOG, *INDEXES)

CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"
DELETED: Final = ".deleted"

LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"
META_PROPERTIES: Final = "meta.properties"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
LOCK: Final = ".lock"
INDEX_CHECKSUMS: Final = "index-checksums"

ACCEPT_LOSS: Final = "accept-data-loss"
"""The file with which an operator accepts data loss, so that the log of a partition opens again.

It belongs in the partition's directory.
"""

_SUFFIXED = re.compile(r"^(\S+)-(\d+)\.\S+-(delete|future|stray)$")
_PLAIN = re.compile(r"^(\S+)-(\d+)$")
_METADATA_TOPIC: Final = "__cluster_metadata"
_MAX_NAME: Final = 255


class Directory(NamedTuple):
    """The parts of the name of a partition's directory; kind is "" for a log in use."""

    tp: TopicPartition
    kind: str


def segment_name(base_offset: int) -> str:
    """Return the common stem of a segment's files."""
    return f"{base_offset:020d}"


def offset_of(name: str) -> int | None:
    """Return the offset in the name of a segment file, or None for any other file."""
    stem, dot, _ = name.partition(".")
    return int(stem) if dot and stem.isdecimal() else None


def segment_base(name: str) -> int | None:
    """Return the base offset in the name of a live .log file, or None."""
    return offset_of(name) if name.endswith(LOG) else None


def parse_directory(name: str) -> Directory | None:
    """Return the partition that a directory belongs to.

    None for other directories, and for Kafka's own metadata log.
    """
    match = _SUFFIXED.match(name)
    kind = match.group(3) if match else ""
    match = match or _PLAIN.match(name)
    if match is None or match.group(1) == _METADATA_TOPIC:
        return None
    return Directory(TopicPartition(match.group(1), int(match.group(2))), kind)


def directory_name(tp: TopicPartition, kind: str = "") -> str:
    """Return a new directory name within the length limit of a file name.

    `topic-0`, or `topic-0.<unique>-delete` and the like.
    """
    if not kind:
        return str(tp)
    suffix = f"-{tp.partition}.{uuid.uuid4().hex}-{kind}"
    return tp.topic[: _MAX_NAME - len(suffix)] + suffix
