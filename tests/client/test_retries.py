"""Whoever asks while leaders, coordinators or the controller change gets an answer a moment later, and is told what was tried if not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from millstream.client import Admin, BrokerUnreachable, ClientError, Consumer, TopicExists, UnknownTopic
from millstream.client.admin.cluster import LogDirectory
from millstream.client.retries import Patience
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition
from millstream.testing import Cluster, Kafka, broker

PARTITION = TopicPartition("orders", 0)
OURS = "millstream"  # the client id of what is tested


def _log_directories(admin: Admin) -> list[LogDirectory]:
    """Without how much is free: others write to that disk meanwhile."""
    found = admin.cluster.log_directories(0)
    assert all(one.usable_bytes for one in found)
    return [replace(one, usable_bytes=None) for one in found]


# What is called, which request of it is refused or lost, and an error that passes.
CALLS: dict[str, tuple[Callable[[Admin], Any], str, str]] = {
    "describe topics": (lambda admin: admin.topics.get("orders"), "Metadata", ""),
    "list topics": (lambda admin: admin.topics.names(), "Metadata", ""),
    "describe the cluster": (lambda admin: admin.cluster.describe(), "Metadata", ""),
    "log directories": (_log_directories, "DescribeLogDirs", ""),
    "offsets": (lambda admin: admin.offsets.latest("orders"), "ListOffsets", "NOT_LEADER_OR_FOLLOWER"),
    "describe settings": (lambda admin: admin.configs.describe("topic", "orders"), "DescribeConfigs", ""),
    "settings of a group": (lambda admin: admin.configs.describe("group", "g"), "DescribeConfigs", ""),
    "names of settings": (lambda admin: admin.configs.names("group"), "ListConfigResources", ""),
    "list groups": (
        lambda admin: admin.groups.list(),
        "ListGroups",
        "COORDINATOR_LOAD_IN_PROGRESS",
    ),
    "describe a group": (lambda admin: admin.groups.get("readers"), "DescribeGroups", "NOT_COORDINATOR"),
    "find a group": (
        lambda admin: admin.groups.get("readers"),
        "FindCoordinator",
        "COORDINATOR_NOT_AVAILABLE",
    ),
    "lag of a group": (lambda admin: admin.groups.lags("readers"), "OffsetFetch", "NOT_COORDINATOR"),
    "ends of a group": (lambda admin: admin.groups.lags("readers"), "ListOffsets", "LEADER_NOT_AVAILABLE"),
    "list transactions": (
        lambda admin: admin.transactions.list(),
        "ListTransactions",
        "COORDINATOR_LOAD_IN_PROGRESS",
    ),
    "list moves": (
        lambda admin: admin.reassignments.moving(),
        "ListPartitionReassignments",
        "NOT_CONTROLLER",
    ),
    "move": (
        lambda admin: admin.reassignments.start({PARTITION: [0]}),
        "AlterPartitionReassignments",
        "",
    ),
    "elect leaders": (lambda admin: admin.reassignments.elect_leaders(), "ElectLeaders", "NOT_CONTROLLER"),
    "alter settings": (
        lambda admin: admin.configs.alter("topic", "orders", {"retention.ms": "1000000"}),
        "IncrementalAlterConfigs",
        "NOT_CONTROLLER",
    ),
    "delete records": (
        lambda admin: admin.offsets.delete_records({PARTITION: 1}),
        "DeleteRecords",
        "NOT_LEADER_OR_FOLLOWER",
    ),
    "set offsets": (
        lambda admin: admin.groups.alter("readers", {PARTITION: 1}),
        "OffsetCommit",
        "NOT_COORDINATOR",
    ),
}
# What must not be done twice: the call, its request, and how the cluster looks when it was done.
CHANGES: dict[str, tuple[Callable[[Admin], Any], str, Callable[[Admin], bool]]] = {
    "create": (
        lambda admin: admin.topics.create("new", partitions=2, configs={"retention.ms": "5000"}),
        "CreateTopics",
        lambda admin: len(admin.topics.get("new").partitions) == 2,
    ),
    "create as assigned": (
        lambda admin: admin.topics.create("new", assignment=[[0], [0]]),
        "CreateTopics",
        lambda admin: len(admin.topics.get("new").partitions) == 2,
    ),
    "add partitions": (
        lambda admin: admin.topics.add_partitions("orders", 4),
        "CreatePartitions",
        lambda admin: len(admin.topics.get("orders").partitions) == 4,
    ),
    "delete": (
        lambda admin: admin.topics.delete("orders", "payments"),
        "DeleteTopics",
        lambda admin: not {"orders", "payments"} & {*admin.topics.names()},
    ),
    "delete a group": (
        lambda admin: admin.groups.delete("readers"),
        "DeleteGroups",
        lambda admin: admin.groups.find("readers") is None,
    ),
    "forget offsets": (
        lambda admin: admin.groups.delete_offsets("readers", [PARTITION]),
        "OffsetDelete",
        lambda admin: PARTITION not in admin.groups.committed("readers"),
    ),
}


def prepare(kafka: Kafka) -> None:
    for topic in ("orders", "payments"):
        kafka.topic(topic)
    kafka.produce("orders", [b"1", b"2"])
    kafka.admin.groups.alter("readers", {PARTITION: 2})


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    """For what changes nothing that another test sees."""
    with broker() as one:
        prepare(one)
        yield one


@pytest.mark.parametrize("name", CALLS)
def test_a_lost_connection_is_opened_again(kafka: Kafka, name: str) -> None:
    call, api, _code = CALLS[name]
    usual = call(kafka.admin)
    with Admin(kafka.bootstrap) as admin, kafka.faults.drop_request(api, times=2, client_id=OURS) as fault:
        assert call(admin) == usual
    assert fault.happened == 2


@pytest.mark.parametrize("name", [name for name, (_call, _api, code) in CALLS.items() if code])
def test_an_error_that_passes_is_waited_out(kafka: Kafka, name: str) -> None:
    call, api, code = CALLS[name]
    usual = call(kafka.admin)
    with Admin(kafka.bootstrap) as admin, kafka.faults.error(api, code, times=2, client_id=OURS) as fault:
        assert call(admin) == usual
    assert fault.happened == 2


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_whose_answer_was_lost_counts_as_done(millstream: Kafka, name: str) -> None:
    call, api, is_done = CHANGES[name]
    prepare(millstream)
    with (
        Admin(millstream.bootstrap) as admin,
        millstream.faults.drop_response(api, times=1, client_id=OURS) as fault,
    ):
        call(admin)
        assert is_done(admin)
    assert fault.happened == 1


def test_a_topic_that_was_there_otherwise_is_not_taken_for_ours(millstream: Kafka) -> None:
    millstream.topic("orders", partitions=3)
    with Admin(millstream.bootstrap) as admin:
        with millstream.faults.drop_request("CreateTopics", times=1), pytest.raises(TopicExists):
            admin.topics.create("orders", partitions=2)
        with millstream.faults.drop_request("CreateTopics", times=1), pytest.raises(TopicExists):
            admin.topics.create("orders", partitions=3, configs={"retention.ms": "7"})


def test_a_topic_that_is_made_anew_meanwhile_is_not_deleted(millstream: Kafka) -> None:
    """The answer to our deletion gets lost, and before we ask again somebody makes a topic of the same name."""
    millstream.topic("orders")
    with Admin(millstream.bootstrap) as admin:
        old = admin.topics.get("orders").id
        ask, seen = admin.topics._id, []

        def made_anew(name: str) -> str | None:
            if not seen:
                millstream.admin.topics.create(name)
            seen.append(ask(name))
            return seen[-1]

        admin.topics._id = made_anew  # type: ignore[method-assign]
        with millstream.faults.drop_response("DeleteTopics", times=1):
            admin.topics.delete("orders")
        assert seen == [admin.topics.get("orders").id] != [old]


def test_giving_up_says_what_was_tried_and_what_to_do(kafka: Kafka) -> None:
    with (
        Admin(kafka.bootstrap, timeout_s=5) as admin,
        kafka.faults.error("ListOffsets", "NOT_LEADER_OR_FOLLOWER", times=None),
        pytest.raises(ClientError) as caught,
    ):
        admin.offsets.latest("orders")
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    told = str(caught.value)
    assert told.startswith("cannot list the offsets of orders-0: this broker is not the leader")
    assert re.search(r"\(tried \d+ times within \d+ s\)", told)
    assert "millstream doctor" in told


def test_what_does_not_pass_is_told_at_once(kafka: Kafka) -> None:
    with Admin(kafka.bootstrap) as admin:
        with pytest.raises(UnknownTopic):
            admin.topics.get("order")
        with (
            kafka.faults.error("ListGroups", "GROUP_AUTHORIZATION_FAILED", times=None) as fault,
            pytest.raises(ClientError, match="not allowed"),
        ):
            admin.groups.list()
    assert fault.happened == 1


def test_nobody_waits_for_a_cluster_that_never_answered() -> None:
    tried = []

    def attempt(limit_s: float) -> None:
        tried.append(limit_s)
        raise BrokerUnreachable("nobody is there")

    with pytest.raises(BrokerUnreachable, match=r"^nobody is there$"):
        Patience(60).persist(attempt, doing="ask")
    assert len(tried) == 1


def test_waiting_within_waiting_ends_once() -> None:
    patience, tried = Patience(0.2), []

    def attempt(limit_s: float) -> None:
        tried.append(limit_s)
        raise ClientError("gone", code=ErrorCode.NOT_COORDINATOR)

    with pytest.raises(ClientError) as caught:
        patience.persist(lambda limit_s: patience.persist(attempt, doing="ask"), doing="ask around")
    assert str(caught.value).startswith(f"gone (tried {len(tried)} times within 0 s); see ")


def test_a_broker_that_stays_away_is_told_with_what_was_wanted(millstream: Kafka) -> None:
    with Admin(millstream.bootstrap, timeout_s=10) as admin:
        admin.groups.list()
        millstream.kill()
        with pytest.raises(BrokerUnreachable) as caught:
            admin.groups.list()
        assert str(caught.value).startswith(
            f"cannot list the groups: cannot reach a broker at {millstream.bootstrap} (connection refused) (tried"
        )


def test_a_broker_of_a_cluster_dies_and_whoever_asks_is_answered(millstream_cluster: Cluster) -> None:
    """The leader of the topic, coordinator of the group and (most often) controller goes without a word; all is asked before anybody can have noticed."""
    cluster = millstream_cluster
    cluster.topic("orders")
    cluster.wait_in_sync("orders", 3)
    cluster.produce("orders", [b"1", b"2"])
    with Admin(cluster.bootstrap) as admin:
        admin.groups.alter("readers", {PARTITION: 1})
        cluster.wait_in_sync("__consumer_offsets", 3)
        victim = admin.groups.get("readers").coordinator.node
        moved = admin.reassignments.start({PARTITION: [victim, *{0, 1, 2} - {victim}]})
        assert not moved
        admin.reassignments.elect_leaders([PARTITION])
        controller = admin.cluster.describe().controller
        cluster.brokers[victim].broker.die()
        assert admin.groups.get("readers").id == "readers"
        assert [(one.current, one.end, one.lag) for one in admin.groups.lags("readers")] == [(1, 2, 1)]
        assert admin.offsets.latest("orders") == {PARTITION: 2}
        assert "orders" in admin.topics.names()
        admin.topics.create("made-meanwhile", partitions=1, replication_factor=2)
        assert admin.topics.exists("made-meanwhile")
        assert controller in (0, 1, 2)
    living = ",".join(one.bootstrap for one in cluster.brokers if one.broker.alive)
    with Consumer(living, "orders", until_end=True) as consumer:
        assert [one.value for one in consumer] == [b"1", b"2"]
