"""A simulated world for tests. Only tests import it."""
