"""``millstream plan``: the command, and the arithmetic of capacity."""
