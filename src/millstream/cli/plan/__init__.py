"""``millstream plan``: the command, and the capacity arithmetic."""
