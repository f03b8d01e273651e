"""Replication and fetch sessions as pure decisions, without I/O."""
