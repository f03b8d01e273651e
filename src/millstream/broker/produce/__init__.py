"""Produce beside its handler: transactions, the fast path, and rebuilding batches."""
