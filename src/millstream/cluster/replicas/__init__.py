"""The replicas on this broker: partitions, their roles and logs, fetchers, and the ISR."""
