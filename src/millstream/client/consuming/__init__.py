"""Consuming: group membership, start positions, topic patterns, worker pools, threads."""
