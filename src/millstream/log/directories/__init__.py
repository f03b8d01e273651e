"""Data directories: locks, ids, checkpoints, file names, full disks, and moving a replica from one to another."""
