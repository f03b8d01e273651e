"""Edge cases of Fetch, ListOffsets, OffsetForLeaderEpoch and DeleteRecords.

Topic "read": partition 0 has offsets 0-9 in batches of two (97 bytes each), 1 nothing, 2 has 0-5.
Topic "times": partition 0 has offsets 0-5 at T0 + 0, 100, 50 | 1000, 1010 | 500, partition 1
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compat.edge_case import T0, Case, Expected, World
from compat.raw_requests import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    NULL_ID,
    UNKNOWN_ID,
    delete_records,
    fetch,
    list_offsets,
    offset_for_leader_epoch,
)
from compat.raw_requests import message as request
from millstream.core.errors import ErrorCode as E

BATCH = 97
WHOLE = "Kafka fills the limit with a piece of the next batch, which the client throws away"
NOT_THERE = {"high_watermark": [-1], "last_stable_offset": [-1], "log_start_offset": [-1]}


def reads(name: str, expect: Expected, *args: int, version: int = 12, **how: Any) -> Case:
    """Fetch from "read"; by id from v13."""
    why, kafka = how.pop("why", ""), how.pop("kafka", None)
    shows = how.pop("shows", {})
    return Case(
        name,
        "Fetch",
        version,
        lambda w: fetch(w.id("read") if version >= 13 else w["read"], *args, **how),
        expect,
        shows,
        kafka,
        why,
    )


def from_id(name: str, topic_id: bytes, expect: E, *, version: int = 18) -> Case:
    return Case(name, "Fetch", version, lambda w: fetch(topic_id), expect)


def both_partitions(world: World, partition_max_bytes: int) -> Any:
    rows = [
        {"partition": p, "fetch_offset": 0, "partition_max_bytes": partition_max_bytes}
        for p in (0, 2)
    ]
    return request(
        "Fetch",
        max_wait_ms=100,
        max_bytes=1 << 20,
        topics=[{"topic": world["read"], "partitions": rows}],
    )


def sizes(*counts: int) -> dict[str, Any]:
    return {"records": [b"" if count == 0 else _Sized(count * BATCH) for count in counts]}


class _Sized:
    """Equal to any bytes of this size."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, bytes | memoryview) and len(other) == self.size

    def __repr__(self) -> str:
        return f"<{self.size} bytes>"


