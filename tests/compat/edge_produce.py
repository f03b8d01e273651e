"""Edge cases of Produce: what is refused, with which code, and what is let through."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable

import zstandard

from compat.crafted import (
    CONTROL,
    DELETE_HORIZON,
    GZIP,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    ZSTD,
    batch,
    message,
    now_ms,
    record,
)
from compat.edge_case import SILENT, Case, Expected, World
from compat.raw_requests import NULL_ID, UNKNOWN_ID, produce
from compat.raw_requests import message as request
from millstream.core.errors import ErrorCode as E
from millstream.wire.schema import Struct

MARKER = [(b"\0\0\0\1", b"\0\0\0\0\0\0")]
PAIR = record(0, b"a", b"b")
HOUR_MS = 3_600_000
SHALLOW = "records are not decoded on the usual path (message.validation.deep does); the batch header is right"
STRICT = "what follows the batch would be lost silently; refused instead"


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def at_limit() -> bytes:
    """A batch of exactly 1000 bytes."""
    return batch([(b"k", b"x" * (1000 - len(batch([(b"k", b"")])) - 2))])


def case(
    name: str,
    records: Callable[[World], bytes | None],
    expect: Expected,
    *,
    topic: str = "plain",
    version: int = 12,
    partition: int = 0,
    acks: int = -1,
    transactional_id: str | None = None,
    kafka: Expected | None = None,
    why: str = "",
) -> Case:
    """A row for one partition of a topic of the world; ``topic`` "=x" is the literal name x."""

    def body(world: World) -> Struct:
        if topic.startswith("="):
            target: str | bytes = topic[1:]
        else:
            target = world.id(topic) if version >= 13 else world[topic]
        return produce(
            target,
            records(world),
            partition=partition,
            acks=acks,
            transactional_id=transactional_id,
        )

    return Case(name, "Produce", version, body, expect, kafka=kafka, why=why)


def by_id(name: str, topic_id: bytes, expect: E) -> Case:
    return Case(name, "Produce", 13, lambda w: produce(topic_id, batch()), expect)


WHERE = [
    *[case("valid", lambda w: batch(), E.NONE, version=v) for v in (3, 5, 8, 9, 12, 13)],
    case("unknown topic", lambda w: batch(), E.UNKNOWN_TOPIC_OR_PARTITION, topic="nope"),
    by_id("unknown topic id", UNKNOWN_ID, E.UNKNOWN_TOPIC_ID),
    by_id("zero topic id", NULL_ID, E.UNKNOWN_TOPIC_ID),
    case("unknown partition", lambda w: batch(), E.UNKNOWN_TOPIC_OR_PARTITION, partition=7),
    case(
        "unknown partition",
        lambda w: batch(),
        E.UNKNOWN_TOPIC_OR_PARTITION,
        partition=7,
        version=13,
    ),
    case("negative partition", lambda w: batch(), E.UNKNOWN_TOPIC_OR_PARTITION, partition=-1),
    case("invalid topic name", lambda w: batch(), E.UNKNOWN_TOPIC_OR_PARTITION, topic="=a b"),
    case("empty topic name", lambda w: batch(), E.UNKNOWN_TOPIC_OR_PARTITION, topic="="),
    case("acks 1", lambda w: batch(), E.NONE, acks=1),
    case("acks 2", lambda w: batch(), E.INVALID_REQUIRED_ACKS, acks=2),
    case("acks -2", lambda w: batch(), E.INVALID_REQUIRED_ACKS, acks=-2),
    Case(
        "no topics", "Produce", 12, lambda w: request("Produce", acks=-1), (), {"responses": [[]]}
    ),
    case(
        "transactional id, batch not transactional",
        lambda w: batch(),
        E.NONE,
        transactional_id="tx",
    ),
    Case(
        "good, unknown, corrupt in one request",
        "Produce",
        12,
        lambda w: request(
            "Produce",
            acks=-1,
            timeout_ms=5000,
            topic_data=[
                {"name": w["plain"], "partition_data": [{"index": 0, "records": batch()}]},
                {"name": w["nope"], "partition_data": [{"index": 0, "records": batch()}]},
                {"name": w["small"], "partition_data": [{"index": 0, "records": batch(crc=5)}]},
            ],
        ),
        frozenset({E.NONE, E.UNKNOWN_TOPIC_OR_PARTITION, E.CORRUPT_MESSAGE}),
    ),
]

DAMAGE = [
    case("bad CRC", lambda w: batch(crc=1), E.CORRUPT_MESSAGE),
    case("zero length records", lambda w: b"", E.INVALID_RECORD),
    case("two batches", lambda w: batch() + batch(), E.INVALID_RECORD),
    case(
        "batch length 20 too long",
        lambda w: batch(extra_length=20),
        E.CORRUPT_MESSAGE,
        kafka=E.INVALID_RECORD,
        why="a batch cut short on its way is damage, which a client may cure by sending it again",
    ),
    case("batch length 10 too short", lambda w: batch(extra_length=-10), E.CORRUPT_MESSAGE),
    case("only 30 bytes of a batch", lambda w: batch()[:30], E.INVALID_RECORD),
    case(
        "batch length negative",
        lambda w: struct.pack(">qi", 0, -5) + batch()[12:],
        E.CORRUPT_MESSAGE,
    ),
    case(
        "batch length below the header",
        lambda w: struct.pack(">qi", 0, 10) + batch()[12:],
        E.CORRUPT_MESSAGE,
    ),
    case("magic 3", lambda w: batch(magic=3), E.CORRUPT_MESSAGE),
    case("magic -1", lambda w: batch(magic=-1), E.CORRUPT_MESSAGE),
    case(
        "bytes after the batch",
        lambda w: batch() + b"abcde",
        E.INVALID_RECORD,
        kafka=E.NONE,
        why=STRICT,
    ),
]

OLD_FORMATS = [
    *[
        case(
            "magic 1 where v2 is required",
            lambda w: message(b"k", b"v"),
            E.INVALID_RECORD,
            version=v,
        )
        for v in (3, 8, 12)
    ],
    case(
        "magic 0 where v2 is required",
        lambda w: message(b"k", b"v", magic=0),
        E.INVALID_RECORD,
        version=3,
    ),
    case(
        "zstd before its version",
        lambda w: batch(attributes=ZSTD, compress=zstd),
        E.UNSUPPORTED_COMPRESSION_TYPE,
        version=6,
    ),
    case("zstd in its version", lambda w: batch(attributes=ZSTD, compress=zstd), E.NONE, version=7),
]

HEADER = [
    case("base offset 5", lambda w: batch(base_offset=5), E.INVALID_RECORD),
    case("leader epoch 9 in the batch", lambda w: batch(leader_epoch=9), E.NONE),
    case(
        "control batch from a client", lambda w: batch(MARKER, attributes=CONTROL), E.INVALID_RECORD
    ),
    case(
        "transactional control batch from a client",
        lambda w: batch(MARKER, attributes=CONTROL | TRANSACTIONAL, producer=(5, 0, -1)),
        E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    case(
        "transactional batch without a transactional id",
        lambda w: batch(attributes=TRANSACTIONAL, producer=(1, 0, 0)),
        E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    case(
        "transactional batch without id and producer",
        lambda w: batch(attributes=TRANSACTIONAL),
        E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    case("count 2, last offset delta 0", lambda w: batch(count=2), E.INVALID_RECORD),
    case("count 1, last offset delta 5", lambda w: batch(last_offset_delta=5), E.INVALID_RECORD),
    case("count 0, delta 0", lambda w: batch([], count=0, last_offset_delta=0), E.INVALID_RECORD),
    case("count 0, delta -1", lambda w: batch([]), E.INVALID_RECORD),
    case("count -1", lambda w: batch(count=-1, last_offset_delta=-2), E.INVALID_RECORD),
    case("client sets the LogAppendTime bit", lambda w: batch(attributes=LOG_APPEND_TIME), E.NONE),
    case("client sets the delete horizon bit", lambda w: batch(attributes=DELETE_HORIZON), E.NONE),
    case("unused attribute bit 7", lambda w: batch(attributes=0x80), E.NONE),
]

DAMAGED_INSIDE = "Kafka fails inside its decoder; a client is told that it is its records"
RECORDS = [
    case(
        "count 2, delta 1, one record",
        lambda w: batch(count=2, last_offset_delta=1),
        E.INVALID_RECORD,
    ),
    case(
        "count 1, two records in the body",
        lambda w: batch(body=PAIR + record(1, b"a", b"b")),
        E.INVALID_RECORD,
    ),
    case(
        "bytes behind the records inside the batch",
        lambda w: batch(body=PAIR + b"xx"),
        E.INVALID_RECORD,
    ),
    case(
        "count 3 over one gzipped record",
        lambda w: batch(attributes=GZIP, compress=gzip.compress, count=3, last_offset_delta=2),
        E.NONE,
        kafka=E.INVALID_RECORD,
        why=SHALLOW,
    ),
    case("wrong record offset deltas", lambda w: batch([(b"a", b"b")] * 2, body=PAIR * 2), E.NONE),
    case(
        "record offset delta beyond the batch",
        lambda w: batch([(b"a", b"b")] * 2, body=PAIR + record(5, b"a", b"b")),
        E.NONE,
    ),
    case(
        "offset deltas with a gap, count below",
        lambda w: batch([(b"a", b"b")] * 2, last_offset_delta=5, body=PAIR + record(5, b"a", b"b")),
        E.INVALID_RECORD,
    ),
    case("gzip", lambda w: batch(attributes=GZIP, compress=gzip.compress), E.NONE),
    *[
        case(
            f"codec {codec}",
            lambda w, codec=codec: batch(attributes=codec),
            E.UNSUPPORTED_COMPRESSION_TYPE,
            kafka=E.UNKNOWN_SERVER_ERROR,
            why="Kafka fails inside its decoder; the client is told what is wrong",
        )
        for codec in (5, 7)
    ],
    case(
        "body is not records",
        lambda w: batch(body=b"\xff" * 30),
        E.INVALID_RECORD,
        kafka=E.UNKNOWN_SERVER_ERROR,
        why=DAMAGED_INSIDE,
    ),
    case(
        "body is not gzip",
        lambda w: batch(attributes=GZIP, body=b"zzzzzzz"),
        E.NONE,
        kafka=E.UNKNOWN_SERVER_ERROR,
        why=SHALLOW,
    ),
]

DEEP = [
    case(
        "count 2, delta 1, one record",
        lambda w: batch(count=2, last_offset_delta=1),
        E.INVALID_RECORD,
        topic="deep",
    ),
    case(
        "count 1, two records in the body",
        lambda w: batch(body=PAIR + record(1, b"a", b"b")),
        E.INVALID_RECORD,
        topic="deep",
    ),
    case(
        "bytes behind the records",
        lambda w: batch(body=PAIR + b"xx"),
        E.INVALID_RECORD,
        topic="deep",
    ),
    case(
        "count 3 over one gzipped record",
        lambda w: batch(attributes=GZIP, compress=gzip.compress, count=3, last_offset_delta=2),
        E.INVALID_RECORD,
        topic="deep",
    ),
    case(
        "body is not records",
        lambda w: batch(body=b"\xff" * 30),
        E.INVALID_RECORD,
        topic="deep",
        kafka=E.UNKNOWN_SERVER_ERROR,
        why=DAMAGED_INSIDE,
    ),
    case(
        "body is not gzip",
        lambda w: batch(attributes=GZIP, body=b"zzzzzzz"),
        E.INVALID_RECORD,
        topic="deep",
        kafka=E.UNKNOWN_SERVER_ERROR,
        why=DAMAGED_INSIDE,
    ),
    case("valid", lambda w: batch(), E.NONE, topic="deep"),
]

NULL_KEY = [(b"a", b"v"), (None, b"v")]
COMPACTED = [
    case("null key", lambda w: batch(NULL_KEY), E.INVALID_RECORD, topic="compact"),
    case("null key", lambda w: batch(NULL_KEY), E.INVALID_RECORD, topic="compact", version=7),
    case(
        "null key in gzip",
        lambda w: batch(NULL_KEY, attributes=GZIP, compress=gzip.compress),
        E.INVALID_RECORD,
        topic="compact",
    ),
    case("empty key", lambda w: batch([(b"", b"v")]), E.NONE, topic="compact"),
    case("tombstone", lambda w: batch([(b"a", None)]), E.NONE, topic="compact"),
    Case(
        "null keys are named one by one",
        "Produce",
        12,
        lambda w: produce(w["compact"], batch([*NULL_KEY, (None, b"w")])),
        E.INVALID_RECORD,
        {"batch_index": [1, 2]},
    ),
]

TIMES = [
    case("2 h ahead", lambda w: batch(timestamp=now_ms() + 2 * HOUR_MS), E.INVALID_TIMESTAMP),
    case("30 min ahead", lambda w: batch(timestamp=now_ms() + HOUR_MS // 2), E.NONE),
    case("1970", lambda w: batch(timestamp=1000), E.NONE),
    case("timestamp -1", lambda w: batch(timestamp=-1), E.NONE),
    case("timestamp -5", lambda w: batch(timestamp=-5), E.NONE),
    case(
        "after.max 1 s: a minute ahead",
        lambda w: batch(timestamp=now_ms() + 60_000),
        E.INVALID_TIMESTAMP,
        topic="bounded",
    ),
    case(
        "before.max 1 min: 2 min ago",
        lambda w: batch(timestamp=now_ms() - 120_000),
        E.INVALID_TIMESTAMP,
        topic="bounded",
    ),
    case(
        "one of two records too old",
        lambda w: batch([(b"a", b"b")] * 2, time_deltas=[0, -120_000]),
        E.INVALID_TIMESTAMP,
        topic="bounded",
    ),
    case(
        "gzipped record ahead, header silent",
        lambda w: batch(
            timestamp=(now := now_ms()),
            max_timestamp=now,
            time_deltas=[100_000],
            attributes=GZIP,
            compress=gzip.compress,
        ),
        E.INVALID_TIMESTAMP,
        topic="bounded",
    ),
    case(
        "header ahead, records fine",
        lambda w: batch(timestamp=(now := now_ms()), max_timestamp=now + 100_000),
        E.NONE,
        topic="bounded",
    ),
    case(
        "LogAppendTime, far ahead", lambda w: batch(timestamp=10**16), E.NONE, topic="append-time"
    ),
]

SIZES = [
    case(
        "above max.message.bytes",
        lambda w: batch([(b"k", b"x" * 2000)]),
        E.MESSAGE_TOO_LARGE,
        topic="small",
    ),
    case("exactly max.message.bytes", lambda w: at_limit(), E.NONE, topic="small"),
    case("above the default limit", lambda w: batch([(b"k", b"x" * 1048588)]), E.MESSAGE_TOO_LARGE),
    case(
        "above segment.bytes",
        lambda w: batch([(b"k", b"x" * (2 << 20))]),
        E.RECORD_LIST_TOO_LARGE,
        topic="segment",
    ),
    case("converted to gzip", lambda w: batch(), E.NONE, topic="gzip"),
]

NULL_RECORDS = [
    case(
        "null records",
        lambda w: None,
        E.INVALID_RECORD,
        version=version,
        kafka=SILENT,
        why="Kafka fails inside and never answers; a client would wait for nothing",
    )
    for version in (12, 13)
]

CASES = [
    *WHERE,
    *DAMAGE,
    *OLD_FORMATS,
    *HEADER,
    *RECORDS,
    *DEEP,
    *COMPACTED,
    *TIMES,
    *SIZES,
    *NULL_RECORDS,
]
