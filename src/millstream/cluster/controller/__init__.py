"""The controller: its election, its term, its changes, and the feed that publishes them."""
