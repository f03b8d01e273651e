"""Edge cases of ApiVersions, DescribeCluster, log directories, producers, features, coordinators,
telemetry.
"""

from __future__ import annotations

from typing import Any

from compat.edge_case import Case, World
from compat.raw_requests import NULL_ID, UNKNOWN_ID, init_producer_id
from compat.raw_requests import message as request
from millstream.core.errors import ErrorCode as E
from millstream.wire.schema import Struct


def greets(name: str, expect: E, version: int, **values: Any) -> Case:
    return Case(name, "ApiVersions", version, lambda w: request("ApiVersions", **values), expect)


NAMED = {"client_software_name": "tests", "client_software_version": "1"}
VERSIONS = [
    greets("no name in v0", E.NONE, 0),
    greets("a proper name", E.NONE, 3, **NAMED),
    greets("a proper name", E.NONE, 4, **NAMED),
    greets(
        "a name with a space",
        E.INVALID_REQUEST,
        3,
        client_software_name="a b",
        client_software_version="1",
    ),
    greets("an empty name", E.INVALID_REQUEST, 3),
]

CLUSTER = [
    *[
        Case("brokers", "DescribeCluster", v, lambda w: request("DescribeCluster"), E.NONE)
        for v in (0, 1, 2)
    ],
    Case(
        "controllers are asked elsewhere",
        "DescribeCluster",
        1,
        lambda w: request("DescribeCluster", endpoint_type=2),
        E.MISMATCHED_ENDPOINT_TYPE,
    ),
    Case(
        "unknown endpoint type",
        "DescribeCluster",
        1,
        lambda w: request("DescribeCluster", endpoint_type=9),
        E.UNSUPPORTED_ENDPOINT_TYPE,
    ),
    Case(
        "authorized operations",
        "DescribeCluster",
        0,
        lambda w: request("DescribeCluster", include_cluster_authorized_operations=True),
        E.NONE,
        {"cluster_authorized_operations": [8096]},
    ),
]


def log_dirs(world: World, *topics: tuple[str, list[int]]) -> Struct:
    return request(
        "DescribeLogDirs", topics=[{"topic": name, "partitions": ps} for name, ps in topics]
    )


def moves(
    name: str, expect: E, path: str | None, topic: str, partition: int = 0, version: int = 2
) -> Case:
    """``path`` None is the directory that has the partition already."""

    def body(world: World) -> Struct:
        return request(
            "AlterReplicaLogDirs",
            dirs=[
                {
                    "path": path or current_dir(world),
                    "topics": [{"name": world[topic], "partitions": [partition]}],
                }
            ],
        )

    return Case(name, "AlterReplicaLogDirs", version, body, expect)


def current_dir(world: World) -> str:
    answer = world.call("DescribeLogDirs", 4, log_dirs(world, (world["two"], [0])))
    return next(result.log_dir for result in answer.results if result.topics)


DIRS = [
    Case(
        "two partitions",
        "DescribeLogDirs",
        4,
        lambda w: log_dirs(w, (w["two"], [0])),
        E.NONE,
        {"partition_index": [0]},
    ),
    Case("no topics", "DescribeLogDirs", 4, lambda w: log_dirs(w), E.NONE, {"partition_index": []}),
    Case(
        "unknown topic",
        "DescribeLogDirs",
        4,
        lambda w: log_dirs(w, (w["nope"], [0])),
        E.NONE,
        {"partition_index": []},
    ),
    Case(
        "unknown partition",
        "DescribeLogDirs",
        4,
        lambda w: log_dirs(w, (w["two"], [7])),
        E.NONE,
        {"partition_index": []},
    ),
    Case(
        "no partitions",
        "DescribeLogDirs",
        1,
        lambda w: log_dirs(w, (w["two"], [])),
        E.NONE,
        {"partition_index": []},
    ),
    moves("unknown directory", E.LOG_DIR_NOT_FOUND, "/nonexistent", "two"),
    moves("unknown directory", E.LOG_DIR_NOT_FOUND, "/nonexistent", "two", version=1),
    moves("unknown directory, unknown topic", E.LOG_DIR_NOT_FOUND, "/nonexistent", "nope"),
    moves("relative path", E.LOG_DIR_NOT_FOUND, "rel/x", "two"),
    moves("where it is already", E.NONE, None, "two"),
    moves("unknown topic", E.UNKNOWN_TOPIC_OR_PARTITION, None, "nope"),
    moves("unknown partition", E.UNKNOWN_TOPIC_OR_PARTITION, None, "two", partition=9),
    Case(
        "nothing", "AlterReplicaLogDirs", 2, lambda w: request("AlterReplicaLogDirs", dirs=[]), ()
    ),
]


