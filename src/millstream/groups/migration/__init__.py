"""Migration between the protocols (KIP-848): conversion of live groups, and classic requests."""
