"""How background work waits for the disk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

Blocking = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a call that waits for the disk, in a thread, and returns when it is done."""
