"""Which replica a consumer should read from (KIP-392): one in its own rack, if there is one that has what it asks for."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.replication.leader import LeaderReplicas

# Under the name that Kafka gives it; without a selector, and with Kafka's other one, everybody reads from the leader.
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def preferred_replica(
    replicas: LeaderReplicas, leader: int, rack: str, racks: Mapping[int, str], offset: int
) -> int | None:
    """The most caught up follower in the rack; None where the leader is as good. Only replicas in sync count: a consumer that were
    sent to one that lags would come back to it again and again."""
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
