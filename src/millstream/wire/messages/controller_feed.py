"""ControllerFeed (key 30000): a broker follows the controller, and tells it how it is. Between our own brokers only.

The broker names how far it is, and gets what changed since, or the whole image in pages. The same request says that it is alive,
which of its replicas are offline or without room, and that it wants to stop; the answer says when it may. Many nodes come compressed: their paths and contents
are so alike that little is left of them, and the controller sends the same to all.
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
    # Of its registration; -1 before it has one.
    broker_epoch: int = int64("0+", default=-1)
    controller_epoch: int = int32("0+", default=-1)
    # The last change taken in, -1 for none.
    position: int = int64("0+", default=-1)
    # More of the snapshot that an earlier answer began.
    more_of_snapshot: bool = boolean("0+")
    max_wait_ms: int = int32("0+")
    wants_to_stop: bool = boolean("0+")
    offline_replicas: list[OfflineReplicas] = array(OfflineReplicas, "0+")
    # Some directory has failed: what was deleted may still be in it.
    directories_offline: bool = boolean("0+", tag=0)
    # Their directory has no room.
    full_replicas: list[OfflineReplicas] = array(OfflineReplicas, "0+", tag=1)


class FeedNode(Struct):
    path: str = string("0+")
    data: bytes | None = binary("0+", nullable="0+", default=None)
    version: int = int64("0+", default=-1)


class ControllerFeedResponse(Struct, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    controller_epoch: int = int32("0+")
    # What the broker has taken in with these nodes; of a snapshot, with its last page.
    position: int = int64("0+")
    # The first page of a snapshot: what was known before does not count.
    begins_snapshot: bool = boolean("0+")
    more_follows: bool = boolean("0+")
    nodes: list[FeedNode] = array(FeedNode, "0+")
    # Instead of them: a compressed FeedNodes.
    packed_nodes: bytes | None = binary("0+", nullable="0+", default=None)
    may_stop: bool = boolean("0+")


class FeedNodes(Struct, versions="0", flexible="0+"):
    nodes: list[FeedNode] = array(FeedNode, "0+")


# Below that it is not worth it.
PACKED_FROM_NODES = 50
_MAX_UNPACKED_BYTES = 256 << 20


def pack(answer: ControllerFeedResponse) -> ControllerFeedResponse:
    """The same answer, compressed where it has many nodes."""
    if len(answer.nodes) >= PACKED_FROM_NODES:
        answer.packed_nodes = zlib.compress(FeedNodes(nodes=answer.nodes).encode(0), 1)
        answer.nodes = []
    return answer


def nodes_of(answer: ControllerFeedResponse) -> Sequence[FeedNode]:
    """Its nodes, however they came."""
    if answer.packed_nodes is None:
        return answer.nodes
    unpacking = zlib.decompressobj()
    try:
        body = unpacking.decompress(answer.packed_nodes, _MAX_UNPACKED_BYTES)
    except zlib.error as error:
        raise DecodeError(f"nodes that cannot be unpacked: {error}") from None
    if not unpacking.eof:
        raise DecodeError("nodes that end too early, or never")
    return FeedNodes.decode(memoryview(body), 0)[0].nodes
