"""WriteTxnMarkers: a coordinator's outcome for partitions led here; admin tools end hanging transactions with it.

v2 says which transaction.version the producer follows (KIP-1228).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.context import RequestContext
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
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
    from millstream.broker.app import Broker


def handle(
    broker: Broker, context: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(markers=[_one(broker, marker) for marker in request.markers])


def _one(broker: Broker, marker: WritableTxnMarker) -> WritableTxnMarkerResult:
    return WritableTxnMarkerResult(
        producer_id=marker.producer_id,
        topics=[
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    WritableTxnMarkerPartitionResult(
                        partition_index=index,
                        error_code=_write(broker, marker, TopicPartition(topic.name, index)),
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in marker.topics
        ],
    )


def _write(broker: Broker, marker: WritableTxnMarker, tp: TopicPartition) -> ErrorCode:
    outcome = SendMarkers(
        transactional_id="",
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        commit=marker.transaction_result,
        partitions=(tp,),
        transaction_version=marker.transaction_version,
    )
    try:
        broker.coordinators.markers.append(tp, outcome)
    except ApiError as error:
        return error.code
    return ErrorCode.NONE
