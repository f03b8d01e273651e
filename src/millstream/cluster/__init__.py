"""Drivers: they carry out what the pure layers decide, with logs, coordination and timers."""
