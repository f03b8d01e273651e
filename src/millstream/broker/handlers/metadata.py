"""Metadata: brokers, topics and leaders, at the addresses of the client's listener.

It begins to create a missing topic if settings and client allow it. The topic is unknown in this
response, as in Kafka, and the client retries.

* v0: an empty list means all topics; from v1 on null does. Replicas that the client cannot reach
  are left out of the lists.
* v4: the client may forbid auto-creation. Older clients always allow it.
* v5: offline replicas (KIP-112).
* v6: LISTENER_NOT_FOUND if the leader does not have the client's listener. Older clients get
  LEADER_NOT_AVAILABLE.
* v7: leader epochs (KIP-320).
* v8: authorized operations on request. v11 removes those of the cluster (see DescribeCluster).
* v10: topic ids in the response. v12: lookup by id, with a null name (KIP-516). A topic id in v10
  or v11 gets INVALID_REQUEST for all topics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.requests.authorized_operations import (
    CLUSTER_OPERATIONS,
    NOT_REQUESTED,
    TOPIC_OPERATIONS,
)
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
# The state of a partition whose creation is in progress: a large topic is created in slices.
_NOT_CREATED_YET = PartitionState(NO_LEADER, -1, ())


def handle(
    services: MetadataServices, context: RequestContext, request: MetadataRequest
) -> Steps[MetadataResponse]:
    is_all = request.topics is None or (context.version == 0 and not request.topics)
    if is_all:
        return _describe_all(services, context, request)
    return _describe(services, context, request)


def _describe_all(
    services: MetadataServices, context: RequestContext, request: MetadataRequest
) -> Steps[MetadataResponse]:
    describe = _Describer(services, context)
    topics = []
    # A copy of the names: topics may be created and deleted between two slices.
    for name in list(services.image.topics):
        topic = services.image.topics.get(name)
        if topic is not None:
            topics.append((yield from describe.topic(topic)))
    return _respond(services, context, request, topics)


def _reject_all(
    services: MetadataServices, context: RequestContext, request: MetadataRequest
) -> Steps[MetadataResponse]:
    rejected = []
    for topic in request.topics or ():
        rejected.append(_error(ErrorCode.INVALID_REQUEST, topic.name or "", topic.topic_id))
        yield
    return _respond(services, context, request, rejected)


def _describe(
    services: MetadataServices, context: RequestContext, request: MetadataRequest
) -> Steps[MetadataResponse]:
    # A topic named many times is described once, as in Kafka: a small request must not cause a huge
    # response.
    distinct = {}
    for requested in request.topics or ():
        if context.version < 12 and (requested.name is None or requested.topic_id != NULL_UUID):
            return (yield from _reject_all(services, context, request))
        distinct[requested.name, requested.topic_id] = requested
        yield
    describe = _Describer(services, context)
    topics = []
    creatable: list[str] = []
    may_create = _may_create(services, context, request)
    for requested in distinct.values():
        topic = yield from _look_up(describe, requested)
        topics.append(topic)
        # A request with a topic id creates no topic, as in Kafka.
        may_create = may_create and requested.topic_id == NULL_UUID
        if may_create and topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            assert requested.name is not None
            creatable.append(requested.name)
        yield
    if may_create and creatable:
        services.auto_creation.begin(creatable, context.connection)
    return _respond(services, context, request, topics)


def _may_create(
    services: MetadataServices, context: RequestContext, request: MetadataRequest
) -> bool:
    allowed = context.version < 4 or request.allow_auto_topic_creation
    return allowed and services.config.flag("auto.create.topics.enable")


def _look_up(describe: _Describer, requested: MetadataRequestTopic) -> Steps[MetadataResponseTopic]:
    image = describe.services.image
    if requested.name is None or requested.topic_id != NULL_UUID:
        name = image.names_by_id.get(requested.topic_id)
        if name is None:
            return _error(ErrorCode.UNKNOWN_TOPIC_ID, None, requested.topic_id)
        return (yield from describe.topic(image.topics[name]))
    topic = image.topics.get(requested.name)
    if topic is not None:
        return (yield from describe.topic(topic))
    wrong_name = name_problem(requested.name) is not None
    code = ErrorCode.INVALID_TOPIC_EXCEPTION if wrong_name else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return _error(code, requested.name, NULL_UUID)


def _error(code: ErrorCode, name: str | None, topic_id: bytes) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=code,
        name=name,
        topic_id=topic_id,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=NOT_REQUESTED,
    )


class _Describer:
    """Describes topics to a client of one listener, for one version of Metadata."""

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
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.internal,
            partitions=partitions,
        )

    def _partition(self, topic: TopicImage, index: int) -> MetadataResponsePartition:
        row = describe_partition(self.services, topic, index, self._reachable)
        if row.error_code == ErrorCode.LISTENER_NOT_FOUND and self._version < _KNOWS_LISTENERS:
            row.error_code = ErrorCode.LEADER_NOT_AVAILABLE
        if self._version == 0:
            self._remove_unreachable(row)
        return row

    def _remove_unreachable(self, row: MetadataResponsePartition) -> None:
        """Clients of v0 expect every replica among the brokers of the response."""
        replicas = [node for node in row.replica_nodes if node in self._reachable]
        isr = [node for node in row.isr_nodes if node in self._reachable]
        incomplete = len(replicas) < len(row.replica_nodes) or len(isr) < len(row.isr_nodes)
        if incomplete and not row.error_code:
            row.error_code = ErrorCode.REPLICA_NOT_AVAILABLE
        row.replica_nodes, row.isr_nodes = replicas, isr


def reachable_nodes(services: MetadataServices, context: RequestContext) -> frozenset[int]:
    """Return the brokers that the client can reach through its listener."""
    return frozenset(
        node.node_id for node in services.nodes.reached_by(context.connection.listener)
    )


def describe_partition(
    services: MetadataServices, topic: TopicImage, index: int, reachable: Container[int]
) -> MetadataResponsePartition:
    """Describe a partition to a client that can reach these brokers."""
    state, replicas = topic.states.get(index, _NOT_CREATED_YET), topic.replicas[index]
    offline = [
        node
        for node in replicas
        if node not in reachable or not services.replicas.is_online(topic.name, index, node)
    ]
    leader = -1 if state.leader in offline else state.leader
    code = ErrorCode.NONE
    if leader < 0:
        is_live = state.leader in services.image.brokers and state.leader not in reachable
        code = ErrorCode.LISTENER_NOT_FOUND if is_live else ErrorCode.LEADER_NOT_AVAILABLE
    return MetadataResponsePartition(
        error_code=code,
        partition_index=index,
        leader_id=leader,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(replicas),
        isr_nodes=list(state.isr),
        offline_replicas=offline,
    )


def _respond(
    services: MetadataServices,
    context: RequestContext,
    request: MetadataRequest,
    topics: list[MetadataResponseTopic],
) -> MetadataResponse:
    if request.include_topic_authorized_operations:
        for topic in topics:
            topic.topic_authorized_operations = (
                TOPIC_OPERATIONS if not topic.error_code else NOT_REQUESTED
            )
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=node.node_id, host=node.host, port=node.port, rack=node.rack
            )
            for node in services.nodes.reached_by(context.connection.listener)
        ],
        cluster_id=services.image.cluster_id,
        controller_id=services.member.controller_id,
        topics=topics,
        cluster_authorized_operations=CLUSTER_OPERATIONS
        if request.include_cluster_authorized_operations
        else NOT_REQUESTED,
    )
