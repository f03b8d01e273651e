"""Edge cases of CreateTopics, DeleteTopics, CreatePartitions, Metadata and
DescribeTopicPartitions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compat.edge_case import Case, Expected, World
from compat.raw_requests import (
    NULL_ID,
    UNKNOWN_ID,
    create_partitions,
    create_topics,
    delete_topics,
    delete_topics_by_name,
    describe_topic_partitions,
    metadata,
    new_topic,
)
from compat.raw_requests import message as request
from millstream.core.errors import ErrorCode as E
from millstream.wire.schema import Struct

NOT_MADE = {"topic_id": [NULL_ID], "num_partitions": [-1], "replication_factor": [-1]}
TIERED = "remote.storage.enable"


def creates(name: str, expect: Expected, body: Callable[[World], Struct], **more: Any) -> Case:
    return Case(name, "CreateTopics", more.pop("version", 7), body, expect, **more)


def refused(
    name: str, expect: E, *counts: int, assignments: Any = (), **configs: str | None
) -> Case:
    """A topic that is not made; settings are given with underscores for dots."""
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    return creates(
        name,
        expect,
        lambda w: create_topics(
            new_topic(w["refused"], *counts, configs=settings, assignments=_nodes(w, assignments))
        ),
        shows=NOT_MADE,
    )


def _nodes(world: World, assignments: Any) -> list[tuple[int, list[int]]]:
    """ "me" stands for the broker that is asked."""
    return [
        (p, [world.node_id if node == "me" else node for node in nodes]) for p, nodes in assignments
    ]


CREATE = [
    creates(
        "exists",
        E.TOPIC_ALREADY_EXISTS,
        lambda w: create_topics(new_topic(w["plain"])),
        shows=NOT_MADE,
    ),
    *[
        creates(
            f"name {bad!r}",
            E.INVALID_TOPIC_EXCEPTION,
            lambda w, bad=bad: create_topics(new_topic(bad)),
        )
        for bad in ("", ".", "..", "a b", "a/b", "ä", "a:b")
    ],
    creates(
        "name of 250", E.INVALID_TOPIC_EXCEPTION, lambda w: create_topics(new_topic("x" * 250))
    ),
    creates(
        "name of 249",
        E.NONE,
        lambda w: create_topics(new_topic(w["x"].ljust(249, "x")), validate_only=True),
    ),
    creates(
        "a name that collides in a metric name",
        E.INVALID_TOPIC_EXCEPTION,
        lambda w: create_topics(new_topic(w["dot.ted"].replace(".", "_"))),
    ),
    refused("no partitions", E.INVALID_PARTITIONS, 0),
    refused("-2 partitions", E.INVALID_PARTITIONS, -2),
    refused("replication factor 0", E.INVALID_REPLICATION_FACTOR, 1, 0),
    refused("replication factor -2", E.INVALID_REPLICATION_FACTOR, 1, -2),
    refused("more replicas than brokers", E.INVALID_REPLICATION_FACTOR, 1, 2),
    *(
        refused(
            f"{side} throttled replicas",
            E.INVALID_CONFIG,
            **{f"{side}_replication_throttled_replicas": "x"},
        )
        for side in ("leader", "follower")
    ),
    refused(
        "assignment and a count", E.INVALID_REQUEST, 2, -1, assignments=[(0, ["me"]), (1, ["me"])]
    ),
    refused("assignment and a factor", E.INVALID_REQUEST, -1, 1, assignments=[(0, ["me"])]),
    refused(
        "assignment with a gap",
        E.INVALID_REPLICA_ASSIGNMENT,
        -1,
        -1,
        assignments=[(0, ["me"]), (2, ["me"])],
    ),
    refused(
        "assignment naming a broker twice",
        E.INVALID_REPLICA_ASSIGNMENT,
        -1,
        -1,
        assignments=[(0, ["me", "me"])],
    ),
    refused("assignment to nobody", E.INVALID_REPLICA_ASSIGNMENT, -1, -1, assignments=[(0, [])]),
    refused(
        "assignment to broker 77", E.INVALID_REPLICA_ASSIGNMENT, -1, -1, assignments=[(0, [77])]
    ),
    refused(
        "assignment naming a partition twice",
        E.INVALID_REPLICA_ASSIGNMENT,
        -1,
        -1,
        assignments=[(0, ["me"]), (0, ["me"])],
    ),
    refused(
        "assignment of partition -1",
        E.INVALID_REPLICA_ASSIGNMENT,
        -1,
        -1,
        assignments=[(-1, ["me"])],
    ),
    creates(
        "assignment",
        E.NONE,
        lambda w: create_topics(
            new_topic(w["assigned"], -1, -1, assignments=_nodes(w, [(0, ["me"]), (1, ["me"])])),
            validate_only=True,
        ),
        shows={"num_partitions": [2], "replication_factor": [1]},
    ),
    refused("unknown setting", E.INVALID_CONFIG, foo_bar="1"),
    refused("removed setting", E.INVALID_CONFIG, message_format_version="3.0"),
    refused("not a number", E.INVALID_CONFIG, retention_ms="abc"),
    refused("out of range", E.INVALID_CONFIG, max_message_bytes="-1"),
    refused("a ratio above 1", E.INVALID_CONFIG, min_cleanable_dirty_ratio="1.5"),
    refused("unknown policy", E.INVALID_CONFIG, cleanup_policy="shred"),
    refused("unknown codec", E.INVALID_CONFIG, compression_type="brotli"),
    refused("not a boolean", E.INVALID_CONFIG, preallocate="maybe"),
    refused("null value", E.INVALID_CONFIG, retention_ms=None),
    refused(
        "lag bounds crossed",
        E.INVALID_CONFIG,
        min_compaction_lag_ms="10",
        max_compaction_lag_ms="5",
    ),
    refused("segment.bytes 10", E.INVALID_CONFIG, segment_bytes="10"),
    refused("segment.ms 0", E.INVALID_CONFIG, segment_ms="0"),
    refused("retention.ms -2", E.INVALID_CONFIG, retention_ms="-2"),
    refused("tiered storage", E.INVALID_CONFIG, remote_storage_enable="true"),
    *[
        creates(
            name,
            E.NONE,
            lambda w, key=key, value=value: create_topics(
                new_topic(w["set-once"], configs={key: value}), validate_only=True
            ),
        )
        for name, key, value in (
            ("spaces around a number", "retention.ms", " 5 "),
            ("a policy twice", "cleanup.policy", "delete,delete"),
            ("no policy", "cleanup.policy", ""),
        )
    ],
    creates(
        "a setting twice: the last one counts",
        E.NONE,
        lambda w: create_topics(
            new_topic(w["twice"], configs=[("retention.ms", "1"), ("retention.ms", "2")]),
            validate_only=True,
        ),
    ),
    *[
        creates(
            "counts left to the broker",
            E.NONE,
            lambda w: create_topics(new_topic(w["counts"], -1, -1), validate_only=True),
            version=v,
        )
        for v in (2, 3, 4, 5, 7)
    ],
    creates(
        "validated only, exists",
        E.TOPIC_ALREADY_EXISTS,
        lambda w: create_topics(new_topic(w["plain"]), validate_only=True),
    ),
    creates(
        "validated only, wrong",
        E.INVALID_PARTITIONS,
        lambda w: create_topics(new_topic(w["v"], 0), validate_only=True),
    ),
    creates("nothing", (), lambda w: create_topics(), shows={"topics": [[]]}),
    creates(
        "no time to do it",
        E.NONE,
        lambda w: create_topics(new_topic(w["no-time"]), timeout_ms=0),
        kafka=E.REQUEST_TIMED_OUT,
        why="Kafka answers before it knows and creates it all the same; here the topic is there when we answer",
    ),
]

DELETE = [
    Case(
        "unknown name",
        "DeleteTopics",
        6,
        lambda w: delete_topics(w["nope"]),
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    Case(
        "unknown name",
        "DeleteTopics",
        1,
        lambda w: delete_topics_by_name(w["nope"]),
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    Case("unknown id", "DeleteTopics", 6, lambda w: delete_topics(UNKNOWN_ID), E.UNKNOWN_TOPIC_ID),
    Case(
        "neither name nor id",
        "DeleteTopics",
        6,
        lambda w: delete_topics(NULL_ID),
        E.INVALID_REQUEST,
    ),
    Case(
        "name and id of one entry",
        "DeleteTopics",
        6,
        lambda w: request("DeleteTopics", topics=[{"name": w["plain"], "topic_id": w.id("plain")}]),
        E.INVALID_REQUEST,
    ),
    Case(
        "name and id as two entries",
        "DeleteTopics",
        6,
        lambda w: delete_topics(w["plain"], w.id("plain")),
        E.INVALID_REQUEST,
    ),
    Case(
        "a name twice",
        "DeleteTopics",
        6,
        lambda w: delete_topics(w["plain"], w["plain"]),
        E.INVALID_REQUEST,
    ),
    Case(
        "an id twice",
        "DeleteTopics",
        6,
        lambda w: delete_topics(w.id("plain"), w.id("plain")),
        E.INVALID_REQUEST,
    ),
    Case(
        "invalid name",
        "DeleteTopics",
        6,
        lambda w: delete_topics("a b"),
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    Case(
        "empty name", "DeleteTopics", 6, lambda w: delete_topics(""), E.UNKNOWN_TOPIC_OR_PARTITION
    ),
    Case("nothing", "DeleteTopics", 6, lambda w: delete_topics(), ()),
]


def grows(
    name: str, expect: E, count: int, *, assignments: Any = None, topic: str = "two", **more: Any
) -> Case:
    def body(world: World) -> Struct:
        given = (
            None
            if assignments is None
            else [[world.node_id if n == "me" else n for n in a] for a in assignments]
        )
        return create_partitions(
            world[topic] if topic != "a b" else topic, count, assignments=given, **more
        )

    return Case(name, "CreatePartitions", 3, body, expect)


GROW = [
    grows("fewer", E.INVALID_PARTITIONS, 1),
    grows("as many", E.INVALID_PARTITIONS, 2),
    grows("none", E.INVALID_PARTITIONS, 0),
    grows("-1", E.INVALID_PARTITIONS, -1),
    grows("unknown topic", E.UNKNOWN_TOPIC_OR_PARTITION, 3, topic="nope"),
    grows("invalid name", E.UNKNOWN_TOPIC_OR_PARTITION, 3, topic="a b"),
    grows("validated only", E.NONE, 3, validate_only=True),
    grows(
        "fewer assignments than new partitions",
        E.INVALID_REPLICA_ASSIGNMENT,
        4,
        assignments=[["me"]],
    ),
    grows("assignment to broker 77", E.INVALID_REPLICA_ASSIGNMENT, 3, assignments=[[77]]),
    grows("assignment to nobody", E.INVALID_REPLICA_ASSIGNMENT, 3, assignments=[[]]),
    grows(
        "assignment naming a broker twice",
        E.INVALID_REPLICA_ASSIGNMENT,
        3,
        assignments=[["me", "me"]],
    ),
    grows("no assignments in a list", E.INVALID_REPLICA_ASSIGNMENT, 3, assignments=[]),
    grows("assignment, validated only", E.NONE, 3, assignments=[["me"]], validate_only=True),
    grows("a topic twice", E.INVALID_REQUEST, 5, times=2),
]


def looks_up(
    name: str, expect: Expected, body: Callable[[World], Struct], version: int = 13, **more: Any
) -> Case:
    return Case(name, "Metadata", version, body, expect, **more)


METADATA = [
    *[
        looks_up(
            "known", E.NONE, lambda w: metadata(w["two"]), v, shows={"partition_index": [0, 1]}
        )
        for v in (0, 5, 9, 12, 13)
    ],
    looks_up("none asked for", E.NONE, lambda w: metadata(), shows={"topics": [[]]}),
    looks_up("none asked for", E.NONE, lambda w: metadata(), 1, shows={"topics": [[]]}),
    looks_up(
        "by id", E.NONE, lambda w: metadata(w.id("two")), 12, shows={"partition_index": [0, 1]}
    ),
    looks_up(
        "unknown id",
        E.UNKNOWN_TOPIC_ID,
        lambda w: metadata(UNKNOWN_ID),
        12,
        shows={"topic_id": [UNKNOWN_ID]},
    ),
    looks_up(
        "neither name nor id",
        E.UNKNOWN_TOPIC_ID,
        lambda w: metadata(NULL_ID),
        12,
        kafka=E.UNKNOWN_SERVER_ERROR,
        why="Kafka fails inside",
    ),
    looks_up("unknown name", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: metadata(w["nope"])),
    looks_up("invalid name", E.INVALID_TOPIC_EXCEPTION, lambda w: metadata("a b")),
    looks_up(
        "invalid name, to be created",
        E.INVALID_TOPIC_EXCEPTION,
        lambda w: metadata("x" * 250, auto_create=True),
    ),
    looks_up("empty name", E.INVALID_TOPIC_EXCEPTION, lambda w: metadata("")),
    looks_up(
        "a name twice",
        E.NONE,
        lambda w: metadata(w["page-3"], w["page-3"]),
        shows={"partition_index": [0]},
    ),
    looks_up(
        "name and id of different topics: the id counts",
        E.NONE,
        lambda w: metadata({"name": w["plain"], "topic_id": w.id("two")}),
        12,
        shows={"partition_index": [0, 1]},
    ),
    looks_up(
        "by id before its version",
        E.INVALID_REQUEST,
        lambda w: metadata({"name": w["two"], "topic_id": w.id("two")}),
        11,
    ),
    looks_up(
        "null name before its version", E.INVALID_REQUEST, lambda w: metadata(w.id("two")), 10
    ),
    looks_up(
        "authorized operations",
        E.NONE,
        lambda w: metadata(w["plain"], include_topic_authorized_operations=True),
        shows={"topic_authorized_operations": [3576]},
    ),
]


def pages(name: str, expect: Expected, body: Callable[[World], Struct], **shows: Any) -> Case:
    return Case(name, "DescribeTopicPartitions", 0, body, expect, shows)


def three(world: World) -> list[str]:
    return [world["page-1"], world["page-2"], world["page-3"]]


PAGES = [
    pages(
        "two of all",
        E.NONE,
        lambda w: describe_topic_partitions(*three(w), limit=2),
        partition_index=[0, 1, 2],
    ),
    pages(
        "a cursor within the first",
        E.NONE,
        lambda w: describe_topic_partitions(*three(w), cursor=(w["page-1"], 2), limit=3),
        partition_index=[2, 3, 0, 1],
    ),
    pages(
        "a cursor at the second",
        E.NONE,
        lambda w: describe_topic_partitions(*three(w), cursor=(w["page-2"], 0), limit=3),
        partition_index=[0, 1, 2, 0],
    ),
    pages(
        "exactly one topic",
        E.NONE,
        lambda w: describe_topic_partitions(*three(w)[:2], limit=4),
        partition_index=[0, 1, 2, 3, 0],
    ),
    pages(
        "names in any order",
        E.NONE,
        lambda w: describe_topic_partitions(*three(w)[::-2], limit=2),
        partition_index=[0, 1, 2],
    ),
    pages(
        "a name twice",
        E.NONE,
        lambda w: describe_topic_partitions(w["page-3"], w["page-3"]),
        partition_index=[0],
    ),
    pages(
        "limit 0 gives one",
        E.NONE,
        lambda w: describe_topic_partitions(w["page-1"], limit=0),
        partition_index=[0, 1],
    ),
    pages(
        "limit -1 gives one",
        E.NONE,
        lambda w: describe_topic_partitions(w["page-1"], limit=-1),
        partition_index=[0, 1],
    ),
    pages(
        "a cursor at a topic not asked for",
        E.INVALID_REQUEST,
        lambda w: describe_topic_partitions(w["page-1"], w["page-3"], cursor=(w["page-2"], 0)),
    ),
    pages(
        "a cursor at an unknown topic",
        E.INVALID_REQUEST,
        lambda w: describe_topic_partitions(w["page-1"], cursor=(w["zz"], 0)),
    ),
    pages(
        "a cursor at a negative partition",
        E.INVALID_REQUEST,
        lambda w: describe_topic_partitions(w["page-1"], cursor=(w["page-1"], -1)),
    ),
    pages(
        "a cursor behind the last partition",
        E.NONE,
        lambda w: describe_topic_partitions(*three(w)[:2], cursor=(w["page-1"], 9)),
        partition_index=[0, 1, 2],
    ),
    pages(
        "unknown topic",
        E.UNKNOWN_TOPIC_OR_PARTITION,
        lambda w: describe_topic_partitions(w["nope"], w["page-3"]),
    ),
    pages("invalid name", E.INVALID_TOPIC_EXCEPTION, lambda w: describe_topic_partitions("a b")),
]

CASES = [*CREATE, *DELETE, *GROW, *METADATA, *PAGES]
