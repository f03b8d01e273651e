"""Requests succeed although leaders, coordinators or the controller change during them.

If they do not, the error reports the attempts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from millstream.client import (
    Admin,
    BrokerUnreachable,
    ClientError,
    Consumer,
    TopicExists,
    UnknownTopic,
)
from millstream.client.admin.cluster import LogDirectory
from millstream.client.retries import Retries
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition
from millstream.testing import Cluster, Kafka, broker

PARTITION = TopicPartition("orders", 0)
OURS = "millstream"  # the client id of what is tested


def _log_directories(admin: Admin) -> list[LogDirectory]:
    """Return the directories without their free space, which other programs change."""
    directories = admin.cluster.log_directories(0)
    assert all(directory.usable_bytes for directory in directories)
    return [replace(directory, usable_bytes=None) for directory in directories]


# The call, the request of it that is rejected or lost, and a transient error.
CALLS: dict[str, tuple[Callable[[Admin], Any], str, str]] = {
    "describe topics": (lambda admin: admin.topics.get("orders"), "Metadata", ""),
    "list topics": (lambda admin: admin.topics.names(), "Metadata", ""),
    "describe the cluster": (lambda admin: admin.cluster.describe(), "Metadata", ""),
    "log directories": (_log_directories, "DescribeLogDirs", ""),
    "offsets": (
        lambda admin: admin.offsets.latest("orders"),
        "ListOffsets",
        "NOT_LEADER_OR_FOLLOWER",
    ),
    "describe settings": (
        lambda admin: admin.configs.describe("topic", "orders"),
        "DescribeConfigs",
        "",
    ),
    "settings of a group": (
        lambda admin: admin.configs.describe("group", "g"),
        "DescribeConfigs",
        "",
    ),
    "names of settings": (lambda admin: admin.configs.names("group"), "ListConfigResources", ""),
    "list groups": (
        lambda admin: admin.groups.list(),
        "ListGroups",
        "COORDINATOR_LOAD_IN_PROGRESS",
    ),
    "describe a group": (
        lambda admin: admin.groups.get("readers"),
        "DescribeGroups",
        "NOT_COORDINATOR",
    ),
    "find a group": (
        lambda admin: admin.groups.get("readers"),
        "FindCoordinator",
        "COORDINATOR_NOT_AVAILABLE",
    ),
    "lag of a group": (
        lambda admin: admin.groups.lags("readers"),
        "OffsetFetch",
        "NOT_COORDINATOR",
    ),
    "ends of a group": (
        lambda admin: admin.groups.lags("readers"),
        "ListOffsets",
        "LEADER_NOT_AVAILABLE",
    ),
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
    "elect leaders": (
        lambda admin: admin.reassignments.elect_leaders(),
        "ElectLeaders",
        "NOT_CONTROLLER",
    ),
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
# Calls that must not be executed twice: the call, its request, and the state after it.
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
    """A broker for calls that change nothing that another test sees."""
    with broker() as test_broker:
        prepare(test_broker)
        yield test_broker


@pytest.mark.parametrize("name", CALLS)
def test_lost_connection_is_reopened(kafka: Kafka, name: str) -> None:
    call, api, _code = CALLS[name]
    usual = call(kafka.admin)
    with (
        Admin(kafka.bootstrap) as admin,
        kafka.faults.drop_request(api, times=2, client_id=OURS) as fault,
    ):
        assert call(admin) == usual
    assert fault.happened == 2


@pytest.mark.parametrize("name", [name for name, (_call, _api, code) in CALLS.items() if code])
def test_transient_error_is_retried(kafka: Kafka, name: str) -> None:
    call, api, code = CALLS[name]
    usual = call(kafka.admin)
    with (
        Admin(kafka.bootstrap) as admin,
        kafka.faults.error(api, code, times=2, client_id=OURS) as fault,
    ):
        assert call(admin) == usual
    assert fault.happened == 2


@pytest.mark.parametrize("name", CHANGES)
def test_change_with_a_lost_response_counts_as_done(millstream: Kafka, name: str) -> None:
    call, api, is_done = CHANGES[name]
    prepare(millstream)
    with (
        Admin(millstream.bootstrap) as admin,
        millstream.faults.drop_response(api, times=1, client_id=OURS) as fault,
    ):
        call(admin)
        assert is_done(admin)
    assert fault.happened == 1


def test_different_existing_topic_is_not_treated_as_ours(millstream: Kafka) -> None:
    millstream.topic("orders", partitions=3)
    with Admin(millstream.bootstrap) as admin:
        with millstream.faults.drop_request("CreateTopics", times=1), pytest.raises(TopicExists):
            admin.topics.create("orders", partitions=2)
        with millstream.faults.drop_request("CreateTopics", times=1), pytest.raises(TopicExists):
            admin.topics.create("orders", partitions=3, configs={"retention.ms": "7"})


def test_recreated_topic_is_not_deleted_by_the_retry(millstream: Kafka) -> None:
    """The response to the deletion is lost, and the topic is recreated before the retry."""
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


def test_final_error_reports_attempts_and_next_step(kafka: Kafka) -> None:
    with (
        Admin(kafka.bootstrap, timeout_s=5) as admin,
        kafka.faults.error("ListOffsets", "NOT_LEADER_OR_FOLLOWER", times=None),
        pytest.raises(ClientError) as caught,
    ):
        admin.offsets.latest("orders")
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    message = str(caught.value)
    assert message.startswith("cannot list the offsets of orders-0: this broker is not the leader")
    assert re.search(r"\(tried \d+ times within \d+ s\)", message)
    assert "millstream doctor" in message


def test_permanent_error_is_raised_at_once(kafka: Kafka) -> None:
    with Admin(kafka.bootstrap) as admin:
        with pytest.raises(UnknownTopic):
            admin.topics.get("order")
        with (
            kafka.faults.error("ListGroups", "GROUP_AUTHORIZATION_FAILED", times=None) as fault,
            pytest.raises(ClientError, match="not allowed"),
        ):
            admin.groups.list()
    assert fault.happened == 1


def test_cluster_that_never_answered_is_not_waited_for() -> None:
    tried = []

    def attempt(limit_s: float) -> None:
        tried.append(limit_s)
        raise BrokerUnreachable("nobody is there")

    with pytest.raises(BrokerUnreachable, match=r"^nobody is there$"):
        Retries(60).run(attempt, doing="ask")
    assert len(tried) == 1


def test_nested_retries_give_up_once() -> None:
    retries, tried = Retries(0.2), []

    def attempt(limit_s: float) -> None:
        tried.append(limit_s)
        raise ClientError("gone", code=ErrorCode.NOT_COORDINATOR)

    with pytest.raises(ClientError) as caught:
        retries.run(lambda limit_s: retries.run(attempt, doing="ask"), doing="ask around")
    assert str(caught.value).startswith(f"gone (tried {len(tried)} times within 0 s); see ")


def test_broker_that_stays_down_is_reported_with_the_operation(millstream: Kafka) -> None:
    with Admin(millstream.bootstrap, timeout_s=10) as admin:
        admin.groups.list()
        millstream.kill()
        with pytest.raises(BrokerUnreachable) as caught:
            admin.groups.list()
        assert str(caught.value).startswith(
            f"cannot list the groups: cannot reach a broker at {millstream.bootstrap} (connection refused) (tried"
        )


def test_requests_succeed_after_a_broker_of_a_cluster_died(millstream_cluster: Cluster) -> None:
    """The broker that leads the topic and coordinates the group dies; it is often the controller.

    All requests are sent before the cluster can have noticed.
    """
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
        assert [(lag.current, lag.end, lag.lag) for lag in admin.groups.lags("readers")] == [
            (1, 2, 1)
        ]
        assert admin.offsets.latest("orders") == {PARTITION: 2}
        assert "orders" in admin.topics.names()
        admin.topics.create("made-meanwhile", partitions=1, replication_factor=2)
        assert admin.topics.exists("made-meanwhile")
        assert controller in (0, 1, 2)
    living = ",".join(broker.bootstrap for broker in cluster.brokers if broker.broker.alive)
    with Consumer(living, "orders", until_end=True) as consumer:
        assert [record.value for record in consumer] == [b"1", b"2"]
