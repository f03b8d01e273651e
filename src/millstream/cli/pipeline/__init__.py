"""``millstream pipeline``: the command, the output of a run, and restarts of the driver."""
