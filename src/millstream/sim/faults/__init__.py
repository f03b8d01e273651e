"""The faults that a nemesis injects, by the thing they hit, and operators who act at bad times."""
