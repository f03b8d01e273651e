"""Cluster control, decided purely: the image of the cluster, its znodes, and the plans that change it."""
