"""Producers of a partition: sequences, open transactions, snapshots of both, and how they are rebuilt."""
