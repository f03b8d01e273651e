"""Coordinators at work: the host of shards, timers, group and transaction drivers, markers, internal topics."""
