"""All logs of a broker: creating, opening and deleting them, failures, and background work."""
