"""Benchmarks: scenarios and peers as data, measured side by side in one interleaved run (`python -m bench`)."""
