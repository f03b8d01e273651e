"""Segments: one .log file with its indexes each, and the list of them that makes a log."""
