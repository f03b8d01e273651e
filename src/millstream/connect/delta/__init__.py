"""Delta tables as targets of flows."""
