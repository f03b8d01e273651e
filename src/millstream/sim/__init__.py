"""A simulated world for tests: disk, and later clock, network and coordination. Only tests import it."""
