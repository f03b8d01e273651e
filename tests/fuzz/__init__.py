"""Mutated frames of every API and version against a real broker: ``make fuzz``."""
