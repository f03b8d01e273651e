"""Without an active controller, its operations wait or are retried, and no connection is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from millstream.cluster.controller.term import ControllerState
from millstream.core.errors import ApiError, ErrorCode
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.wire.messages.elect_leaders import ElectLeadersRequest
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from support.clusters import InProcessCluster
from support.processes import wait_until

TOPIC = "later"


def controller(cluster: InProcessCluster) -> int:
    (active,) = [
        node
        for node, broker in enumerate(cluster.brokers)
        if broker.broker.parts.member.state.active
    ]
    return active


def test_next_controller_finishes_an_interrupted_change(
    in_process_cluster: Callable[..., InProcessCluster],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The request goes to the controller itself and to another broker."""
    with in_process_cluster(2) as cluster:
        commit = ControllerState.commit
        failures: list[int] = []

        async def deposed(state: ControllerState, *groups: object) -> None:
            if failures:
                failures.pop()
                raise ApiError(ErrorCode.NOT_CONTROLLER)
            await commit(state, *groups)  # type: ignore[arg-type]

        monkeypatch.setattr(ControllerState, "commit", deposed)
        first = controller(cluster)
        for number, node in enumerate((first, 1 - first)):
            topic = CreatableTopic(name=f"{TOPIC}-{number}", num_partitions=1, replication_factor=2)
            with cluster.client(node) as client:
                failures.append(1)
                (row,) = client.call(
                    CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7
                ).topics
                assert (row.error_code, failures) == (0, [])
                failures.append(1)
                request = ElectLeadersRequest(topic_partitions=None, election_type=0)
                assert client.call(request, 2).error_code == 0
        assert "unexpectedly" not in caplog.text


def test_auto_created_topic_is_requested_again(
    in_process_cluster: Callable[..., InProcessCluster],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with in_process_cluster(2) as cluster:
        node = 1 - controller(cluster)
        gone = threading.Event()
        gone.set()
        member = cluster.brokers[node].broker.parts.member
        address = member.controller_address

        async def nowhere() -> tuple[str, int]:
            if gone.is_set():
                raise ApiError(ErrorCode.NOT_CONTROLLER)
            return await address()

        monkeypatch.setattr(member, "controller_address", nowhere)

        def code() -> ErrorCode:
            topic = MetadataRequestTopic(name=TOPIC)
            request = MetadataRequest(topics=[topic], allow_auto_topic_creation=True)
            with cluster.client(node) as client:
                (row,) = client.call(request, 12).topics
            return ErrorCode.of(row.error_code)

        assert code() is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        gone.clear()
        wait_until(lambda: code() is ErrorCode.NONE, "the topic")
        assert "unexpectedly" not in caplog.text
