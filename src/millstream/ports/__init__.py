"""Ports: files, network, clock, workers, coordination; each a Protocol and its implementation."""