def producers(name: str, expect: E, topic: str, partition: int = 0) -> Case:
    return Case(
        name,
        "DescribeProducers",
        0,
        lambda w: request(
            "DescribeProducers",
            topics=[
                {
                    "name": topic[1:] if topic.startswith("=") else w[topic],
                    "partition_indexes": [partition],
                }
            ],
        ),
        expect,
    )


PRODUCERS = [
    producers("nobody", E.NONE, "two"),
    producers("unknown topic", E.UNKNOWN_TOPIC_OR_PARTITION, "nope"),
    producers("unknown partition", E.UNKNOWN_TOPIC_OR_PARTITION, "two", 3),
    producers("invalid topic name", E.INVALID_TOPIC_EXCEPTION, "=a b"),
    producers("empty topic name", E.INVALID_TOPIC_EXCEPTION, "="),
    *[
        Case(
            "a producer id",
            "InitProducerId",
            v,
            lambda w: init_producer_id(),
            E.NONE,
            {"producer_epoch": [0]},
        )
        for v in (0, 1, 2, 3, 4, 5)
    ],
    Case(
        "known id and epoch",
        "InitProducerId",
        5,
        lambda w: init_producer_id(producer_id=1000, producer_epoch=3),
        E.NONE,
        {"producer_epoch": [0]},
    ),
    Case(
        "id without epoch",
        "InitProducerId",
        5,
        lambda w: init_producer_id(producer_id=1000),
        E.INVALID_REQUEST,
        {"producer_id": [-1]},
    ),
    Case(
        "epoch without id",
        "InitProducerId",
        5,
        lambda w: init_producer_id(producer_epoch=3),
        E.INVALID_REQUEST,
    ),
    Case("no time", "InitProducerId", 5, lambda w: init_producer_id(timeout_ms=0), E.NONE),
    Case("negative time", "InitProducerId", 5, lambda w: init_producer_id(timeout_ms=-1), E.NONE),
    Case(
        "empty transactional id",
        "InitProducerId",
        5,
        lambda w: init_producer_id(""),
        E.INVALID_REQUEST,
    ),
]


def features(name: str, expect: E, *updates: tuple[str, int, int], version: int = 2) -> Case:
    rows = [
        {"feature": f, "max_version_level": level, "upgrade_type": kind}
        for f, level, kind in updates
    ]
    return Case(
        name,
        "UpdateFeatures",
        version,
        lambda w: request(
            "UpdateFeatures", feature_updates=rows, timeout_ms=5000, validate_only=version > 0
        ),
        expect,
    )


FEATURES = [
    *[
        features("unknown feature", E.INVALID_UPDATE_VERSION, ("foo.version", 1, 1), version=v)
        for v in (0, 1, 2)
    ],
    features("too high a level", E.INVALID_UPDATE_VERSION, ("transaction.version", 9, 1)),
    features("negative level", E.INVALID_UPDATE_VERSION, ("transaction.version", -1, 1)),
    features("unknown way 0", E.INVALID_UPDATE_VERSION, ("group.version", 1, 0)),
    features("unknown way 9", E.INVALID_UPDATE_VERSION, ("group.version", 1, 9)),
    features("no name", E.INVALID_UPDATE_VERSION, ("", 1, 1)),
    features("nothing", E.NONE),
]


def coordinator(name: str, expect: E, version: int, **values: Any) -> Case:
    return Case(
        name, "FindCoordinator", version, lambda w: request("FindCoordinator", **values), expect
    )


COORDINATORS = [
    coordinator("unknown kind", E.INVALID_REQUEST, 1, key="g", key_type=5),
    coordinator("unknown kind", E.INVALID_REQUEST, 4, coordinator_keys=["g"], key_type=5),
    coordinator("no keys", E.NONE, 4, coordinator_keys=[]),
    coordinator(
        "a share key that is none", E.INVALID_REQUEST, 6, coordinator_keys=["g"], key_type=2
    ),
]

TELEMETRY = [
    Case(
        "a new client",
        "GetTelemetrySubscriptions",
        0,
        lambda w: request("GetTelemetrySubscriptions", client_instance_id=NULL_ID),
        E.NONE,
        {"requested_metrics": [[]], "accepted_compression_types": [[4, 3, 1, 2]]},
    ),
    Case(
        "a push without id",
        "PushTelemetry",
        0,
        lambda w: request("PushTelemetry", client_instance_id=NULL_ID),
        E.INVALID_REQUEST,
    ),
    Case(
        "a push for an unknown subscription",
        "PushTelemetry",
        0,
        lambda w: request("PushTelemetry", client_instance_id=UNKNOWN_ID, subscription_id=1),
        E.UNKNOWN_SUBSCRIPTION_ID,
    ),
]

CASES = [*VERSIONS, *CLUSTER, *DIRS, *PRODUCERS, *FEATURES, *COORDINATORS, *TELEMETRY]
