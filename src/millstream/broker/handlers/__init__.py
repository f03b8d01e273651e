"""One file per API: what the broker does when it is called."""
