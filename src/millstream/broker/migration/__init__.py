"""Migration of the metadata of a single broker to ZooKeeper."""
