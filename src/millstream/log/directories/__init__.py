"""Data directories: locks, ids, checkpoints, file names, full disks, relocation of replicas."""
