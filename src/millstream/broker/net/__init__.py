"""Connections: listeners, receive buffers, request order, dispatch to handlers, responses."""
