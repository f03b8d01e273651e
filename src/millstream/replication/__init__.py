"""Replication and reading, decided purely: fetch sessions; the leader's and follower's state come with the cluster."""
