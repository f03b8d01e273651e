"""What consumer groups refuse, each with Kafka's error code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millstream.core.errors import ErrorCode as E
from millstream.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from millstream.wire.messages.delete_groups import DeleteGroupsRequest
from support.groups.consumer_world import (
    SETTINGS,
    ConsumerHost,
    beat,
    id_of,
    join,
    leave,
    topics_of,
)
from support.groups.world import commit, fetch, heartbeat, sync, txn_commit
from support.groups.world import join as classic_join

ORDERS = id_of("orders")


@pytest.fixture
def host() -> ConsumerHost:
    """Members ``m1`` and the static ``m2`` (``i2``), who have handed over; ``m1`` went from epoch 2
    to 3.
    """
    host = ConsumerHost(
        topics=topics_of(1, orders=4, trips=2),
        settings=replace(SETTINGS, group_consumer_max_size=2),
    )
    host.beat(join("m1", "orders"))
    host.beat(join("m2", "orders", instance_id="i2"))
    host.beat(beat("m1", 2))
    host.beat(beat("m1", 2, {ORDERS: [0, 1]}))
    host.beat(beat("m2", 3, instance_id="i2"))
    return host


INVALID: dict[str, tuple[Any, int]] = {
    "no group": (join("m1", "orders", group=""), 1),
    "no member id since v1": (join("", "orders"), 1),
    "no member id, not joining": (beat("", 3), 0),
    "no member id, leaving": (leave(""), 0),
    "empty instance id": (join("m1", "orders", instance_id=""), 1),
    "empty rack": (join("m1", "orders", rack_id=""), 1),
    "joins without rebalance timeout": (join("m1", "orders", rebalance_timeout_ms=-1), 1),
    "joins without subscription": (join("m1", subscribed_topic_names=None), 1),
    "joins with partitions": (
        beat("m1", 0, {ORDERS: [0]}, rebalance_timeout_ms=1, subscribed_topic_names=[]),
        1,
    ),
    "joins without saying that it owns none": (
        beat("m1", 0, rebalance_timeout_ms=1, subscribed_topic_names=[]),
        1,
    ),
    "leaves for a while without instance id": (leave("m1", -2), 1),
    "an epoch below all": (beat("m1", -3), 1),
}
REFUSED: dict[str, tuple[Any, E]] = {
    "unknown assignor": (join("m1", "orders", server_assignor="mine"), E.UNSUPPORTED_ASSIGNOR),
    "unknown group": (beat("m1", 3, group="other"), E.GROUP_ID_NOT_FOUND),
    "leaves an unknown group": (leave("m1", group="other"), E.GROUP_ID_NOT_FOUND),
    "unknown member": (beat("m9", 3), E.GROUP_MAX_SIZE_REACHED),
    "unknown member leaves": (leave("m9"), E.UNKNOWN_MEMBER_ID),
    "epoch too high": (beat("m1", 4), E.FENCED_MEMBER_EPOCH),
    "epoch too low": (beat("m1", 1), E.FENCED_MEMBER_EPOCH),
    "epoch before, not saying what it owns": (beat("m1", 2), E.FENCED_MEMBER_EPOCH),
    "epoch before, owning too much": (beat("m1", 2, {ORDERS: [0, 2]}), E.FENCED_MEMBER_EPOCH),
    "no room": (join("m3", "orders"), E.GROUP_MAX_SIZE_REACHED),
    "instance id in use": (join("m3", "orders", instance_id="i2"), E.UNRELEASED_INSTANCE_ID),
    "instance id of another": (beat("m3", 3, instance_id="i2"), E.FENCED_INSTANCE_ID),
    "instance id of another, leaving": (leave("m3", instance_id="i2"), E.FENCED_INSTANCE_ID),
    "unknown instance id": (leave("m1", -2, instance_id="i9"), E.UNKNOWN_MEMBER_ID),
    "no regular expression": (
        beat("m1", 3, subscribed_topic_regex="("),
        E.INVALID_REGULAR_EXPRESSION,
    ),
    "a look-ahead": (beat("m1", 3, subscribed_topic_regex="(?=a)"), E.INVALID_REGULAR_EXPRESSION),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_requests(host: ConsumerHost, case: str) -> None:
    request, version = INVALID[case]
    _refused(host, request, version, E.INVALID_REQUEST)


@pytest.mark.parametrize("case", REFUSED)
def test_refused_requests(host: ConsumerHost, case: str) -> None:
    request, error = REFUSED[case]
    _refused(host, request, 1, error)


def _refused(host: ConsumerHost, request: Any, version: int, error: E) -> None:
    before, written = host.shard.durable, len(host.log)
    answer = host.beat(request, version)
    assert (E.of(answer.error_code), bool(answer.error_message)) == (error, True)
    assert (host.shard.durable, len(host.log)) == (before, written)


def test_an_unknown_member_where_there_is_room(host: ConsumerHost) -> None:
    host.beat(leave("m2", instance_id="i2"))
    assert host.beat(beat("m9", 3)).error_code == E.UNKNOWN_MEMBER_ID


# ---- offsets ----

ONE = {("orders", 0): 5}
COMMITS: dict[str, tuple[Any, int, E]] = {
    "the epoch": (commit(ONE, "m1", 3), 9, E.NONE),
    "an older epoch, had since then": (commit(ONE, "m1", 2), 9, E.NONE),
    "an older epoch, not had since then": (
        commit({("orders", 2): 5}, "m1", 2),
        9,
        E.STALE_MEMBER_EPOCH,
    ),
    "before it had it": (commit({("orders", 2): 5}, "m2", 2), 9, E.STALE_MEMBER_EPOCH),
    "a later epoch": (commit(ONE, "m1", 4), 9, E.STALE_MEMBER_EPOCH),
    "an unknown member": (commit(ONE, "m9", 3), 9, E.UNKNOWN_MEMBER_ID),
    "nobody": (commit(ONE), 9, E.UNKNOWN_MEMBER_ID),
    "a version without epochs": (commit(ONE, "m1", 3), 8, E.UNSUPPORTED_VERSION),
}


@pytest.mark.parametrize("case", COMMITS)
def test_commits(host: ConsumerHost, case: str) -> None:
    request, version, error = COMMITS[case]
    answer = host.ask("offset_commit", request, version)
    assert [row.error_code for topic in answer.topics for row in topic.partitions] == [error]


TRANSACTIONAL: dict[str, tuple[Any, int, E]] = {
    "the epoch": (txn_commit(ONE, "m1", 3), 5, E.NONE),
    "nobody": (txn_commit(ONE), 5, E.NONE),
    "a later epoch": (txn_commit(ONE, "m1", 4), 5, E.ILLEGAL_GENERATION),
    "an unknown member": (txn_commit(ONE, "m9", 3), 5, E.UNKNOWN_MEMBER_ID),
}


@pytest.mark.parametrize("case", TRANSACTIONAL)
def test_transactional_commits(host: ConsumerHost, case: str) -> None:
    request, version, error = TRANSACTIONAL[case]
    answer = host.ask("txn_offset_commit", request, version)
    assert [row.error_code for topic in answer.topics for row in topic.partitions] == [error]


@pytest.mark.parametrize(
    ("member_id", "epoch", "error"),
    [
        (None, -1, E.NONE),
        ("m1", 3, E.NONE),
        ("m1", 2, E.STALE_MEMBER_EPOCH),
        ("m9", 3, E.UNKNOWN_MEMBER_ID),
        ("", -1, E.UNKNOWN_MEMBER_ID),
    ],
)
def test_fetches_of_offsets(
    host: ConsumerHost, member_id: str | None, epoch: int, error: E
) -> None:
    request = fetch(("orders", 0))
    request.member_id, request.member_epoch = member_id, epoch
    assert host.ask("offset_fetch", request, 9).error_code == error


def test_an_empty_group_takes_commits_of_nobody_and_may_be_deleted(host: ConsumerHost) -> None:
    request = DeleteGroupsRequest(groups_names=["readers"])
    assert host.ask("delete", request, 2).results[0].error_code == E.NON_EMPTY_GROUP
    host.beat(leave("m1"))
    host.beat(leave("m2", instance_id="i2"))
    answer = host.ask("offset_commit", commit(ONE), 9)
    assert answer.topics[0].partitions[0].error_code == E.NONE
    assert host.ask("delete", request, 2).results[0].error_code == E.NONE
    assert "readers" not in host.shard.state.consumer


# ---- others ----


def test_describing_groups_that_are_not_there(host: ConsumerHost) -> None:
    answer = host.ask("consumer_describe", ConsumerGroupDescribeRequest(group_ids=["other", ""]), 1)
    assert [row.error_code for row in answer.groups] == [E.GROUP_ID_NOT_FOUND, E.INVALID_GROUP_ID]


def test_classic_requests_of_members_that_are_not_classic(host: ConsumerHost) -> None:
    assert host.ask("sync", sync("m1", 3), 5).error_code == E.UNKNOWN_MEMBER_ID
    assert host.ask("heartbeat", heartbeat("m1", 3), 4).error_code == E.UNKNOWN_MEMBER_ID
    assert host.ask("heartbeat", heartbeat("m9", 3), 4).error_code == E.UNKNOWN_MEMBER_ID
    assert host.ask("join", classic_join(), 5).error_code == E.GROUP_MAX_SIZE_REACHED
