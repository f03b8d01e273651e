"""Requests between coordinators and leaders: markers, and verification of transactions.

Both are batched by destination. They raise ApiError or OSError if the broker cannot be reached; the
caller decides what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

from millstream.cluster.peers import Peers, check
from millstream.cluster.request_batching import Batches
from millstream.control.image import ClusterImage
from millstream.control.znodes import BrokerEndpoint
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import NO_LEADER, TopicPartition
from millstream.transactions.effects import SendMarkers
from millstream.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTransaction,
)
from millstream.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

# Longer than any session: a marker that a slow broker writes late must not follow its repetition by
# another broker.
_TIMEOUT_S = 30.0

Codes = Mapping[TopicPartition, ErrorCode]


class Markers(NamedTuple):
    """An outcome for some of its partitions."""

    outcome: SendMarkers
    partitions: Sequence[TopicPartition]


class CoordinatorPeers:
    """The other brokers, and the leader of each partition."""

    def __init__(
        self,
        node_id: int,
        image: ClusterImage,
        peers: Peers,
        address: Callable[[int], BrokerEndpoint | None],
    ) -> None:
        self.node_id = node_id
        self._image = image
        self._peers = peers
        self._address = address
        self._markers: Batches[int, Markers, Codes] = Batches(
            self._send_markers, name=lambda markers: markers.outcome.producer_id
        )
        self._joining: Batches[
            tuple[int, int], AddPartitionsToTxnTransaction, AddPartitionsToTxnResult
        ] = Batches(self._send_joining, name=lambda transaction: transaction.transactional_id)

    def leader(self, tp: TopicPartition) -> int:
        """Return the leader of a partition, or NO_LEADER; raise ApiError if it does not exist."""
        topic = self._image.topics.get(tp.topic)
        if topic is None or tp.partition not in topic.replicas:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        state = topic.states.get(tp.partition)
        return state.leader if state is not None else NO_LEADER

    async def write_markers(
        self, node: int, outcome: SendMarkers, partitions: Sequence[TopicPartition]
    ) -> Codes:
        """Return the code of each partition; NONE means that its marker is durable."""
        return await self._markers.ask(node, Markers(outcome, partitions))

    async def add_partitions(
        self, node: int, version: int, transaction: AddPartitionsToTxnTransaction
    ) -> AddPartitionsToTxnResult:
        return await self._joining.ask((node, version), transaction)

    def close(self) -> None:
        self._markers.close()
        self._joining.close()

    def _endpoint(self, node: int) -> BrokerEndpoint:
        endpoint = self._address(node)
        if endpoint is None:
            raise ConnectionError(f"broker {node} is not live")
        return endpoint

    async def _send_markers(self, node: int, batch: Sequence[Markers]) -> Mapping[Hashable, Codes]:
        endpoint = self._endpoint(node)
        request = WriteTxnMarkersRequest(markers=[_marker(markers) for markers in batch])
        response: WriteTxnMarkersResponse = await self._peers.ask(
            "markers", endpoint.host, endpoint.port, request, timeout_s=_TIMEOUT_S
        )
        return {
            row.producer_id: {
                TopicPartition(topic.name, partition.partition_index): ErrorCode.of(
                    partition.error_code
                )
                for topic in row.topics
                for partition in topic.partitions
            }
            for row in response.markers
        }

    async def _send_joining(
        self, to: tuple[int, int], batch: Sequence[AddPartitionsToTxnTransaction]
    ) -> Mapping[Hashable, AddPartitionsToTxnResult]:
        node, version = to
        endpoint = self._endpoint(node)
        response: AddPartitionsToTxnResponse = await self._peers.ask(
            "transactions",
            endpoint.host,
            endpoint.port,
            AddPartitionsToTxnRequest(transactions=list(batch)),
            timeout_s=_TIMEOUT_S,
            version=version,
        )
        check(response.error_code)
        return {result.transactional_id: result for result in response.results_by_transaction}


def _marker(markers: Markers) -> WritableTxnMarker:
    outcome = markers.outcome
    topics: dict[str, WritableTxnMarkerTopic] = {}
    for tp in markers.partitions:
        topics.setdefault(tp.topic, WritableTxnMarkerTopic(name=tp.topic)).partition_indexes.append(
            tp.partition
        )
    return WritableTxnMarker(
        producer_id=outcome.producer_id,
        producer_epoch=outcome.producer_epoch,
        transaction_result=outcome.commit,
        topics=list(topics.values()),
        coordinator_epoch=outcome.coordinator_epoch,
        transaction_version=outcome.transaction_version,
    )
