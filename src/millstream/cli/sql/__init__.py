"""``millstream sql``: the command, its prompt, and the output of results."""
