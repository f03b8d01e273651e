"""Producers of a partition: sequences, open transactions, snapshots, and their recovery."""
