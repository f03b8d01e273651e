"""Coordinators: hosts of group and transaction shards, timers, markers, and internal topics."""
