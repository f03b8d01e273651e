"""``millstream perf``: the command, its load processes, and its plot."""
