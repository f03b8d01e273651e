"""Compaction: which log is cleaned next, the child process that does it, and the swap of its result."""
