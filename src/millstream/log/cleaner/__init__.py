"""Compaction: the selection of a log, the child process that cleans it, and the swap."""
