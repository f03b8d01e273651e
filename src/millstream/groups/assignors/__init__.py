"""Assignors that run on the broker."""
