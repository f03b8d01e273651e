"""Metadata: brokers, topics and leaders; begins to create a missing topic when settings and client allow it.

A topic whose creation begins is unknown in this answer, as in Kafka: the client asks again.

In v0 an empty list means all topics, from v1 null does; replicas that cannot be reached are left out of its lists. From v6 a leader without
the listener of whoever asks has an error of its own. Topics are looked up by id from v12 (null name).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.requests.authorized_operations import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from millstream.control.image import INTERNAL_TOPICS, TopicImage
from millstream.control.topics import name_problem
from millstream.control.znodes import PartitionState
from millstream.core.errors import ErrorCode
from millstream.core.types import NO_LEADER
from millstream.ports.turns import Steps
from millstream.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from millstream.wire.schema import NULL_UUID

if TYPE_CHECKING:
    from collections.abc import Container

    from millstream.broker.services import MetadataServices

_KNOWS_LISTENERS = 6
# Of a partition that is being made: a large creation comes in slices, the topic before its last partitions.
_NOT_YET = PartitionState(NO_LEADER, -1, ())


def handle(
    services: MetadataServices, context: RequestContext, request: MetadataRequest
) -> Steps[MetadataResponse]:
    every = request.topics is None or (context.version == 0 and not request.topics)
    if every:
        return _describe_all(services, context, request)
    assert request.topics is not None
    if context.version < 12 and any(
        asked.name is None or asked.topic_id != NULL_UUID for asked in request.topics
    ):
        return _refuse_all(services, context, request)
    # A topic named many times is described once, as in Kafka: a small request must not ask for a huge answer.
    request.topics = list({(asked.name, asked.topic_id): asked for asked in request.topics}.values())
    return _describe(services, context, request)


def _describe_all(
    services: MetadataServices, context: RequestContext, request: MetadataRequest
) -> Steps[MetadataResponse]:
    describe = _Describer(services, context)
    topics = []
    # The names as they are now: a topic may come or go between two slices.
    for name in list(services.image.topics):
        topic = services.image.topics.get(name)
        if topic is not None:
            topics.append((yield from describe.topic(topic)))
    return _answer(services, context, request, topics)


def _refuse_all(
    services: MetadataServices, context: RequestContext, request: MetadataRequest
) -> Steps[MetadataResponse]:
    refused = []
    for topic in request.topics or ():
        refused.append(_problem(ErrorCode.INVALID_REQUEST, topic.name or "", topic.topic_id))
        yield
    return _answer(services, context, request, refused)


def _describe(
    services: MetadataServices, context: RequestContext, request: MetadataRequest
) -> Steps[MetadataResponse]:
    describe = _Describer(services, context)
    topics = []
    creatable: list[str] = []
    may_create = _may_create(services, context, request)
    for asked in request.topics or ():
        topic = yield from _look_up(describe, asked)
        topics.append(topic)
        # With a topic id in the request no topic is created, as in Kafka.
        may_create = may_create and asked.topic_id == NULL_UUID
        if may_create and topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            assert asked.name is not None
            creatable.append(asked.name)
        yield
    if may_create and creatable:
        services.auto_creation.begin(creatable, context.connection)
    return _answer(services, context, request, topics)


def _may_create(services: MetadataServices, context: RequestContext, request: MetadataRequest) -> bool:
    allowed = context.version < 4 or request.allow_auto_topic_creation
    return allowed and services.config.flag("auto.create.topics.enable")


def _look_up(describe: _Describer, asked: MetadataRequestTopic) -> Steps[MetadataResponseTopic]:
    image = describe.services.image
    if asked.name is None or asked.topic_id != NULL_UUID:
        name = image.names_by_id.get(asked.topic_id)
        if name is None:
            return _problem(ErrorCode.UNKNOWN_TOPIC_ID, None, asked.topic_id)
        return (yield from describe.topic(image.topics[name]))
    topic = image.topics.get(asked.name)
    if topic is not None:
        return (yield from describe.topic(topic))
    wrong_name = name_problem(asked.name) is not None
    code = ErrorCode.INVALID_TOPIC_EXCEPTION if wrong_name else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return _problem(code, asked.name, NULL_UUID)


def _problem(code: ErrorCode, name: str | None, topic_id: bytes) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=code,
        name=name,
        topic_id=topic_id,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=NOT_ASKED,
    )


class _Describer:
    """What the clients of a listener are told of topics, in one version of Metadata."""

    def __init__(self, services: MetadataServices, context: RequestContext) -> None:
        self.services = services
        self._version = context.version
        self._reachable = reachable_nodes(services, context)

    def topic(self, topic: TopicImage) -> Steps[MetadataResponseTopic]:
        partitions = []
        for index in list(topic.replicas):
            partitions.append(self._partition(topic, index))
            yield
        return MetadataResponseTopic(
            name=topic.name, topic_id=topic.topic_id, is_internal=topic.internal, partitions=partitions
        )

    def _partition(self, topic: TopicImage, index: int) -> MetadataResponsePartition:
        row = describe_partition(self.services, topic, index, self._reachable)
        if row.error_code == ErrorCode.LISTENER_NOT_FOUND and self._version < _KNOWS_LISTENERS:
            row.error_code = ErrorCode.LEADER_NOT_AVAILABLE
        if self._version == 0:
            self._leave_out(row)
        return row

    def _leave_out(self, row: MetadataResponsePartition) -> None:
        """Clients of v0 expect the address of every replica among the brokers."""
        replicas = [node for node in row.replica_nodes if node in self._reachable]
        isr = [node for node in row.isr_nodes if node in self._reachable]
        lacking = len(replicas) < len(row.replica_nodes) or len(isr) < len(row.isr_nodes)
        if lacking and not row.error_code:
            row.error_code = ErrorCode.REPLICA_NOT_AVAILABLE
        row.replica_nodes, row.isr_nodes = replicas, isr


def reachable_nodes(services: MetadataServices, context: RequestContext) -> frozenset[int]:
    """The brokers that whoever asks finds in Metadata."""
    return frozenset(node.node_id for node in services.nodes.reached_by(context.connection.listener))


def describe_partition(
    services: MetadataServices, topic: TopicImage, index: int, reachable: Container[int]
) -> MetadataResponsePartition:
    """To a client that can reach these brokers."""
    state, replicas = topic.states.get(index, _NOT_YET), topic.replicas[index]
    offline = [
        node
        for node in replicas
        if node not in reachable or not services.replicas.is_online(topic.name, index, node)
    ]
    leader = -1 if state.leader in offline else state.leader
    code = ErrorCode.NONE
    if leader < 0:
        lives = state.leader in services.image.brokers and state.leader not in reachable
        code = ErrorCode.LISTENER_NOT_FOUND if lives else ErrorCode.LEADER_NOT_AVAILABLE
    return MetadataResponsePartition(
        error_code=code,
        partition_index=index,
        leader_id=leader,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(replicas),
        isr_nodes=list(state.isr),
        offline_replicas=offline,
    )


def _answer(
    services: MetadataServices,
    context: RequestContext,
    request: MetadataRequest,
    topics: list[MetadataResponseTopic],
) -> MetadataResponse:
    if request.include_topic_authorized_operations:
        for topic in topics:
            topic.topic_authorized_operations = TOPIC_OPERATIONS if not topic.error_code else NOT_ASKED
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in services.nodes.reached_by(context.connection.listener)
        ],
        cluster_id=services.image.cluster_id,
        controller_id=services.member.controller_id,
        topics=topics,
        cluster_authorized_operations=CLUSTER_OPERATIONS
        if request.include_cluster_authorized_operations
        else NOT_ASKED,
    )
