"""Fetch beside its handler: reading, waiting, followers, old clients, thousands of partitions."""
