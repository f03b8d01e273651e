"""What coordinators and leaders ask of one another: markers for partitions led elsewhere, and whether records belong to a transaction.

Both are gathered by the broker they are for. Raises ApiError or OSError where it cannot be asked; the caller decides what that means.
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

# Longer than any session: a marker that the other side was slow to write must not come after its repetition elsewhere.
_TIMEOUT_S = 30.0

Codes = Mapping[TopicPartition, ErrorCode]


class Markers(NamedTuple):
    """An outcome for some of its partitions."""

    outcome: SendMarkers
    partitions: Sequence[TopicPartition]


class CoordinatorPeers:
    """The other brokers, and who of them leads what."""

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
            self._send_markers, name=lambda one: one.outcome.producer_id
        )
        self._joining: Batches[tuple[int, int], AddPartitionsToTxnTransaction, AddPartitionsToTxnResult] = (
            Batches(self._send_joining, name=lambda one: one.transactional_id)
        )

    def leader(self, tp: TopicPartition) -> int:
        """NO_LEADER where there is none now; raises ApiError where there is no such partition."""
        topic = self._image.topics.get(tp.topic)
        if topic is None or tp.partition not in topic.replicas:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        state = topic.states.get(tp.partition)
        return state.leader if state is not None else NO_LEADER

    async def write_markers(
        self, node: int, outcome: SendMarkers, partitions: Sequence[TopicPartition]
    ) -> Codes:
        """What became of each; NONE means that it is durable."""
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
            raise ConnectionError(f"broker {node} is not there")
        return endpoint

    async def _send_markers(self, node: int, batch: Sequence[Markers]) -> Mapping[Hashable, Codes]:
        endpoint = self._endpoint(node)
        request = WriteTxnMarkersRequest(markers=[_marker(one) for one in batch])
        answer: WriteTxnMarkersResponse = await self._peers.ask(
            "markers", endpoint.host, endpoint.port, request, timeout_s=_TIMEOUT_S
        )
        return {
            row.producer_id: {
                TopicPartition(topic.name, one.partition_index): ErrorCode.of(one.error_code)
                for topic in row.topics
                for one in topic.partitions
            }
            for row in answer.markers
        }

    async def _send_joining(
        self, to: tuple[int, int], batch: Sequence[AddPartitionsToTxnTransaction]
    ) -> Mapping[Hashable, AddPartitionsToTxnResult]:
        node, version = to
        endpoint = self._endpoint(node)
        answer: AddPartitionsToTxnResponse = await self._peers.ask(
            "transactions",
            endpoint.host,
            endpoint.port,
            AddPartitionsToTxnRequest(transactions=list(batch)),
            timeout_s=_TIMEOUT_S,
            version=version,
        )
        check(answer.error_code)
        return {result.transactional_id: result for result in answer.results_by_transaction}


def _marker(one: Markers) -> WritableTxnMarker:
    outcome = one.outcome
    topics: dict[str, WritableTxnMarkerTopic] = {}
    for tp in one.partitions:
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
