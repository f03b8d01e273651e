"""Load generators. Each is a program of its own (`python -m bench.load.<name> <job as JSON>`), so
that the work of the client never shares an interpreter with the broker or with the one who
measures.
"""
