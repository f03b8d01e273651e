"""Replicas on this broker: partitions, their manager, follower fetches, ISR changes, replication throttles."""
