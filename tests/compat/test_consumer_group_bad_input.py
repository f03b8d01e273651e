"""Wrong requests of consumer groups (KIP-848) by raw frames, and the exact error of each."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from compat.consumer_requests import ConsumerWorld as W
from compat.consumer_requests import beat, join, owned
from compat.coordinator_case import Case
from compat.group_requests import commit, heartbeat, offset_fetch, sync
from compat.group_requests import join as classic_join
from compat.quick_settings import QUICK
from compat.raw_requests import UNKNOWN_ID
from millstream.core.errors import ErrorCode as E
from millstream.local.broker import LocalBroker

BEAT = "ConsumerGroupHeartbeat"

FORM = [
    Case("no group id", BEAT, 1, lambda w: join("", "m", w.topic), E.INVALID_REQUEST),
    Case("no member id", BEAT, 1, lambda w: join(w["a"], "", w.topic), E.INVALID_REQUEST),
    Case("no member id, stays", BEAT, 0, lambda w: beat(w["readers"], "", 1), E.INVALID_REQUEST),
    Case("no member id, leaves", BEAT, 0, lambda w: beat(w["readers"], "", -1), E.INVALID_REQUEST),
    Case(
        "empty instance id",
        BEAT,
        1,
        lambda w: join(w["a"], "m", w.topic, instance_id=""),
        E.INVALID_REQUEST,
    ),
    Case(
        "empty rack", BEAT, 1, lambda w: join(w["a"], "m", w.topic, rack_id=""), E.INVALID_REQUEST
    ),
    Case(
        "joins without rebalance timeout",
        BEAT,
        1,
        lambda w: join(w["a"], "m", w.topic, rebalance_timeout_ms=-1),
        E.INVALID_REQUEST,
    ),
    Case(
        "joins without subscription",
        BEAT,
        1,
        lambda w: join(w["a"], "m", subscribed_topic_names=None),
        E.INVALID_REQUEST,
    ),
    Case(
        "joins without subscription, v0",
        BEAT,
        0,
        lambda w: join(w["a"], "m", subscribed_topic_names=None),
        E.INVALID_REQUEST,
    ),
    Case(
        "joins with partitions",
        BEAT,
        1,
        lambda w: join(w["a"], "m", w.topic, topic_partitions=owned(w.topic_id, 0)),
        E.INVALID_REQUEST,
    ),
    Case(
        "joins without a word on partitions",
        BEAT,
        1,
        lambda w: join(w["a"], "m", w.topic, topic_partitions=None),
        E.INVALID_REQUEST,
    ),
    Case(
        "leaves for a while, not static",
        BEAT,
        1,
        lambda w: beat(w["readers"], "m1", -2),
        E.INVALID_REQUEST,
    ),
    Case("epoch -3", BEAT, 1, lambda w: beat(w["readers"], "m1", -3), E.INVALID_REQUEST),
    Case(
        "unknown assignor",
        BEAT,
        1,
        lambda w: join(w["a"], "m", w.topic, server_assignor="mine"),
        E.UNSUPPORTED_ASSIGNOR,
    ),
    Case(
        "unknown assignor of a member",
        BEAT,
        1,
        lambda w: beat(w["readers"], "m1", w.epoch, server_assignor="mine"),
        E.UNSUPPORTED_ASSIGNOR,
    ),
    Case(
        "no regular expression",
        BEAT,
        1,
        lambda w: join(w["a"], "m", subscribed_topic_names=None, subscribed_topic_regex="("),
        E.INVALID_REGULAR_EXPRESSION,
    ),
    Case(
        "no regular expression, of a member",
        BEAT,
        1,
        lambda w: beat(w["readers"], "m1", w.epoch, subscribed_topic_regex="[z-a]"),
        E.INVALID_REGULAR_EXPRESSION,
    ),
    Case(
        "a look-ahead",
        BEAT,
        1,
        lambda w: beat(w["readers"], "m1", w.epoch, subscribed_topic_regex="(?=a)"),
        E.INVALID_REGULAR_EXPRESSION,
    ),
]

MEMBERS = [
    Case("fine", BEAT, 1, lambda w: beat(w["readers"], "m1", w.epoch), E.NONE),
    Case("fine, v0", BEAT, 0, lambda w: beat(w["readers"], "m1", w.epoch), E.NONE),
    Case("joins again", BEAT, 1, lambda w: join(w["readers"], "m1", w.topic), E.NONE),
    Case("unknown group", BEAT, 1, lambda w: beat(w["a"], "m1", w.epoch), E.GROUP_ID_NOT_FOUND),
    Case(
        "leaves an unknown group", BEAT, 1, lambda w: beat(w["a"], "m1", -1), E.GROUP_ID_NOT_FOUND
    ),
    Case(
        "leaves an unknown group for a while",
        BEAT,
        1,
        lambda w: beat(w["a"], "m1", -2, instance_id="i"),
        E.GROUP_ID_NOT_FOUND,
    ),
    Case("unknown member", BEAT, 1, lambda w: beat(w["readers"], "x", 1), E.UNKNOWN_MEMBER_ID),
    Case(
        "unknown member leaves", BEAT, 1, lambda w: beat(w["readers"], "x", -1), E.UNKNOWN_MEMBER_ID
    ),
    Case("member that left", BEAT, 1, lambda w: beat(w["deserted"], "d1", 1), E.UNKNOWN_MEMBER_ID),
    Case(
        "epoch to come",
        BEAT,
        1,
        lambda w: beat(w["readers"], "m1", w.epoch + 1),
        E.FENCED_MEMBER_EPOCH,
    ),
    Case(
        "epoch far ahead",
        BEAT,
        1,
        lambda w: beat(w["readers"], "m1", 2**31 - 1),
        E.FENCED_MEMBER_EPOCH,
    ),
    Case(
        "instance in use",
        BEAT,
        1,
        lambda w: join(w["static"], "s2", w.topic, instance_id="i"),
        E.UNRELEASED_INSTANCE_ID,
    ),
    Case(
        "instance of another",
        BEAT,
        1,
        lambda w: beat(w["static"], "s2", 1, instance_id="i"),
        E.FENCED_INSTANCE_ID,
    ),
    Case(
        "instance of another leaves",
        BEAT,
        1,
        lambda w: beat(w["static"], "s2", -1, instance_id="i"),
        E.FENCED_INSTANCE_ID,
    ),
    Case(
        "instance of another leaves for a while",
        BEAT,
        1,
        lambda w: beat(w["static"], "s2", -2, instance_id="i"),
        E.FENCED_INSTANCE_ID,
    ),
    Case(
        "unknown instance",
        BEAT,
        1,
        lambda w: beat(w["static"], "s1", w.epoch, instance_id="j"),
        E.UNKNOWN_MEMBER_ID,
    ),
    Case(
        "unknown instance leaves",
        BEAT,
        1,
        lambda w: beat(w["static"], "s1", -2, instance_id="j"),
        E.UNKNOWN_MEMBER_ID,
    ),
    Case(
        "owns what it does not have",
        BEAT,
        1,
        lambda w: beat(w["readers"], "m1", w.epoch, topic_partitions=owned(w.topic_id, 9)),
        E.NONE,
    ),
    Case(
        "owns an unknown topic",
        BEAT,
        1,
        lambda w: beat(w["readers"], "m1", w.epoch, topic_partitions=owned(UNKNOWN_ID, 0)),
        E.NONE,
    ),
    Case(
        "subscribes to nothing there", BEAT, 1, lambda w: join(w["nothing"], "m", w["none"]), E.NONE
    ),
]

# A group of one protocol met by the requests of the other.
OTHERS = [
    Case(
        "joins a group of workers",
        BEAT,
        1,
        lambda w: join(w["connect"], "m", w.topic),
        E.GROUP_ID_NOT_FOUND,
    ),
    Case(
        "stays in a group of workers",
        BEAT,
        1,
        lambda w: beat(w["connect"], "m", 1),
        E.GROUP_ID_NOT_FOUND,
    ),
    Case(
        "stays in a classic group",
        BEAT,
        1,
        lambda w: beat(w["stable"], w.member, 1),
        E.GROUP_ID_NOT_FOUND,
    ),
    Case(
        "leaves a classic group",
        BEAT,
        1,
        lambda w: beat(w["stable"], w.member, -1),
        E.GROUP_ID_NOT_FOUND,
    ),
    Case(
        "joins a classic group with other contents",
        BEAT,
        1,
        lambda w: join(w["stable"], "m", w.topic),
        E.GROUP_ID_NOT_FOUND,
    ),
    Case(
        "classic worker joins",
        "JoinGroup",
        9,
        lambda w: classic_join(w["readers"], "x", kind="connect"),
        E.INCONSISTENT_GROUP_PROTOCOL,
    ),
    Case(
        "classic sync",
        "SyncGroup",
        3,
        lambda w: sync(w["readers"], "m1", w.epoch),
        E.UNKNOWN_MEMBER_ID,
    ),
    Case(
        "classic heartbeat",
        "Heartbeat",
        4,
        lambda w: heartbeat(w["readers"], "m1", w.epoch),
        E.UNKNOWN_MEMBER_ID,
    ),
    Case(
        "classic heartbeat of nobody",
        "Heartbeat",
        4,
        lambda w: heartbeat(w["readers"], "x", 1),
        E.UNKNOWN_MEMBER_ID,
    ),
    Case(
        "members are not classic",
        "DescribeGroups",
        6,
        lambda w: {"groups": [w["readers"]]},
        E.GROUP_ID_NOT_FOUND,
    ),
    Case(
        "in use", "DeleteGroups", 2, lambda w: {"groups_names": [w["readers"]]}, E.NON_EMPTY_GROUP
    ),
]

OFFSETS = [
    Case("fine", "OffsetCommit", 9, lambda w: commit(w["readers"], w.topic, "m1", w.epoch), E.NONE),
    Case(
        "v8",
        "OffsetCommit",
        8,
        lambda w: commit(w["readers"], w.topic, "m1", w.epoch),
        E.UNSUPPORTED_VERSION,
    ),
    Case(
        "epoch to come",
        "OffsetCommit",
        9,
        lambda w: commit(w["readers"], w.topic, "m1", w.epoch + 1),
        E.STALE_MEMBER_EPOCH,
    ),
    Case(
        "unknown member",
        "OffsetCommit",
        9,
        lambda w: commit(w["readers"], w.topic, "x", 1),
        E.UNKNOWN_MEMBER_ID,
    ),
    Case("nobody", "OffsetCommit", 9, lambda w: commit(w["readers"], w.topic), E.UNKNOWN_MEMBER_ID),
    Case("nobody, deserted", "OffsetCommit", 9, lambda w: commit(w["deserted"], w.topic), E.NONE),
    Case(
        "unknown member",
        "OffsetFetch",
        9,
        lambda w: offset_fetch(w["readers"], w.topic, member_id="x", member_epoch=1),
        E.UNKNOWN_MEMBER_ID,
    ),
    Case(
        "epoch to come",
        "OffsetFetch",
        9,
        lambda w: offset_fetch(w["readers"], w.topic, member_id="m1", member_epoch=w.epoch + 1),
        E.STALE_MEMBER_EPOCH,
    ),
]

DESCRIBE = [
    Case(name, "ConsumerGroupDescribe", version, body, code)
    for version in (0, 1)
    for name, body, code in (
        ("fine", lambda w: {"group_ids": [w["readers"]]}, E.NONE),
        ("deserted", lambda w: {"group_ids": [w["deserted"]]}, E.NONE),
        ("unknown", lambda w: {"group_ids": [w["a"]]}, E.GROUP_ID_NOT_FOUND),
        (
            "one of two unknown",
            lambda w: {"group_ids": [w["readers"], w["a"]]},
            E.GROUP_ID_NOT_FOUND,
        ),
        ("no group id", lambda w: {"group_ids": [""]}, E.INVALID_GROUP_ID),
        ("classic", lambda w: {"group_ids": [w["stable"]]}, E.GROUP_ID_NOT_FOUND),
        ("offsets only", lambda w: {"group_ids": [w["empty"]]}, E.GROUP_ID_NOT_FOUND),
        ("nothing asked", lambda w: {"group_ids": []}, E.NONE),
        ("twice", lambda w: {"group_ids": [w["readers"], w["readers"]]}, E.NONE),
    )
]

CASES: list[Case] = [*FORM, *MEMBERS, *OTHERS, *OFFSETS, *DESCRIBE]


@pytest.fixture(scope="module")
def world(shared_broker: LocalBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[W]:
    """On a broker of its own, whose members need no heartbeats while the tests run."""
    if "MILLSTREAM_TEST_BOOTSTRAP" in os.environ:
        made = W(shared_broker.bootstrap)
        yield made
        made.close()
        return
    patient = QUICK | {"group.consumer.session.timeout.ms": 60_000}
    with LocalBroker(tmp_path_factory.mktemp("patient-broker"), patient) as broker:
        made = W(broker.bootstrap)
        yield made
        made.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_wrong_request_of_a_consumer_group_gets_the_code_of_apache_kafka(
    world: W, case: Case
) -> None:
    case.check(world)
