"""The simulated world: event loops in virtual time, network, disks, clocks, ZooKeeper, workers."""
