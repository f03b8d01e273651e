"""The same ZooKeeper and cluster processes as in the stories of clusters."""

from support.cluster_fixtures import process_cluster, zookeeper

__all__ = ["process_cluster", "zookeeper"]
