"""Coordinators in a cluster: any broker finds them, only they serve, and they follow the leadership
of their partition.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from millstream.cluster.coordinators import replay
from millstream.cluster.coordinators.internal_topics import OFFSETS, TRANSACTIONS
from millstream.cluster.replicas import follower_logs
from millstream.core.errors import ErrorCode as E
from millstream.core.hashing import partition_of
from millstream.wire.messages.describe_groups import DescribeGroupsRequest
from millstream.wire.messages.describe_transactions import DescribeTransactionsRequest
from millstream.wire.messages.end_txn import EndTxnRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.wire.messages.list_groups import ListGroupsRequest
from millstream.wire.messages.list_transactions import ListTransactionsRequest
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from millstream.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from support.clusters import InProcessCluster
from support.processes import wait_until
from support.raw import RawClient

PARTITIONS = 6  # of the internal topics
GROUP, TRANSACTION = 0, 1


def commit_request(group: str, offset: int) -> OffsetCommitRequest:
    row = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    return OffsetCommitRequest(
        group_id=group, topics=[OffsetCommitRequestTopic(name="numbers", partitions=[row])]
    )


def commit(client: RawClient, group: str, offset: int) -> int:
    """Commit an offset and return the error code."""
    return int(client.call(commit_request(group, offset), 8).topics[0].partitions[0].error_code)


def committed(client: RawClient, group: str) -> tuple[int, int]:
    """Return the error code of the group and its offset."""
    requested = OffsetFetchRequestGroup(
        group_id=group, topics=[OffsetFetchRequestTopics(name="numbers", partition_indexes=[0])]
    )
    (row,) = client.call(OffsetFetchRequest(groups=[requested]), 8).groups
    if row.error_code:
        return row.error_code, -1
    return 0, row.topics[0].partitions[0].committed_offset


@pytest.fixture(scope="module")
def cluster(shared_cluster: InProcessCluster) -> InProcessCluster:
    shared_cluster.create_topic("numbers", 1)
    shared_cluster.coordinator("any")
    shared_cluster.coordinator("any", TRANSACTION)
    wait_until(lambda: shared_cluster.in_sync(OFFSETS) == 3, "all replicas in sync")
    return shared_cluster


def others(node: int) -> list[int]:
    return [n for n in range(3) if n != node]


# ---- finding the coordinator ----


@pytest.mark.parametrize(("kind", "topic"), [(GROUP, OFFSETS), (TRANSACTION, TRANSACTIONS)])
def test_every_broker_names_the_leader_of_the_partition(
    cluster: InProcessCluster, kind: int, topic: str
) -> None:
    keys = [f"key-{n}" for n in range(12)]
    leaders = [cluster.leader(topic, partition_of(key, PARTITIONS)) for key in keys]
    assert set(leaders) == {0, 1, 2}
    for node in range(3):
        with cluster.client(node) as client:
            for version in (4, 5, 6):
                answer = client.call(
                    FindCoordinatorRequest(key_type=kind, coordinator_keys=keys), version
                )
                nodes = [(row.key, row.error_code, row.node_id) for row in answer.coordinators]
                assert nodes == [
                    (key, 0, leader) for key, leader in zip(keys, leaders, strict=True)
                ]
                addresses = {f"{row.host}:{row.port}" for row in answer.coordinators}
                assert addresses == set(cluster.bootstraps())
            response = client.call(FindCoordinatorRequest(key_type=kind, key=keys[0]), 3)
            assert (response.error_code, response.node_id) == (0, leaders[0])


def test_without_a_leader_there_is_no_coordinator(cluster: InProcessCluster) -> None:
    broker = cluster.brokers[0].broker
    with cluster.client(0) as client:
        states = broker.image.topics[OFFSETS].states
        index = partition_of("lost", PARTITIONS)
        before = states[index]
        states[index] = replace(before, leader=-1)
        try:
            (row,) = client.call(FindCoordinatorRequest(coordinator_keys=["lost"]), 4).coordinators
        finally:
            states[index] = before
    assert (row.error_code, row.node_id, row.host, row.port) == (
        E.COORDINATOR_NOT_AVAILABLE,
        -1,
        "",
        -1,
    )


# ---- serving ----


def test_only_the_coordinator_of_a_group_serves_it(cluster: InProcessCluster) -> None:
    here = cluster.coordinator("served")
    join = JoinGroupRequest(
        group_id="served",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    with cluster.client(here) as client:
        assert commit(client, "served", 7) == 0
    row = TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=""
    )
    transactional = TxnOffsetCommitRequest(
        transactional_id="t",
        group_id="served",
        producer_id=1,
        producer_epoch=0,
        topics=[TxnOffsetCommitRequestTopic(name="numbers", partitions=[row])],
    )
    for node in others(here):
        with cluster.client(node) as client:
            assert commit(client, "served", 8) == E.NOT_COORDINATOR
            assert committed(client, "served") == (E.NOT_COORDINATOR, -1)
            assert client.call(join, 5).error_code == E.NOT_COORDINATOR
            beat = HeartbeatRequest(group_id="served", generation_id=1, member_id="m")
            assert client.call(beat, 4).error_code == E.NOT_COORDINATOR
            (described,) = client.call(DescribeGroupsRequest(groups=["served"]), 5).groups
            assert described.error_code == E.NOT_COORDINATOR
            (topic,) = client.call(transactional, 3).topics
            assert topic.partitions[0].error_code == E.NOT_COORDINATOR


def test_groups_are_listed_only_by_their_coordinator(cluster: InProcessCluster) -> None:
    groups = {f"listed-{n}" for n in range(8)}
    at = {group: cluster.coordinator(group) for group in groups}
    for group, node in at.items():
        with cluster.client(node) as client:
            assert commit(client, group, 1) == 0
    for node in range(3):
        with cluster.client(node) as client:
            answer = client.call(ListGroupsRequest(), 4)
        assert answer.error_code == 0
        mine = {row.group_id for row in answer.groups} & groups
        assert mine == {group for group in groups if at[group] == node}


def test_only_the_coordinator_of_a_transactional_id_serves_it(cluster: InProcessCluster) -> None:
    here = cluster.coordinator("payments", TRANSACTION)
    init = InitProducerIdRequest(transactional_id="payments", transaction_timeout_ms=10_000)
    with cluster.client(here) as client:
        producer = client.call(init, 4)
        assert producer.error_code == 0
    for node in range(3):
        with cluster.client(node) as client:
            states = client.call(ListTransactionsRequest(), 0).transaction_states
            assert ("payments" in {row.transactional_id for row in states}) == (node == here)
    for node in others(here):
        with cluster.client(node) as client:
            assert client.call(init, 4).error_code == E.NOT_COORDINATOR
            end = EndTxnRequest(
                transactional_id="payments",
                producer_id=producer.producer_id,
                producer_epoch=0,
                committed=True,
            )
            assert client.call(end, 3).error_code == E.NOT_COORDINATOR
            describe = DescribeTransactionsRequest(transactional_ids=["payments"])
            (row,) = client.call(describe, 0).transaction_states
            assert row.error_code == E.NOT_COORDINATOR


# ---- fail-over ----


def test_group_continues_with_the_next_leader(cluster: InProcessCluster) -> None:
    old = cluster.coordinator("moving")
    new = others(old)[0]
    with cluster.client(old) as client:
        assert commit(client, "moving", 41) == 0
    cluster.move_leader(OFFSETS, partition_of("moving", PARTITIONS), new)
    assert cluster.coordinator("moving") == new
    with cluster.client(old) as client:
        assert committed(client, "moving") == (E.NOT_COORDINATOR, -1)
    with cluster.client(new) as client:
        wait_until(lambda: committed(client, "moving") == (0, 41), "the offset")
        assert commit(client, "moving", 42) == 0
        assert committed(client, "moving") == (0, 42)


def test_waiting_member_is_sent_to_the_next_coordinator(cluster: InProcessCluster) -> None:
    """The member waits for the others to join."""
    old = cluster.coordinator("waiting")

    def join(member: str, client: RawClient) -> int:
        request = JoinGroupRequest(
            group_id="waiting",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            member_id=member,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        return client.send(request, 5)

    with cluster.client(old) as first, cluster.client(old) as second:
        join("", first)
        named = first.receive()[1].member_id
        join(named, first)
        assert first.receive()[1].error_code == 0
        join("", second)
        join(second.receive()[1].member_id, second)  # waits for the first to rejoin
        cluster.move_leader(OFFSETS, partition_of("waiting", PARTITIONS), others(old)[0])
        assert second.receive()[1].error_code == E.NOT_COORDINATOR


def test_loading_coordinator_returns_load_in_progress(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = cluster.coordinator("slow")
    new = others(old)[0]
    with cluster.client(old) as client:
        assert commit(client, "slow", 3) == 0
    go_on = threading.Event()
    read = replay._read_chunk

    def read_slowly(*arguments: Any) -> Any:
        assert go_on.wait(30)
        return read(*arguments)

    monkeypatch.setattr(replay, "_read_chunk", read_slowly)
    cluster.move_leader(OFFSETS, partition_of("slow", PARTITIONS), new)
    with cluster.client(new) as client:
        wait_until(
            lambda: committed(client, "slow") == (E.COORDINATOR_LOAD_IN_PROGRESS, -1),
            "the new coordinator",
        )
        assert commit(client, "slow", 4) == E.COORDINATOR_LOAD_IN_PROGRESS
        assert client.call(ListGroupsRequest(), 4).error_code == E.COORDINATOR_LOAD_IN_PROGRESS
        go_on.set()
        wait_until(lambda: committed(client, "slow") == (0, 3), "what was committed")


# ---- unreplicated state is not returned ----


class Followers:
    """Replicas of ``__consumer_offsets`` that append nothing while they are held."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held = False
        take = follower_logs.FollowerLogs.apply

        def take_unless_held(loop: Any, partition: Any, row: Any) -> None:
            if not (self.held and partition.tp.topic == OFFSETS):
                take(loop, partition, row)

        monkeypatch.setattr(follower_logs.FollowerLogs, "apply", take_unless_held)


