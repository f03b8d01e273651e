"""The replica that a consumer should read from (KIP-392).

A replica in the consumer's rack is preferred if it has the requested offset.
"""

from __future__ import annotations

from collections.abc import Mapping

from millstream.replication.leader import LeaderReplicas

# Kafka's class name. Without a selector, and with Kafka's other selector, consumers read from the
# leader.
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def preferred_replica(
    replicas: LeaderReplicas, leader: int, rack: str, racks: Mapping[int, str], offset: int
) -> int | None:
    """Return the most caught-up follower in the rack, or None for the leader.

    Only in-sync replicas count. A consumer would be sent back and forth between the leader and
    a lagging replica.
    """
    if not rack or racks.get(leader) == rack:
        return None
    near = [
        (progress.log_end_offset, progress.last_caught_up_ms, node)
        for node, progress in replicas.followers.items()
        if node in replicas.isr
        and racks.get(node) == rack
        and progress.log_start_offset <= offset <= progress.log_end_offset
    ]
    return max(near)[2] if near else None
