"""Consumer groups (KIP-848): heartbeats, members, reconciliation, description."""
