"""Real brokers and a real ZooKeeper under fire, judged by the checks of the simulation (``make
chaos``).
"""
