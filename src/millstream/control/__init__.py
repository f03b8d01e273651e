"""Cluster control without I/O: the cluster image, its znodes, and the plans that change it."""