FETCH = [
    *[reads("from the start", E.NONE, version=v, shows=sizes(5)) for v in (4, 11, 12, 13, 17, 18)],
    reads("from the middle of a batch", E.NONE, 3, shows=sizes(4)),
    reads("at the end", E.NONE, 10, shows=sizes(0) | {"high_watermark": [10]}),
    reads("beyond the end", E.OFFSET_OUT_OF_RANGE, 11, shows=NOT_THERE),
    reads("offset -1", E.OFFSET_OUT_OF_RANGE, -1),
    reads("offset -2", E.OFFSET_OUT_OF_RANGE, -2),
    reads("empty partition", E.NONE, 0, partition=1, shows=sizes(0)),
    reads("empty partition, offset 1", E.OFFSET_OUT_OF_RANGE, 1, partition=1),
    reads("unknown partition", E.UNKNOWN_TOPIC_OR_PARTITION, partition=9),
    reads("unknown partition", E.UNKNOWN_TOPIC_OR_PARTITION, partition=9, version=18),
    reads("negative partition", E.UNKNOWN_TOPIC_OR_PARTITION, partition=-1),
    Case("unknown topic", "Fetch", 12, lambda w: fetch(w["nope"]), E.UNKNOWN_TOPIC_OR_PARTITION),
    from_id("unknown id", UNKNOWN_ID, E.UNKNOWN_TOPIC_ID),
    from_id("unknown id", UNKNOWN_ID, E.UNKNOWN_TOPIC_ID, version=13),
    from_id("zero id", NULL_ID, E.UNKNOWN_TOPIC_ID),
    Case("no topics", "Fetch", 12, lambda w: fetch(None), E.NONE, {"responses": [[]]}),
    Case("no topics", "Fetch", 18, lambda w: fetch(None), E.NONE, {"responses": [[]]}),
    reads("the right leader epoch", E.NONE, leader_epoch=0),
    reads("a newer leader epoch", E.UNKNOWN_LEADER_EPOCH, leader_epoch=5),
    reads("a newer leader epoch", E.UNKNOWN_LEADER_EPOCH, leader_epoch=5, version=18),
    reads("leader epoch -2", E.NONE, leader_epoch=-2),
    reads("last fetched epoch known", E.NONE, 4, last_fetched_epoch=0),
    reads("last fetched epoch newer than the log", E.OFFSET_OUT_OF_RANGE, 4, last_fetched_epoch=3),
    reads("partition limit 1 gives one batch", E.NONE, partition_max_bytes=1, shows=sizes(1)),
    reads("partition limit 0 gives one batch", E.NONE, partition_max_bytes=0, shows=sizes(1)),
    reads(
        "partition limit 100 gives one batch",
        E.NONE,
        partition_max_bytes=100,
        shows=sizes(1),
        kafka=E.NONE,
        why=WHOLE,
    ),
    reads("limit 1 gives one batch", E.NONE, max_bytes=1, shows=sizes(1)),
    reads("limit 0 gives one batch", E.NONE, max_bytes=0, shows=sizes(1)),
    reads(
        "limit 100 gives one batch", E.NONE, max_bytes=100, shows=sizes(1), kafka=E.NONE, why=WHOLE
    ),
    Case(
        "only the first partition exceeds its limit",
        "Fetch",
        12,
        lambda w: both_partitions(w, 1),
        E.NONE,
        sizes(1, 0),
    ),
    reads(
        "read committed", E.NONE, isolation_level=1, shows=sizes(5) | {"aborted_transactions": [[]]}
    ),
    reads("another replica of this partition", E.NOT_LEADER_OR_FOLLOWER, replica_id=99),
    reads("a debugging consumer", E.NONE, replica_id=-2, shows=sizes(5)),
    reads(
        "a replica in the tagged field",
        E.NOT_LEADER_OR_FOLLOWER,
        version=18,
        replica_state={"replica_id": 99},
    ),
    reads("another cluster id", E.NONE, cluster_id="wrong", shows=sizes(5)),
    reads(
        "unknown session",
        E.FETCH_SESSION_ID_NOT_FOUND,
        session=(12345, 1),
        shows={"responses": [[]]},
    ),
    reads("unknown session", E.FETCH_SESSION_ID_NOT_FOUND, session=(12345, 1), version=18),
    reads("session 0, epoch 1", E.FETCH_SESSION_ID_NOT_FOUND, session=(0, 1)),
    reads("unknown session, new one wanted", E.NONE, session=(12345, 0), shows=sizes(5)),
    reads(
        "unknown session, none wanted",
        E.NONE,
        session=(12345, -1),
        shows=sizes(5) | {"session_id": [0]},
    ),
]


def offsets(
    name: str,
    mark: int,
    expect: Expected,
    *found: int,
    version: int = 11,
    topic: str = "times",
    **how: Any,
) -> Case:
    """``found``: offset and, if it matters, timestamp."""
    shows = {"offset": [found[0]]} if found else {}
    shows |= {"timestamp": [found[1]]} if len(found) > 1 else {}
    return Case(
        name,
        "ListOffsets",
        version,
        lambda w: list_offsets(w[topic], mark, **how),
        expect,
        shows,
        kafka=None,
    )


