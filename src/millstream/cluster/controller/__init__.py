"""The controller: election, its term, changes to topics and partitions, and the feed that brokers follow."""
