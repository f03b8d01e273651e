"""Load generators.

Each is a separate program (`python -m bench.load.<name> <job as JSON>`), so that the client never
shares an interpreter with the broker or with the measuring process.
"""