NEWER_MARKS = ((MAX_TIMESTAMP, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 99))
LIST_OFFSETS = [
    *[offsets("latest", LATEST, E.NONE, 6, -1, version=v) for v in (1, 4, 7, 8, 11)],
    *[offsets("earliest", EARLIEST, E.NONE, 0, -1, version=v) for v in (1, 4, 7, 8, 11)],
    *[offsets("max timestamp", MAX_TIMESTAMP, E.NONE, 4, T0 + 1010, version=v) for v in (7, 8, 11)],
    *[offsets("earliest local", -4, E.NONE, 0, -1, version=v) for v in (8, 11)],
    *[offsets("latest tiered, nothing is", -5, E.NONE, -1, -1, version=v) for v in (9, 11)],
    offsets("earliest pending upload, nothing is", -6, E.NONE, -1, -1),
    *[
        offsets(f"mark {mark} before its version", mark, E.UNSUPPORTED_VERSION, -1, version=v)
        for mark, since in NEWER_MARKS
        for v in (1, 4, 7, 8, 11)
        if v < since
    ],
    *[
        offsets(f"T0 + {after}", T0 + after, E.NONE, offset, T0 + stamp)
        for after, offset, stamp in (
            (-T0, 0, 0),
            (0, 0, 0),
            (1, 1, 100),
            (50, 1, 100),
            (51, 1, 100),
            (100, 1, 100),
            (101, 3, 1000),
            (500, 3, 1000),
            (1000, 3, 1000),
            (1001, 4, 1010),
            (1010, 4, 1010),
        )
    ],
    offsets("after everything", T0 + 1011, E.NONE, -1, -1),
    *[
        offsets(f"empty partition, mark {m}", m, E.NONE, 0, -1, partition=1)
        for m in (LATEST, EARLIEST, -4)
    ],
    *[
        offsets(f"empty partition, time {m}", m, E.NONE, -1, -1, partition=1)
        for m in (MAX_TIMESTAMP, -5, 0, T0)
    ],
    offsets("unknown topic", LATEST, E.UNKNOWN_TOPIC_OR_PARTITION, -1, -1, topic="nope"),
    offsets("unknown partition", LATEST, E.UNKNOWN_TOPIC_OR_PARTITION, -1, -1, partition=8),
    offsets("the right leader epoch", LATEST, E.NONE, 6, leader_epoch=0),
    offsets("a newer leader epoch", LATEST, E.UNKNOWN_LEADER_EPOCH, -1, leader_epoch=3),
    offsets("read committed", LATEST, E.NONE, 6, isolation_level=1),
    offsets("the same partition twice", LATEST, E.INVALID_REQUEST, -1, times=2),
    offsets("a debugging consumer", LATEST, E.NONE, 6, replica_id=-2),
]


def epochs(name: str, expect: E, epoch: int, *shown: int, version: int = 4, **how: Any) -> Case:
    topic = how.pop("topic", "times")
    return Case(
        name,
        "OffsetForLeaderEpoch",
        version,
        lambda w: offset_for_leader_epoch(w[topic], epoch, **how),
        expect,
        {"leader_epoch": [shown[0]], "end_offset": [shown[1]]},
    )


EPOCHS = [
    epochs("the epoch of the log", E.NONE, 0, 0, 6),
    epochs("the epoch of the log", E.NONE, 0, 0, 6, version=2),
    epochs("current epoch told", E.NONE, 0, 0, 6, current=0),
    epochs("an epoch to come", E.NONE, 1, -1, -1),
    epochs("a far epoch", E.NONE, 7, -1, -1),
    epochs("no epoch", E.NONE, -1, -1, -1),
    epochs("a newer current epoch", E.UNKNOWN_LEADER_EPOCH, 0, -1, -1, current=5),
    epochs("unknown topic", E.UNKNOWN_TOPIC_OR_PARTITION, 0, -1, -1, topic="nope"),
    epochs("unknown partition", E.UNKNOWN_TOPIC_OR_PARTITION, 0, -1, -1, partition=9),
    epochs("empty partition", E.NONE, 0, 0, 0, partition=1),
]


def deletes(
    name: str, expect: E, topic: Callable[[World], str], offset: int, low: int, **how: Any
) -> Case:
    return Case(
        name,
        "DeleteRecords",
        2,
        lambda w: delete_records(topic(w), offset, **how),
        expect,
        {"low_watermark": [low]},
    )


DELETE_RECORDS = [
    deletes("beyond the end", E.OFFSET_OUT_OF_RANGE, lambda w: w["read"], 11, -1),
    deletes("-2", E.OFFSET_OUT_OF_RANGE, lambda w: w["read"], -2, -1),
    deletes("nothing to delete", E.NONE, lambda w: w["read"], 0, 0),
    deletes("unknown topic", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w["nope"], 0, -1),
    deletes(
        "unknown partition", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w["read"], 0, -1, partition=9
    ),
    deletes("invalid topic name", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: "a b", 0, -1),
    deletes("empty partition, to its end", E.NONE, lambda w: w["read"], -1, 0, partition=1),
    deletes(
        "empty partition, beyond", E.OFFSET_OUT_OF_RANGE, lambda w: w["read"], 1, -1, partition=1
    ),
    deletes("compacted topic", E.POLICY_VIOLATION, lambda w: w["compact"], -1, -1),
    deletes("compacted and deleted topic", E.NONE, lambda w: w["both"], -1, 1),
]

CASES = [*FETCH, *LIST_OFFSETS, *EPOCHS, *DELETE_RECORDS]
