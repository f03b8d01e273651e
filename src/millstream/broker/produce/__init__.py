"""Produce beside its handler: the fast path for repeated requests, and rebuilding batches."""