@pytest.fixture
def followers(monkeypatch: pytest.MonkeyPatch) -> Followers:
    return Followers(monkeypatch)


def test_response_waits_for_the_followers(cluster: InProcessCluster, followers: Followers) -> None:
    """A client that waited too long may retry: the coordinator keeps the state that it could not
    acknowledge.
    """
    node = cluster.coordinator("held")
    with cluster.client(node) as client:
        assert commit(client, "held", 1) == 0
        followers.held = True
        assert commit(client, "held", 2) == E.COORDINATOR_NOT_AVAILABLE
        followers.held = False
        wait_until(lambda: committed(client, "held") == (0, 2), "the second offset")


def test_unreplicated_commit_leaves_no_trace(
    cluster: InProcessCluster, followers: Followers
) -> None:
    """Neither the old coordinator nor the next one ever returned it."""
    old = cluster.coordinator("lost-commit")
    new = others(old)[0]
    index = partition_of("lost-commit", PARTITIONS)
    with cluster.client(old) as client, cluster.client(old) as reader:
        assert commit(client, "lost-commit", 1) == 0
        followers.held = True
        journal = cluster.brokers[old].broker.parts.replicas.leader(OFFSETS, index).online_log
        end = journal.log_end_offset
        cluster.brokers[old].broker.config.broker["offsets.commit.timeout.ms"] = 60_000
        try:
            client.send(commit_request("lost-commit", 2), 8)
            wait_until(lambda: journal.log_end_offset > end, "the append")
            requested = OffsetFetchRequestGroup(
                group_id="lost-commit",
                topics=[OffsetFetchRequestTopics(name="numbers", partition_indexes=[0])],
            )
            reader.send(OffsetFetchRequest(groups=[requested]), 8)
            cluster.move_leader(OFFSETS, index, new)
            assert client.receive()[1].topics[0].partitions[0].error_code == E.NOT_COORDINATOR
            assert reader.receive()[1].groups[0].error_code == E.NOT_COORDINATOR
        finally:
            followers.held = False
            del cluster.brokers[old].broker.config.broker["offsets.commit.timeout.ms"]
    with cluster.client(new) as client:
        wait_until(lambda: committed(client, "lost-commit")[0] == 0, "the new coordinator")
        assert committed(client, "lost-commit") == (0, 1)
