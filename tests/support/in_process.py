"""A broker inside the test's own process, on a thread of its own: for faults that cannot be had
from outside.

The one that users get from ``millstream.testing``; its disk may be a simulated one.
"""

from __future__ import annotations

from millstream.testing.thread_broker import ThreadBroker


class InProcessBroker(ThreadBroker):
    """``run`` looks at it, or does something to it, on its loop. Make its disk fail before it dies,
    if nothing of the end is to reach it.
    """
