"""``millstream pipeline``: the command, how a run is shown, and restarts of the driver."""
