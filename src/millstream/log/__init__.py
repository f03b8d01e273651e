"""The partition log: Kafka's files on disk, appending, reading, recovery, retention and compaction."""
