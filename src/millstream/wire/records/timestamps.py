"""The reason for rejecting a timestamp.

Headers are checked before an append, and records when a batch is rebuilt.
"""

from __future__ import annotations


def out_of_range(timestamp: int, now_ms: int, max_ms: int | None) -> str:
    """Return why a timestamp is rejected that is more than ``max_ms`` away from ``now_ms``."""
    setting, side = ("after", "ahead of") if timestamp > now_ms else ("before", "behind")
    return (
        f"timestamp {timestamp} is more than message.timestamp.{setting}.max.ms ({max_ms})"
        f" {side} the broker's clock ({now_ms})"
    )
