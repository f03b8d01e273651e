"""Edge cases of DescribeConfigs, IncrementalAlterConfigs, AlterConfigs and ListConfigResources.

Topic "set" has retention.ms 5000 and cleanup.policy compact. Rows that would change something are
validated only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compat.edge_case import Case, Expected, World
from compat.raw_requests import (
    APPEND,
    BROKER,
    CLIENT_METRICS,
    DELETE,
    GROUP,
    LOGGER,
    SET,
    SUBTRACT,
    TOPIC,
    alter_configs,
    alter_incrementally,
    describe_configs,
)
from compat.raw_requests import message as request
from millstream.core.errors import ErrorCode as E
from millstream.wire.schema import Struct

Body = Callable[[World], Struct]


def describes(name: str, expect: Expected, body: Body, version: int = 4, **more: Any) -> Case:
    return Case(name, "DescribeConfigs", version, body, expect, **more)


def two_settings(world: World) -> Struct:
    return describe_configs(TOPIC, world["set"], "retention.ms", "segment.bytes")


DESCRIBE = [
    describes(
        "unknown setting of a topic",
        E.NONE,
        lambda w: describe_configs(TOPIC, w["set"], "foo.bar"),
        shows={"configs": [[]]},
    ),
    describes(
        "unknown topic", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: describe_configs(TOPIC, w["nope"])
    ),
    describes(
        "invalid topic name", E.INVALID_TOPIC_EXCEPTION, lambda w: describe_configs(TOPIC, "a b")
    ),
    describes("empty topic name", E.INVALID_TOPIC_EXCEPTION, lambda w: describe_configs(TOPIC, "")),
    describes("another broker", E.INVALID_REQUEST, lambda w: describe_configs(BROKER, "77")),
    describes(
        "a broker that is no number", E.INVALID_REQUEST, lambda w: describe_configs(BROKER, "abc")
    ),
    describes(
        "the loggers of another broker", E.INVALID_REQUEST, lambda w: describe_configs(LOGGER, "77")
    ),
    describes("unknown kind 99", E.INVALID_REQUEST, lambda w: describe_configs(99, "x")),
    describes("unknown kind 0", E.INVALID_REQUEST, lambda w: describe_configs(0, "x")),
    describes(
        "client metrics without a name",
        E.INVALID_REQUEST,
        lambda w: describe_configs(CLIENT_METRICS, ""),
    ),
    describes("a group without a name", E.INVALID_REQUEST, lambda w: describe_configs(GROUP, "")),
    describes(
        "nothing", (), lambda w: request("DescribeConfigs", resources=[]), shows={"results": [[]]}
    ),
    describes(
        "a resource twice",
        (E.NONE, E.NONE),
        lambda w: request(
            "DescribeConfigs",
            resources=[
                {
                    "resource_type": TOPIC,
                    "resource_name": w["set"],
                    "configuration_keys": ["retention.ms"],
                }
            ]
            * 2,
        ),
    ),
]


def alters(name: str, expect: Expected, body: Body, **more: Any) -> Case:
    return Case(name, "IncrementalAlterConfigs", 1, body, expect, **more)


def topic_change(*operations: tuple[str, int, str | None], **how: Any) -> Body:
    return lambda w: alter_incrementally(TOPIC, w["set"], *operations, **how)


def broker_change(
    key: str, what: int, value: str | None, *, name: str | None = None, dry: bool = True
) -> Body:
    return lambda w: alter_incrementally(
        BROKER, str(w.node_id) if name is None else name, (key, what, value), validate_only=dry
    )


INCREMENTAL = [
    alters(
        "append an unknown policy",
        E.INVALID_CONFIG,
        topic_change(("cleanup.policy", APPEND, "shred")),
    ),
    alters("append to a number", E.INVALID_CONFIG, topic_change(("retention.ms", APPEND, "1"))),
    alters(
        "subtract from a number", E.INVALID_CONFIG, topic_change(("retention.ms", SUBTRACT, "1"))
    ),
    alters("set an unknown setting", E.INVALID_CONFIG, topic_change(("foo.bar", SET, "1"))),
    alters("delete an unknown setting", E.NONE, topic_change(("foo.bar", DELETE, None))),
    alters(
        "unknown operation",
        E.INVALID_REQUEST,
        topic_change(("retention.ms", 9, "1")),
        kafka=E.UNKNOWN_SERVER_ERROR,
        why="Kafka fails inside",
    ),
    alters("set to null", E.INVALID_REQUEST, topic_change(("retention.ms", SET, None))),
    alters("append null", E.INVALID_REQUEST, topic_change(("cleanup.policy", APPEND, None))),
    alters(
        "a setting twice",
        E.INVALID_REQUEST,
        topic_change(("retention.ms", SET, "1"), ("retention.ms", SET, "2")),
    ),
    alters("not a number", E.INVALID_CONFIG, topic_change(("retention.ms", SET, "abc"))),
    alters(
        "validated only, wrong",
        E.INVALID_CONFIG,
        topic_change(("retention.ms", SET, "x"), validate_only=True),
    ),
    alters(
        "one good, one bad",
        E.INVALID_CONFIG,
        topic_change(("retention.ms", SET, "777"), ("foo", SET, "1")),
    ),
    alters("no operations", E.NONE, topic_change()),
    alters(
        "a resource twice", E.INVALID_REQUEST, topic_change(("retention.ms", SET, "1"), times=2)
    ),
    alters(
        "unknown topic",
        E.UNKNOWN_TOPIC_OR_PARTITION,
        lambda w: alter_incrementally(TOPIC, w["nope"], ("retention.ms", SET, "1")),
    ),
    alters(
        "invalid topic name",
        E.INVALID_TOPIC_EXCEPTION,
        lambda w: alter_incrementally(TOPIC, "a b", ("retention.ms", SET, "1")),
    ),
    alters(
        "empty topic name",
        E.INVALID_REQUEST,
        lambda w: alter_incrementally(TOPIC, "", ("retention.ms", SET, "1")),
    ),
    alters(
        "unknown kind 99",
        E.INVALID_REQUEST,
        lambda w: alter_incrementally(99, "x", ("a", SET, "b")),
    ),
    alters("broker: read only", E.INVALID_REQUEST, broker_change("log.dirs", SET, "/x")),
    alters(
        "broker: not a number", E.INVALID_REQUEST, broker_change("log.cleaner.threads", SET, "x")
    ),
    *(
        alters(
            f"broker: {name}, which would do nothing",
            E.INVALID_REQUEST,
            broker_change(name, SET, value),
            kafka=E.NONE,
            why="Kafka opens and closes listeners while it runs",
        )
        for name, value in {
            "listeners": "PLAINTEXT://127.0.0.1:9092",
            "advertised.listeners": "PLAINTEXT://h:1",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT",
        }.items()
    ),
    *(
        alters(f"cluster: {name}", E.NONE, broker_change(name, SET, "1000", name=""))
        for name in (
            "leader.replication.throttled.rate",
            "follower.replication.throttled.rate",
            "replica.alter.log.dirs.io.max.bytes.per.second",
        )
    ),
    *(
        alters(
            f"throttled replicas {value!r}",
            expect,
            topic_change(
                (f"{side}.replication.throttled.replicas", SET, value), validate_only=True
            ),
        )
        for side in ("leader", "follower")
        for value, expect in {
            "": E.NONE,
            "*": E.NONE,
            "0:1,1:2": E.NONE,
            "0:1,*": E.INVALID_CONFIG,
            "0": E.INVALID_CONFIG,
            "0:a": E.INVALID_CONFIG,
            "-1:0": E.INVALID_CONFIG,
        }.items()
    ),
    alters(
        "broker: another",
        E.INVALID_REQUEST,
        broker_change("log.cleaner.threads", SET, "2", name="77"),
    ),
    alters(
        "broker: no number",
        E.INVALID_REQUEST,
        broker_change("log.cleaner.threads", SET, "2", name="abc"),
    ),
    alters(
        "broker: set an unknown setting",
        E.NONE,
        broker_change("foo.bar", SET, "1"),
    ),
    alters("broker: delete an unknown setting", E.NONE, broker_change("foo.bar", DELETE, None)),
    alters("broker: validated only", E.NONE, broker_change("log.cleaner.threads", SET, "2")),
]


def replaces(name: str, expect: Expected, body: Body, version: int = 2, **more: Any) -> Case:
    return Case(name, "AlterConfigs", version, body, expect, **more)


REPLACE = [
    replaces(
        "unknown setting", E.INVALID_CONFIG, lambda w: alter_configs(TOPIC, w["set"], ("foo", "1"))
    ),
    replaces(
        "null value",
        E.INVALID_REQUEST,
        lambda w: alter_configs(TOPIC, w["set"], ("segment.ms", None)),
    ),
    replaces(
        "not a number",
        E.INVALID_CONFIG,
        lambda w: alter_configs(TOPIC, w["set"], ("segment.ms", "x")),
    ),
    replaces(
        "a setting twice",
        E.INVALID_REQUEST,
        lambda w: alter_configs(TOPIC, w["set"], ("segment.ms", "5"), ("segment.ms", "6")),
    ),
    replaces(
        "unknown topic",
        E.UNKNOWN_TOPIC_OR_PARTITION,
        lambda w: alter_configs(TOPIC, w["nope"], ("segment.ms", "1")),
    ),
    replaces(
        "validated only",
        E.NONE,
        lambda w: alter_configs(TOPIC, w["set"], ("segment.ms", "5"), validate_only=True),
    ),
    replaces(
        "loggers",
        E.INVALID_REQUEST,
        lambda w: alter_configs(LOGGER, str(w.node_id), ("kafka", "INFO")),
    ),
]

LIST = [
    Case(
        "unknown kind",
        "ListConfigResources",
        1,
        lambda w, kind=kind: request("ListConfigResources", resource_types=[kind]),
        E.UNSUPPORTED_VERSION,
        {"config_resources": [[]]},
    )
    for kind in (0, 99)
]

CASES = [*DESCRIBE, *INCREMENTAL, *REPLACE, *LIST]
