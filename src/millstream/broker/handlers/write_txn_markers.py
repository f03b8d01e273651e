"""WriteTxnMarkers: write a coordinator's decision to partitions that this broker leads.

Sent by coordinators, and by admin tools to abort hanging transactions. The response comes when all
markers that could be written are durable.

* v2: the transaction.version of the producer. From 2 on, the marker's epoch must be higher than
  that of the records (KIP-1228).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition
from millstream.ports.turns import Steps, in_slices
from millstream.transactions.effects import SendMarkers
from millstream.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from millstream.broker.services import TransactionServices


async def handle(
    services: TransactionServices, context: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    outcomes = await in_slices(_outcomes(request))
    codes = await services.markers.write(outcomes)
    return await in_slices(_response(request, codes))


def _outcomes(request: WriteTxnMarkersRequest) -> Steps[list[SendMarkers]]:
    outcomes = []
    for marker in request.markers:
        partitions: dict[TopicPartition, None] = {}
        for topic in marker.topics:
            for index in topic.partition_indexes:
                partitions[TopicPartition(topic.name, index)] = None
                yield
        outcomes.append(_outcome(marker, tuple(partitions)))
        yield
    return outcomes


def _response(
    request: WriteTxnMarkersRequest, codes: list[dict[TopicPartition, ErrorCode]]
) -> Steps[WriteTxnMarkersResponse]:
    response = WriteTxnMarkersResponse()
    for marker, written in zip(request.markers, codes, strict=True):
        result = WritableTxnMarkerResult(producer_id=marker.producer_id)
        response.markers.append(result)
        for topic in marker.topics:
            rows: list[WritableTxnMarkerPartitionResult] = []
            result.topics.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=rows))
            for index in topic.partition_indexes:
                code = written[TopicPartition(topic.name, index)]
                rows.append(
                    WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
                )
                yield
    return response


def _outcome(marker: WritableTxnMarker, partitions: tuple[TopicPartition, ...]) -> SendMarkers:
    return SendMarkers(
        transactional_id="",
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        commit=marker.transaction_result,
        partitions=partitions,
        transaction_version=marker.transaction_version,
    )
