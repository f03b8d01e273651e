"""Simulated clients: producers, consumers, groups, operators, and the workload made of them."""
