"""The group coordinator: pure shards over the partitions of ``__consumer_offsets``.

It serves classic groups, consumer groups (KIP-848) and committed offsets.
"""
