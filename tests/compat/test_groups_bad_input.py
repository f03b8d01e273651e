"""Wrong group requests by raw frames, and the exact error of each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compat.coordinator_case import Case
from compat.group_requests import GroupWorld, commit, heartbeat, join, leave, offset_fetch, sync
from compat.raw_requests import UNKNOWN_ID
from millstream.core.errors import ErrorCode as E
from millstream.local.broker import LocalBroker

JOIN = [
    Case("no group id", "JoinGroup", 9, lambda w: join(""), E.INVALID_GROUP_ID),
    Case(
        "session of 1 ms",
        "JoinGroup",
        9,
        lambda w: join(w["joined"], session_ms=1),
        E.INVALID_SESSION_TIMEOUT,
    ),
    Case(
        "session of an hour",
        "JoinGroup",
        9,
        lambda w: join(w["joined"], session_ms=3_600_000),
        E.INVALID_SESSION_TIMEOUT,
    ),
    Case("no member id yet", "JoinGroup", 4, lambda w: join(w["joined"]), E.MEMBER_ID_REQUIRED),
    Case(
        "unknown member, no group", "JoinGroup", 9, lambda w: join(w["a"], "x"), E.UNKNOWN_MEMBER_ID
    ),
    Case("unknown member", "JoinGroup", 9, lambda w: join(w["stable"], "x"), E.UNKNOWN_MEMBER_ID),
    Case(
        "unknown member of an empty group",
        "JoinGroup",
        9,
        lambda w: join(w["empty"], "x"),
        E.UNKNOWN_MEMBER_ID,
    ),
    Case(
        "no protocols",
        "JoinGroup",
        5,
        lambda w: join(w["joined"], protocols=()),
        E.INCONSISTENT_GROUP_PROTOCOL,
    ),
    Case(
        "no protocol type",
        "JoinGroup",
        5,
        lambda w: join(w["joined"], kind=""),
        E.INCONSISTENT_GROUP_PROTOCOL,
    ),
    Case(
        "another protocol type",
        "JoinGroup",
        9,
        lambda w: join(w["connect"]),
        E.INCONSISTENT_GROUP_PROTOCOL,
    ),
    Case(
        "no protocol in common",
        "JoinGroup",
        9,
        lambda w: join(w["stable"], protocols=(("own", b""),)),
        E.INCONSISTENT_GROUP_PROTOCOL,
    ),
    Case(
        "fenced instance",
        "JoinGroup",
        9,
        lambda w: join(w["fixed"], w.fenced, instance="i"),
        E.FENCED_INSTANCE_ID,
    ),
    Case(
        "member id with an unknown instance",
        "JoinGroup",
        9,
        lambda w: join(w["fixed"], w.static, instance="j"),
        E.UNKNOWN_MEMBER_ID,
    ),
]

SYNC = [
    Case(
        "no group id",
        "SyncGroup",
        5,
        lambda w: sync("", "x", 1, kind="consumer", protocol="range"),
        E.INVALID_GROUP_ID,
    ),
    Case("unknown group", "SyncGroup", 3, lambda w: sync(w["a"], "x", 1), E.UNKNOWN_MEMBER_ID),
    Case(
        "unknown member", "SyncGroup", 3, lambda w: sync(w["stable"], "x", 1), E.UNKNOWN_MEMBER_ID
    ),
    Case(
        "stale generation",
        "SyncGroup",
        3,
        lambda w: sync(w["stable"], w.member, 0),
        E.ILLEGAL_GENERATION,
    ),
    Case(
        "generation to come",
        "SyncGroup",
        3,
        lambda w: sync(w["stable"], w.member, 2),
        E.ILLEGAL_GENERATION,
    ),
    Case(
        "fenced instance",
        "SyncGroup",
        3,
        lambda w: sync(w["fixed"], w.fenced, 1, instance="i"),
        E.FENCED_INSTANCE_ID,
    ),
    Case(
        "no protocol type",
        "SyncGroup",
        5,
        lambda w: sync(w["stable"], w.member, 1),
        E.INCONSISTENT_GROUP_PROTOCOL,
    ),
    Case(
        "other protocol",
        "SyncGroup",
        5,
        lambda w: sync(w["stable"], w.member, 1, kind="consumer", protocol="own"),
        E.INCONSISTENT_GROUP_PROTOCOL,
    ),
    Case(
        "other protocol type",
        "SyncGroup",
        5,
        lambda w: sync(w["stable"], w.member, 1, kind="connect", protocol="range"),
        E.INCONSISTENT_GROUP_PROTOCOL,
    ),
    Case(
        "while others join",
        "SyncGroup",
        3,
        lambda w: sync(w["joining"], w.waiting_member, 1),
        E.REBALANCE_IN_PROGRESS,
    ),
]

HEARTBEAT = [
    Case("fine", "Heartbeat", 4, lambda w: heartbeat(w["stable"], w.member, 1), E.NONE),
    Case("no group id", "Heartbeat", 4, lambda w: heartbeat("", "x", 1), E.INVALID_GROUP_ID),
    Case("unknown group", "Heartbeat", 4, lambda w: heartbeat(w["a"], "x", 1), E.UNKNOWN_MEMBER_ID),
    Case(
        "unknown member",
        "Heartbeat",
        4,
        lambda w: heartbeat(w["stable"], "x", 1),
        E.UNKNOWN_MEMBER_ID,
    ),
    Case(
        "empty group", "Heartbeat", 4, lambda w: heartbeat(w["empty"], "x", 1), E.UNKNOWN_MEMBER_ID
    ),
    Case(
        "stale generation",
        "Heartbeat",
        4,
        lambda w: heartbeat(w["stable"], w.member, 0),
        E.ILLEGAL_GENERATION,
    ),
    Case(
        "fenced instance",
        "Heartbeat",
        4,
        lambda w: heartbeat(w["fixed"], w.fenced, 1, instance="i"),
        E.FENCED_INSTANCE_ID,
    ),
    Case(
        "unknown instance",
        "Heartbeat",
        4,
        lambda w: heartbeat(w["fixed"], w.static, 1, instance="j"),
        E.UNKNOWN_MEMBER_ID,
    ),
    Case(
        "while others join",
        "Heartbeat",
        4,
        lambda w: heartbeat(w["joining"], w.waiting_member, 1),
        E.REBALANCE_IN_PROGRESS,
    ),
]

LEAVE = [
    Case("no group id", "LeaveGroup", 5, lambda w: leave("", ("x", None)), E.INVALID_GROUP_ID),
    Case(
        "unknown group", "LeaveGroup", 5, lambda w: leave(w["a"], ("x", None)), E.UNKNOWN_MEMBER_ID
    ),
    Case(
        "unknown group, v2",
        "LeaveGroup",
        2,
        lambda w: {"group_id": w["a"], "member_id": "x"},
        E.UNKNOWN_MEMBER_ID,
    ),
    Case(
        "unknown member",
        "LeaveGroup",
        5,
        lambda w: leave(w["stable"], ("x", None)),
        E.UNKNOWN_MEMBER_ID,
    ),
    Case(
        "unknown instance",
        "LeaveGroup",
        5,
        lambda w: leave(w["fixed"], ("", "j")),
        E.UNKNOWN_MEMBER_ID,
    ),
    Case(
        "fenced instance",
        "LeaveGroup",
        5,
        lambda w: leave(w["fixed"], (w.fenced, "i")),
        E.FENCED_INSTANCE_ID,
    ),
    Case("nobody", "LeaveGroup", 5, lambda w: leave(w["stable"]), E.NONE),
]

COMMIT = [
    Case("no group id", "OffsetCommit", 8, lambda w: commit("", w.topic), E.NONE),
    Case(
        "unknown group, v8",
        "OffsetCommit",
        8,
        lambda w: commit(w["a"], w.topic, "x", 1),
        E.ILLEGAL_GENERATION,
    ),
    Case(
        "unknown group, v9",
        "OffsetCommit",
        9,
        lambda w: commit(w["a"], w.topic, "x", 1),
        E.GROUP_ID_NOT_FOUND,
    ),
    Case(
        "unknown member",
        "OffsetCommit",
        8,
        lambda w: commit(w["stable"], w.topic, "x", 1),
        E.UNKNOWN_MEMBER_ID,
    ),
    Case(
        "nobody, group in use",
        "OffsetCommit",
        8,
        lambda w: commit(w["stable"], w.topic),
        E.UNKNOWN_MEMBER_ID,
    ),
    Case(
        "stale generation",
        "OffsetCommit",
        8,
        lambda w: commit(w["stable"], w.topic, w.member, 0),
        E.ILLEGAL_GENERATION,
    ),
    Case(
        "member of an empty group",
        "OffsetCommit",
        8,
        lambda w: commit(w["empty"], w.topic, "x", 1),
        E.UNKNOWN_MEMBER_ID,
    ),
    Case(
        "fenced instance",
        "OffsetCommit",
        8,
        lambda w: commit(w["fixed"], w.topic, w.fenced, 1, instance="i"),
        E.FENCED_INSTANCE_ID,
    ),
    Case(
        "while others join",
        "OffsetCommit",
        8,
        lambda w: commit(w["joining"], w.topic, w.waiting_member, 1),
        E.NONE,
    ),
    Case(
        "unknown topic",
        "OffsetCommit",
        8,
        lambda w: commit(w["stable"], w["none"], w.member, 1),
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    Case(
        "unknown partition",
        "OffsetCommit",
        8,
        lambda w: commit(w["stable"], w.topic, w.member, 1, partition=2),
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    Case(
        "unknown topic id",
        "OffsetCommit",
        10,
        lambda w: commit(w["stable"], UNKNOWN_ID, w.member, 1),
        E.UNKNOWN_TOPIC_ID,
    ),
    Case(
        "metadata of 5000",
        "OffsetCommit",
        8,
        lambda w: commit(w["stable"], w.topic, w.member, 1, metadata="m" * 5000),
        E.OFFSET_METADATA_TOO_LARGE,
    ),
    Case(
        "no metadata",
        "OffsetCommit",
        8,
        lambda w: commit(w["stable"], w.topic, w.member, 1, metadata=None),
        E.NONE,
    ),
    Case("offset -7", "OffsetCommit", 8, lambda w: commit(w["simple"], w.topic, offset=-7), E.NONE),
]

FETCH = [
    Case("unknown group", "OffsetFetch", 8, lambda w: offset_fetch(w["a"], w.topic), E.NONE),
    Case("no group id", "OffsetFetch", 8, lambda w: offset_fetch("", w.topic), E.NONE),
    Case("unknown topic", "OffsetFetch", 8, lambda w: offset_fetch(w["empty"], w["none"]), E.NONE),
    Case(
        "unknown member, v9",
        "OffsetFetch",
        9,
        lambda w: offset_fetch(w["stable"], w.topic, member_id="x", member_epoch=1),
        E.NONE,
    ),
    Case(
        "unknown topic id",
        "OffsetFetch",
        10,
        lambda w: {
            "groups": [
                {
                    "group_id": w["empty"],
                    "topics": [{"topic_id": UNKNOWN_ID, "partition_indexes": [0]}],
                }
            ]
        },
        E.UNKNOWN_TOPIC_ID,
    ),
    Case(
        "no group id, v7",
        "OffsetFetch",
        7,
        lambda w: {"group_id": "", "topics": [{"name": w.topic, "partition_indexes": [0]}]},
        E.NONE,
    ),
]

GROUPS = [
    Case("no name", "DescribeGroups", 5, lambda w: {"groups": [""]}, E.NONE),
    Case("unknown, v5", "DescribeGroups", 5, lambda w: {"groups": [w["a"]]}, E.NONE),
    Case("unknown, v6", "DescribeGroups", 6, lambda w: {"groups": [w["a"]]}, E.GROUP_ID_NOT_FOUND),
    Case("in use", "DeleteGroups", 2, lambda w: {"groups_names": [w["stable"]]}, E.NON_EMPTY_GROUP),
    Case("unknown", "DeleteGroups", 2, lambda w: {"groups_names": [w["a"]]}, E.GROUP_ID_NOT_FOUND),
    Case(
        "unknown group",
        "OffsetDelete",
        0,
        lambda w: {"group_id": w["a"], "topics": []},
        E.GROUP_ID_NOT_FOUND,
    ),
    Case(
        "no group id",
        "OffsetDelete",
        0,
        lambda w: {"group_id": "", "topics": []},
        E.INVALID_GROUP_ID,
    ),
    Case(
        "members of another kind",
        "OffsetDelete",
        0,
        lambda w: {
            "group_id": w["connect"],
            "topics": [{"name": w.topic, "partitions": [{"partition_index": 0}]}],
        },
        E.NON_EMPTY_GROUP,
    ),
    Case(
        "unknown topic",
        "OffsetDelete",
        0,
        lambda w: {
            "group_id": w["empty"],
            "topics": [{"name": w["none"], "partitions": [{"partition_index": 0}]}],
        },
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    Case("unknown state", "ListGroups", 5, lambda w: {"states_filter": ["nonsense"]}, E.NONE),
    Case("unknown type", "ListGroups", 5, lambda w: {"types_filter": ["nonsense"]}, E.NONE),
    Case(
        "unknown kind of key",
        "FindCoordinator",
        4,
        lambda w: {"key_type": 7, "coordinator_keys": ["k"]},
        E.INVALID_REQUEST,
    ),
    Case(
        "unknown kind of key",
        "FindCoordinator",
        3,
        lambda w: {"key_type": 7, "key": "k"},
        E.INVALID_REQUEST,
    ),
    Case(
        "no group id",
        "FindCoordinator",
        4,
        lambda w: {"key_type": 0, "coordinator_keys": [""]},
        E.NONE,
    ),
    Case(
        "no keys", "FindCoordinator", 4, lambda w: {"key_type": 0, "coordinator_keys": []}, E.NONE
    ),
]

CASES: list[Case] = [*JOIN, *SYNC, *HEARTBEAT, *LEAVE, *COMMIT, *FETCH, *GROUPS]


@pytest.fixture(scope="module")
def world(quick_broker: LocalBroker) -> Iterator[GroupWorld]:
    made = GroupWorld(quick_broker.bootstrap)
    yield made
    made.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_wrong_group_request_gets_the_code_of_apache_kafka(world: GroupWorld, case: Case) -> None:
    case.check(world)
