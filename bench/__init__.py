"""Benchmarks: scenarios and peers as data, measured in interleaved rounds (`python -m bench`)."""
