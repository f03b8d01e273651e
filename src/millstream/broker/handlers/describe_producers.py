"""DescribeProducers: the producers with state in a partition, and their transactions (KIP-664).

Any replica responds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.control.topics import check_name
from millstream.core.errors import ApiError
from millstream.core.types import TopicPartition
from millstream.ports.turns import Steps
from millstream.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

if TYPE_CHECKING:
    from millstream.broker.services import LogServices


def handle(
    services: LogServices, context: RequestContext, request: DescribeProducersRequest
) -> Steps[DescribeProducersResponse]:
    described: dict[TopicPartition, PartitionResponse] = {}
    response = DescribeProducersResponse()
    for topic in request.topics:
        rows: list[PartitionResponse] = []
        response.topics.append(TopicResponse(name=topic.name, partitions=rows))
        for index in topic.partition_indexes:
            tp = TopicPartition(topic.name, index)
            if tp not in described:
                described[tp] = yield from _describe(services, topic.name, index)
            rows.append(described[tp])
            yield
    return response


def _describe(services: LogServices, topic: str, index: int) -> Steps[PartitionResponse]:
    try:
        check_name(topic)
        log = services.replicas.replica(topic, index).online_log
    except ApiError as error:
        return PartitionResponse(
            partition_index=index, error_code=error.code, error_message=error.message
        )
    rows = []
    # A copy of the ids: producers may be added and expire between the steps.
    for producer_id in list(log.producer_state.producers):
        producer = log.producer_state.saved(producer_id)
        if producer is not None:
            rows.append(
                ProducerState(
                    producer_id=producer_id,
                    producer_epoch=producer.producer_epoch,
                    last_sequence=producer.last_sequence,
                    last_timestamp=producer.timestamp,
                    coordinator_epoch=producer.coordinator_epoch,
                    current_txn_start_offset=producer.current_txn_first_offset,
                )
            )
        yield
    return PartitionResponse(partition_index=index, active_producers=rows)
