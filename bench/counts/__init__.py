"""What the broker does for one request, as counts: functions called, system calls, turns of the loop. Unlike seconds they are the same
on every machine and in every run, so a test can hold them to a budget (`budgets.toml`).

    python -m bench.counts                            # a table beside the budgets
    python -m bench.counts --where produce-one        # which functions, by count
    python -m bench.counts --strace --callgrind       # a real broker process: its system calls, its instructions
"""
