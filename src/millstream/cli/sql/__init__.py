"""``millstream sql``: the command, its prompt, and how results look."""
