"""Ports: files, network, clock, worker processes and coordination, each a Protocol with its real implementation."""
