"""The drivers of a cluster: they perform the decisions of the pure packages.

They connect them with logs, the coordination service, other brokers and timers.
"""
