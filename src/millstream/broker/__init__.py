"""The broker: connections, dispatch, handlers, and the composition root that puts all parts together."""
