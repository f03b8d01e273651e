"""Clusters on a real ZooKeeper for the stories; see ``support/cluster_fixtures.py``."""

from support.cluster_fixtures import in_process_cluster, process_cluster, shared_cluster, zookeeper

__all__ = ["in_process_cluster", "process_cluster", "shared_cluster", "zookeeper"]
