"""Producing: transactions, partitioners, and why a record is late."""
