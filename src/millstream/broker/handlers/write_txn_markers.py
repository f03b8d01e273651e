"""WriteTxnMarkers: a coordinator's outcome for partitions led here; admin tools end hanging transactions with it.

v2 says which transaction.version the producer follows (KIP-1228).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millstream.broker.context import RequestContext
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


async def handle(
    broker: Broker, context: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """Answered when every marker that could be written is durable."""
    return WriteTxnMarkersResponse(
        markers=await asyncio.gather(*(_one(broker, marker) for marker in request.markers))
    )


async def _one(broker: Broker, marker: WritableTxnMarker) -> WritableTxnMarkerResult:
    codes = await broker.coordinators.markers.write(_outcome(marker))
    return WritableTxnMarkerResult(
        producer_id=marker.producer_id,
        topics=[
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    WritableTxnMarkerPartitionResult(
                        partition_index=index,
                        error_code=codes[TopicPartition(topic.name, index)],
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in marker.topics
        ],
    )


def _outcome(marker: WritableTxnMarker) -> SendMarkers:
    return SendMarkers(
        transactional_id="",
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        commit=marker.transaction_result,
        partitions=tuple(
            TopicPartition(topic.name, index) for topic in marker.topics for index in topic.partition_indexes
        ),
        transaction_version=marker.transaction_version,
    )
