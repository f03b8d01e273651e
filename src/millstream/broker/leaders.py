"""Where leaders are, for clients that came to the wrong broker (KIP-951): they need not ask for metadata first."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.wire.node_endpoints import NodeEndpoint

if TYPE_CHECKING:
    from millstream.broker.app import Broker


def leader_nodes(broker: Broker, context: RequestContext, leaders: Collection[int]) -> list[NodeEndpoint]:
    """Those that are there, at their addresses for clients of this listener."""
    found = [broker.node(leader, context.connection.listener) for leader in sorted(leaders)]
    return [NodeEndpoint(*node) for node in found if node is not None]
