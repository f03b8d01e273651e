"""Fetch beside its handler: fetches of thousands of partitions, and down-conversion for old clients."""
