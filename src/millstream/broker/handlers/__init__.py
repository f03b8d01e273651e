"""One file per API: the handler of its requests.

Each file opens with the request versions that it treats differently, and with its differences from
Apache Kafka. Two things hold for all of them. Versions that only change the encoding are handled in
``wire/messages``. There are no client quotas, so ``throttle_time_ms`` is always 0, and versions
that only announce throttling errors change nothing.
"""
