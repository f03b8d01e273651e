"""Brokers, ZooKeeper servers and clusters on this machine, as child processes."""
