"""The work of the broker for one request, as counts: calls, system calls, turns of the loop.

Unlike seconds, counts are the same on every machine and in every run, so a test can hold them to a
budget (`budgets.toml`).

    python -m bench.counts                       # a table beside the budgets
    python -m bench.counts --where produce-one   # which functions, by count
    python -m bench.counts --strace --callgrind  # system calls, instructions of a broker process
"""
