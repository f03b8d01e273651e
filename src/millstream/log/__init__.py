"""The partition log: Kafka's files, appending, reading, recovery, retention and compaction."""
