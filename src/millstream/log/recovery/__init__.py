"""Opening a log: after a clean shutdown, or after a crash with a check of every batch."""
