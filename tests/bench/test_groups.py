"""The raw group generator speaks the protocol.

The broker's messages decode its frames, and its members join a broker.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from bench.__main__ import Runner
from bench.load import group_frames as frames
from bench.load.group_members import (
    ClassicMember,
    ConsumerMember,
    Rejected,
    classic_settled,
    consumer_settled,
)
from bench.load.rebalance import Board
from bench.measures import all_measures
from bench.measures.rebalance import client_settings
from bench.model import load_scenarios

from millstream.wire.frames import begin_response, finish_response, parse_request_header
from millstream.wire.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from millstream.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from support.bench.small_scenarios import tiny

TOPIC_ID = bytes(range(16))
TINY = {
    "groups": 3,
    "members": 2,
    "interval_ms": 100,
    "seconds": 0.3,
    "round_trips": 20,
    "requests": 100,
    "messages": 5,
    "transactions": 3,
    "partitions": 3,
    "connections": 2,
    "turns": 1,
    "waiting": {"records": 5, "wait_ms": 1, "workers": 2},
    "computing": {"records": 5, "kilobytes": 1, "workers": 2},
    "brokers": 2,
}


def read(message: Any, frame: bytes) -> Any:
    """Decode the request in a frame, with nothing behind it."""
    body = memoryview(frame)[4:]
    _key, version, _correlation, client_id, at = parse_request_header(body)
    request, end = message.decode(body, version, at)
    assert (end, client_id) == (len(body), "bench")
    return request


def encoded(key: int, version: int, response: Any) -> bytes:
    out = begin_response(key, version, 7)
    response.encode(version, out)
    return bytes(finish_response(out))


def join_response(
    error: int, member_id: str, members: tuple[str, ...] = (), generation: int = 1
) -> bytes:
    response = JoinGroupResponse(
        error_code=error,
        generation_id=generation,
        protocol_name="range",
        leader="a",
        member_id=member_id,
        members=[JoinGroupResponseMember(member_id=name, metadata=b"xyz") for name in members],
    )
    return encoded(frames.JOIN_GROUP, 5, response)


def sync_response(error: int) -> bytes:
    return encoded(frames.SYNC_GROUP, 3, SyncGroupResponse(error_code=error, assignment=b"mine"))


def heartbeat_response(error: int) -> bytes:
    return encoded(frames.HEARTBEAT, 3, HeartbeatResponse(error_code=error))


def consumer_response(epoch: int, partitions: list[int] | None = None, error: int = 0) -> bytes:
    assignment = None
    if partitions is not None:
        row = ConsumerGroupHeartbeatResponseTopicPartitions(
            topic_id=TOPIC_ID, partitions=partitions
        )
        assignment = Assignment(topic_partitions=[row])
    response = ConsumerGroupHeartbeatResponse(
        error_code=error,
        member_id="m",
        member_epoch=epoch,
        heartbeat_interval_ms=5000,
        assignment=assignment,
    )
    return encoded(frames.CONSUMER_GROUP_HEARTBEAT, 1, response)


def test_classic_member_joins_twice_syncs_and_sends_heartbeats() -> None:
    member = ClassicMember(7, "g", "t", 3, "range")
    first = read(JoinGroupRequest, member.start())
    assert (first.group_id, first.member_id, first.protocol_type) == ("g", "", "consumer")
    assert [(p.name, p.metadata) for p in first.protocols] == [("range", frames.subscription("t"))]
    again = member.handle(join_response(frames.MEMBER_ID_REQUIRED, "a"))
    assert again is not None and read(JoinGroupRequest, again).member_id == "a"
    sync = member.handle(join_response(frames.NONE, "a", ("a", "b")))
    assert sync is not None
    plan = {row.member_id: row.assignment for row in read(SyncGroupRequest, sync).assignments}
    assert plan == {"a": frames.assignment("t", [0, 2]), "b": frames.assignment("t", [1])}
    assert not member.idle
    assert member.handle(sync_response(frames.NONE)) is None and member.idle
    beat = read(HeartbeatRequest, member.beat())
    assert (beat.group_id, beat.generation_id, beat.member_id) == ("g", 1, "a")
    assert member.handle(heartbeat_response(frames.NONE)) is None


def test_classic_follower_syncs_without_assignments() -> None:
    member = ClassicMember(7, "g", "t", 3, "range")
    member.start()
    sync = member.handle(join_response(frames.NONE, "b"))
    assert sync is not None and read(SyncGroupRequest, sync).assignments == []


@pytest.mark.parametrize("code", [frames.REBALANCE_IN_PROGRESS, frames.ILLEGAL_GENERATION])
def test_classic_member_rejoins_when_its_group_rebalances(code: int) -> None:
    member = ClassicMember(7, "g", "t", 3, "range")
    member.start()
    member.handle(join_response(frames.NONE, "b"))
    again = member.handle(sync_response(code))
    assert again is not None and read(JoinGroupRequest, again).member_id == "b"
    member.handle(join_response(frames.NONE, "b", generation=2))
    member.handle(sync_response(frames.NONE))
    member.beat()
    assert member.handle(heartbeat_response(code)) is not None and not member.idle


def test_any_other_error_ends_the_run() -> None:
    member = ClassicMember(7, "g", "t", 3, "range")
    member.start()
    with pytest.raises(Rejected, match="a join failed with error code 25"):
        member.handle(join_response(25, ""))
    consumer = ConsumerMember(7, "g", "t", 3)
    consumer.start()
    with pytest.raises(Rejected, match="error code 110"):
        consumer.handle(consumer_response(0, error=110))


def test_consumer_member_acknowledges_its_assignment() -> None:
    member = ConsumerMember(7, "g", "t", 3)
    joins = read(ConsumerGroupHeartbeatRequest, member.start())
    assert (joins.group_id, joins.member_epoch, joins.subscribed_topic_names) == ("g", 0, ["t"])
    assert (joins.topic_partitions, joins.rebalance_timeout_ms) == ([], 300_000)
    reply = member.handle(consumer_response(3, [0, 2]))
    assert reply is not None
    held = read(ConsumerGroupHeartbeatRequest, reply)
    assert [(row.topic_id, row.partitions) for row in held.topic_partitions] == [(TOPIC_ID, [0, 2])]
    assert (held.member_epoch, held.subscribed_topic_names) == (3, None)
    assert member.handle(consumer_response(3)) is None
    assert (member.held, member.interval_ms, member.idle) == ({TOPIC_ID: (0, 2)}, 5000, True)
    alive = read(ConsumerGroupHeartbeatRequest, member.beat())
    assert (alive.topic_partitions, alive.rebalance_timeout_ms, alive.member_epoch) == (None, -1, 3)


def test_groups_are_settled_in_one_generation_with_all_partitions() -> None:
    classic = [ClassicMember(i, "g", "t", 2, "range") for i in range(2)]
    for member in classic:
        member.stable, member.generation = True, 1
    assert classic_settled(classic)
    classic[0].generation = 2
    assert not classic_settled(classic)
    consumers = [ConsumerMember(i, "g", "t", 2) for i in range(2)]
    for member_number, consumer in enumerate(consumers):
        consumer.epoch, consumer.held = 2, {TOPIC_ID: (member_number,)}
    assert consumer_settled(consumers)
    consumers[1].held = {TOPIC_ID: (0,)}
    assert not consumer_settled(consumers)


def test_offset_commit_frame_is_valid_and_its_error_is_found() -> None:
    request = read(OffsetCommitRequest, frames.offset_commit("g", "topic", 4, 99))
    (topic,) = request.topics
    (row,) = topic.partitions
    assert (request.group_id, topic.name, row.partition_index, row.committed_offset) == (
        "g",
        "topic",
        4,
        99,
    )
    failed = OffsetCommitResponsePartition(partition_index=4, error_code=22)
    response = OffsetCommitResponse(
        topics=[OffsetCommitResponseTopic(name="topic", partitions=[failed])]
    )
    response_bytes, at = (
        encoded(frames.OFFSET_COMMIT, 7, response),
        frames.offset_commit_error_at("topic"),
    )
    assert int.from_bytes(response_bytes[at : at + 2], "big") == 22


def test_coordinator_is_requested_by_group() -> None:
    request = read(FindCoordinatorRequest, frames.find_coordinator("g"))
    assert (request.key, request.key_type) == ("g", 0)


def test_partitions_are_balanced_with_one_owner_each_and_equal_shares() -> None:
    board = Board()
    board.held = {1: {0, 1}, 2: {2}, 3: {0}}
    assert board.is_balanced([1, 2], 3)
    assert not board.is_balanced([1, 2, 3], 3)  # two hold the first
    assert not board.is_balanced([2, 3], 3)
    board.assign(3, [SimpleNamespace(partition=5)])
    board.revoke(3, [SimpleNamespace(partition=0)])
    assert board.held[3] == {5} and board.last_assigned_s > 0


def test_heartbeat_interval_of_a_scenario_reaches_member_or_broker() -> None:
    scenarios = {s.name: s for s in load_scenarios() if s.measure == "rebalance"}
    assert {s.load["protocol"] for s in scenarios.values()} == {
        "range",
        "cooperative-sticky",
        "consumer",
    }
    for scenario in scenarios.values():
        settings = client_settings(scenario) | dict(scenario.settings)
        intervals = {v for k, v in settings.items() if k.endswith("heartbeat.interval.ms")}
        assert intervals == {scenario.amount["heartbeat_ms"]}, scenario.name


@pytest.fixture
def runner(runner_of: Callable[[str], Runner]) -> Runner:
    return runner_of("millstream")


@pytest.mark.parametrize(
    "name",
    [
        *(
            "groups-heartbeat",
            "groups-heartbeat-consumer",
            "offset-commit",
            "transactions",
            "stall-crowd-2000",
        ),
        *("client-produce", "client-pool", "test-broker"),
    ],
)
def test_broker_yields_every_metric_of_the_measure(runner: Runner, name: str) -> None:
    scenario = tiny(name, TINY)
    outcome = runner.scenario(scenario, 1, "")
    assert outcome.absent == {}
    (reading,) = outcome.readings["millstream"]
    assert set(reading.values) >= {
        metric.name for metric in all_measures()[scenario.measure].metrics
    }
