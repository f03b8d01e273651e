"""A pipeline at work: supervisor, writing of batches, progress, failures, locks, state file."""
