"""The same ZooKeeper and cluster processes as in ``tests/cluster``."""

from support.cluster_fixtures import process_cluster, zookeeper

__all__ = ["process_cluster", "zookeeper"]
