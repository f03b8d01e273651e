"""Committed offsets: commit, fetch, delete, expiry."""
