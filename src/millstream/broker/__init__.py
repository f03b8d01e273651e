"""The broker: connections, dispatch, handlers, and ``parts.py``, which builds all parts."""
