"""Servers on this machine as child processes: brokers, ZooKeeper, and clusters of them."""
