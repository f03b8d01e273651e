"""DescribeCluster: cluster id, controller and brokers, at the addresses of the client's listener.

* v1: the type of endpoint (KIP-919). There are only brokers here: a client that expects
  controllers gets MISMATCHED_ENDPOINT_TYPE.
* v2: fenced brokers on request: registered brokers that are down, at their last known addresses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.requests.authorized_operations import CLUSTER_OPERATIONS, NOT_REQUESTED
from millstream.core.errors import ErrorCode
from millstream.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

if TYPE_CHECKING:
    from millstream.broker.services import MetadataServices

_BROKERS = 1


def handle(
    services: MetadataServices, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    if context.version >= 1 and request.endpoint_type != _BROKERS:
        code = (
            ErrorCode.MISMATCHED_ENDPOINT_TYPE
            if request.endpoint_type == 2
            else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        )
        return DescribeClusterResponse(
            error_code=code, error_message=code.message, endpoint_type=request.endpoint_type
        )
    return DescribeClusterResponse(
        error_message=None,
        cluster_id=services.image.cluster_id,
        controller_id=services.member.controller_id,
        brokers=_brokers(
            services, context.connection.listener, fenced=request.include_fenced_brokers
        ),
        cluster_authorized_operations=CLUSTER_OPERATIONS
        if request.include_cluster_authorized_operations
        else NOT_REQUESTED,
    )


def _brokers(
    services: MetadataServices, listener: str, *, fenced: bool
) -> list[DescribeClusterBroker]:
    """Return the live brokers and, if requested, the registered brokers that are down."""
    brokers = [
        DescribeClusterBroker(
            broker_id=node.node_id, host=node.host, port=node.port, rack=node.rack
        )
        for node in services.nodes.reached_by(listener)
    ]
    if fenced:
        image = services.image
        for node_id in sorted(image.registered.keys() - image.brokers.keys()):
            registration = image.registered[node_id]
            endpoint = registration.endpoint(listener)
            if endpoint is not None:
                brokers.append(
                    DescribeClusterBroker(
                        broker_id=node_id,
                        host=endpoint.host,
                        port=endpoint.port,
                        rack=registration.rack,
                        is_fenced=True,
                    )
                )
    return brokers
