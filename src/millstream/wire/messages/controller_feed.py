"""ControllerFeed (key 30000): a broker follows the controller and reports its state.

It is used between Millstream brokers only. The broker sends its position, and gets the changes
since then, or a snapshot of the whole image in pages. The request is also a heartbeat. It lists the
replicas that are offline or out of space, and asks for a controlled shutdown; the response permits
it. Many nodes are sent compressed: their paths and contents are so similar that they compress well,
and the controller sends the same bytes to all brokers.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from millstream.wire.schema import (
    DecodeError,
    Struct,
    array,
    binary,
    boolean,
    int16,
    int32,
    int64,
    string,
    uuid,
)


class OfflineReplicas(Struct):
    topic_id: bytes = uuid("0+")
    partitions: list[int] = array("int32", "0+")


class ControllerFeedRequest(Struct, versions="0", flexible="0+"):
    broker_id: int = int32("0+")
    # The epoch of its registration; -1 before that.
    broker_epoch: int = int64("0+", default=-1)
    controller_epoch: int = int32("0+", default=-1)
    # The last applied change; -1 for none.
    position: int = int64("0+", default=-1)
    # Request the next page of a snapshot that an earlier response began.
    more_of_snapshot: bool = boolean("0+")
    max_wait_ms: int = int32("0+")
    wants_to_stop: bool = boolean("0+")
    offline_replicas: list[OfflineReplicas] = array(OfflineReplicas, "0+")
    # A log directory has failed; it may still hold deleted replicas.
    directories_offline: bool = boolean("0+", tag=0)
    # Replicas in a full log directory.
    full_replicas: list[OfflineReplicas] = array(OfflineReplicas, "0+", tag=1)


class FeedNode(Struct):
    path: str = string("0+")
    data: bytes | None = binary("0+", nullable="0+", default=None)
    version: int = int64("0+", default=-1)


class ControllerFeedResponse(Struct, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    controller_epoch: int = int32("0+")
    # The position of the broker after these nodes; in a snapshot, after its last page.
    position: int = int64("0+")
    # The first page of a snapshot, which replaces the previous state.
    begins_snapshot: bool = boolean("0+")
    more_follows: bool = boolean("0+")
    nodes: list[FeedNode] = array(FeedNode, "0+")
    # Instead of `nodes`: a compressed FeedNodes.
    packed_nodes: bytes | None = binary("0+", nullable="0+", default=None)
    may_stop: bool = boolean("0+")


class FeedNodes(Struct, versions="0", flexible="0+"):
    nodes: list[FeedNode] = array(FeedNode, "0+")


# Fewer nodes are not worth compressing.
PACKED_FROM_NODES = 50
_MAX_UNPACKED_BYTES = 256 << 20


def pack(response: ControllerFeedResponse) -> ControllerFeedResponse:
    """Compress the nodes of a response in place if there are many, and return it."""
    if len(response.nodes) >= PACKED_FROM_NODES:
        response.packed_nodes = zlib.compress(FeedNodes(nodes=response.nodes).encode(0), 1)
        response.nodes = []
    return response


def nodes_of(response: ControllerFeedResponse) -> Sequence[FeedNode]:
    """Return the nodes of a response, decompressed if necessary."""
    if response.packed_nodes is None:
        return response.nodes
    unpacking = zlib.decompressobj()
    try:
        body = unpacking.decompress(response.packed_nodes, _MAX_UNPACKED_BYTES)
    except zlib.error as error:
        raise DecodeError(f"the nodes cannot be decompressed: {error}") from None
    if not unpacking.eof:
        raise DecodeError("the compressed nodes are truncated or too large")
    return FeedNodes.decode(memoryview(body), 0)[0].nodes
