"""``millstream up``: the command, its status table, and removing a broker."""
