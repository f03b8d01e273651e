"""The snapshot of topics that a batch may write to, while brokers create some of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millstream.client import auto_creation
from millstream.client.errors import ClientError
from millstream.client.protocol import Address
from millstream.core.errors import ErrorCode
from millstream.spark.sink import targets
from millstream.spark.sink.failures import TopicMissing
from millstream.spark.sink.targets import take_snapshot
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from millstream.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

BROKER = 4


class Cluster:
    """Answers as a cluster that knows a topic only after some Metadata requests; None: never."""

    def __init__(self, known_after: int | None, creates: str | None) -> None:
        self.requests = 0
        self.setting_requests = 0
        self._known_after = known_after
        self._creates = creates

    def brokers(self) -> list[Address]:
        return [Address(7, "h", 9092)]

    def ask(self, request: Any, *, node: int | None = None) -> Any:
        if isinstance(request, DescribeConfigsRequest):
            return self._describe(request, node)
        assert isinstance(request, MetadataRequest) and request.topics is not None
        self.requests += 1
        known = self._known_after is not None and self.requests > self._known_after
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=7, host="h", port=9092)],
            topics=[self._topic(topic.name, known) for topic in request.topics],
        )

    def _topic(self, name: str, known: bool) -> MetadataResponseTopic:
        if not known:
            return MetadataResponseTopic(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return MetadataResponseTopic(
            name=name, partitions=[MetadataResponsePartition(partition_index=0, leader_id=7)]
        )

    def _describe(
        self, request: DescribeConfigsRequest, node: int | None
    ) -> DescribeConfigsResponse:
        (resource,) = request.resources
        if resource.resource_type != BROKER:
            return DescribeConfigsResponse()
        self.setting_requests += 1
        assert (resource.resource_name, node) == ("7", 7)
        if self._creates is None:
            raise ClientError("refused")
        (name,) = resource.configuration_keys or ()
        entry = DescribeConfigsResourceResult(name=name, value=self._creates)
        return DescribeConfigsResponse(results=[DescribeConfigsResult(configs=[entry])])


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only sleeping moves."""
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    fake = SimpleNamespace(monotonic=lambda: now_s, sleep=sleep)
    monkeypatch.setattr(targets, "time", fake)
    monkeypatch.setattr(auto_creation, "time", fake)


def snapshot(cluster: Any, patience_s: float = 60.0) -> Any:
    return take_snapshot(cluster, ["orders"], others=(), patience_s=patience_s)


def questions(seconds: float) -> int:
    return round(seconds / targets.RETRY_S)


@pytest.mark.parametrize("known_after", [0, 1, 2, 5])
@pytest.mark.parametrize("creates", ["true", "false"])
def test_topic_that_is_briefly_unknown_is_waited_for(known_after: int, creates: str) -> None:
    """Also where brokers create nothing: a new topic is unknown to some brokers for a moment."""
    cluster = Cluster(known_after, creates)
    assert snapshot(cluster).counts == {"orders": 1}
    assert (cluster.requests, cluster.setting_requests) == (known_after + 1, 0)


@pytest.mark.parametrize("creates", ["true", None], ids=["created", "unknown"])
def test_slow_creation_is_waited_for(creates: str | None) -> None:
    cluster = Cluster(questions(auto_creation.CREATION_WAIT_S) - 2, creates)
    assert snapshot(cluster).counts == {"orders": 1}
    assert cluster.setting_requests == 1


@pytest.mark.parametrize(
    ("creates", "wait_s"),
    [("false", auto_creation.UNKNOWN_WAIT_S), ("true", auto_creation.CREATION_WAIT_S)],
)
def test_topic_that_never_appears_is_missing(creates: str, wait_s: float) -> None:
    cluster = Cluster(None, creates)
    with pytest.raises(TopicMissing, match="topic 'orders' does not exist"):
        snapshot(cluster)
    assert questions(wait_s) <= cluster.requests <= questions(wait_s) + 3


def test_wait_for_unknown_topic_ends_with_the_delivery_timeout() -> None:
    cluster = Cluster(None, "true")
    with pytest.raises(TopicMissing):
        snapshot(cluster, patience_s=2.0)
    assert cluster.requests <= questions(2.0) + 3
