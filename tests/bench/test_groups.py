"""The raw group generator speaks the protocol: its frames are read back by the broker's own messages, its members join a broker."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from bench.__main__ import Runner
from bench.load import group_frames as frames
from bench.load.group_members import (
    ClassicMember,
    ConsumerMember,
    Refused,
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
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
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
    """The request in a frame; nothing may follow it."""
    body = memoryview(frame)[4:]
    _key, version, _correlation, client_id, at = parse_request_header(body)
    request, end = message.decode(body, version, at)
    assert (end, client_id) == (len(body), "bench")
    return request


def answered(key: int, version: int, response: Any) -> bytes:
    out = begin_response(key, version, 7)
    response.encode(version, out)
    return bytes(finish_response(out))


def join_answer(error: int, member_id: str, members: tuple[str, ...] = (), generation: int = 1) -> bytes:
    response = JoinGroupResponse(
        error_code=error,
        generation_id=generation,
        protocol_name="range",
        leader="a",
        member_id=member_id,
        members=[JoinGroupResponseMember(member_id=name, metadata=b"xyz") for name in members],
    )
    return answered(frames.JOIN_GROUP, 5, response)


def sync_answer(error: int) -> bytes:
    return answered(frames.SYNC_GROUP, 3, SyncGroupResponse(error_code=error, assignment=b"mine"))


def beat_answer(error: int) -> bytes:
    return answered(frames.HEARTBEAT, 3, HeartbeatResponse(error_code=error))


def consumer_answer(epoch: int, partitions: list[int] | None = None, error: int = 0) -> bytes:
    given = None
    if partitions is not None:
        row = ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=TOPIC_ID, partitions=partitions)
        given = Assignment(topic_partitions=[row])
    response = ConsumerGroupHeartbeatResponse(
        error_code=error, member_id="m", member_epoch=epoch, heartbeat_interval_ms=5000, assignment=given
    )
    return answered(frames.CONSUMER_GROUP_HEARTBEAT, 1, response)


def test_a_classic_member_joins_twice_syncs_and_beats() -> None:
    member = ClassicMember(7, "g", "t", 3, "range")
    first = read(JoinGroupRequest, member.start())
    assert (first.group_id, first.member_id, first.protocol_type) == ("g", "", "consumer")
    assert [(p.name, p.metadata) for p in first.protocols] == [("range", frames.subscription("t"))]
    again = member.heard(join_answer(frames.MEMBER_ID_REQUIRED, "a"))
    assert again is not None and read(JoinGroupRequest, again).member_id == "a"
    sync = member.heard(join_answer(frames.NONE, "a", ("a", "b")))
    assert sync is not None
    plan = {row.member_id: row.assignment for row in read(SyncGroupRequest, sync).assignments}
    assert plan == {"a": frames.assignment("t", [0, 2]), "b": frames.assignment("t", [1])}
    assert not member.idle
    assert member.heard(sync_answer(frames.NONE)) is None and member.idle
    beat = read(HeartbeatRequest, member.beat())
    assert (beat.group_id, beat.generation_id, beat.member_id) == ("g", 1, "a")
    assert member.heard(beat_answer(frames.NONE)) is None


def test_a_classic_member_that_does_not_lead_hands_in_nothing() -> None:
    member = ClassicMember(7, "g", "t", 3, "range")
    member.start()
    sync = member.heard(join_answer(frames.NONE, "b"))
    assert sync is not None and read(SyncGroupRequest, sync).assignments == []


@pytest.mark.parametrize("code", [frames.REBALANCE_IN_PROGRESS, frames.ILLEGAL_GENERATION])
def test_a_classic_member_joins_again_when_its_group_rebalances(code: int) -> None:
    member = ClassicMember(7, "g", "t", 3, "range")
    member.start()
    member.heard(join_answer(frames.NONE, "b"))
    again = member.heard(sync_answer(code))
    assert again is not None and read(JoinGroupRequest, again).member_id == "b"
    member.heard(join_answer(frames.NONE, "b", generation=2))
    member.heard(sync_answer(frames.NONE))
    member.beat()
    assert member.heard(beat_answer(code)) is not None and not member.idle


def test_any_other_error_ends_the_run() -> None:
    member = ClassicMember(7, "g", "t", 3, "range")
    member.start()
    with pytest.raises(Refused, match="a join was answered with error code 25"):
        member.heard(join_answer(25, ""))
    consumer = ConsumerMember(7, "g", "t", 3)
    consumer.start()
    with pytest.raises(Refused, match="error code 110"):
        consumer.heard(consumer_answer(0, error=110))


def test_a_consumer_member_takes_what_it_is_given_and_says_so() -> None:
    member = ConsumerMember(7, "g", "t", 3)
    joins = read(ConsumerGroupHeartbeatRequest, member.start())
    assert (joins.group_id, joins.member_epoch, joins.subscribed_topic_names) == ("g", 0, ["t"])
    assert (joins.topic_partitions, joins.rebalance_timeout_ms) == ([], 300_000)
    reply = member.heard(consumer_answer(3, [0, 2]))
    assert reply is not None
    held = read(ConsumerGroupHeartbeatRequest, reply)
    assert [(row.topic_id, row.partitions) for row in held.topic_partitions] == [(TOPIC_ID, [0, 2])]
    assert (held.member_epoch, held.subscribed_topic_names) == (3, None)
    assert member.heard(consumer_answer(3)) is None
    assert (member.held, member.interval_ms, member.idle) == ({TOPIC_ID: (0, 2)}, 5000, True)
    alive = read(ConsumerGroupHeartbeatRequest, member.beat())
    assert (alive.topic_partitions, alive.rebalance_timeout_ms, alive.member_epoch) == (None, -1, 3)


def test_groups_are_settled_in_one_generation_with_every_partition_held() -> None:
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


def test_offset_commits_are_read_back_and_their_error_is_found() -> None:
    request = read(OffsetCommitRequest, frames.offset_commit("g", "topic", 4, 99))
    (topic,) = request.topics
    (row,) = topic.partitions
    assert (request.group_id, topic.name, row.partition_index, row.committed_offset) == ("g", "topic", 4, 99)
    failed = OffsetCommitResponsePartition(partition_index=4, error_code=22)
    response = OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="topic", partitions=[failed])])
    answer, at = answered(frames.OFFSET_COMMIT, 7, response), frames.offset_commit_error_at("topic")
    assert int.from_bytes(answer[at : at + 2], "big") == 22


def test_a_coordinator_is_asked_for_by_group() -> None:
    request = read(FindCoordinatorRequest, frames.find_coordinator("g"))
    assert (request.key, request.key_type) == ("g", 0)


def test_partitions_are_shared_out_when_each_is_with_one_member_and_nobody_has_much_more() -> None:
    board = Board()
    board.held = {1: {0, 1}, 2: {2}, 3: {0}}
    assert board.shared_out([1, 2], 3)
    assert not board.shared_out([1, 2, 3], 3)  # two hold the first
    assert not board.shared_out([2, 3], 3)
    board.give(3, [SimpleNamespace(partition=5)])
    board.take(3, [SimpleNamespace(partition=0)])
    assert board.held[3] == {5} and board.last_given_s > 0


def test_the_heartbeat_interval_of_a_scenario_reaches_the_members_or_the_broker() -> None:
    found = {s.name: s for s in load_scenarios() if s.measure == "rebalance"}
    assert {s.load["protocol"] for s in found.values()} == {"range", "cooperative-sticky", "consumer"}
    for scenario in found.values():
        told = client_settings(scenario) | dict(scenario.settings)
        intervals = {v for k, v in told.items() if k.endswith("heartbeat.interval.ms")}
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
def test_a_broker_yields_every_metric_of_the_measure(runner: Runner, name: str) -> None:
    scenario = tiny(name, TINY)
    outcome = runner.scenario(scenario, 1, "")
    assert outcome.absent == {}
    (reading,) = outcome.readings["millstream"]
    assert set(reading.values) >= {metric.name for metric in all_measures()[scenario.measure].metrics}
