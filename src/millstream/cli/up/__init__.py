"""``millstream up``: the command, its status table, and requests to a running cluster."""
