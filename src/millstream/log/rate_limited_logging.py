"""Rate-limits repeated log messages.

A full disk rejects every append, and every waiter retries several times a second. The messages
about it must not fill the disk of the log as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

FIRST_QUIET_MS = 10_000
LONGEST_QUIET_MS = 600_000


def loop_time_ms() -> int:
    """Return the time of the running event loop, for code that runs on it."""
    return int(asyncio.get_running_loop().time() * 1000)


@dataclass
class _Key:
    """The state of the messages with one key."""

    quiet_ms: int
    quiet_until_ms: int
    suppressed: int = 0


class RateLimitedLog:
    """Logs the first message of a key at once, then ever more rarely while messages keep coming.

    The pause grows from ten seconds to ten minutes. Each line says how many messages it stands for.
    After a whole pause without any, the next message counts as the first one again.
    """

    def __init__(self, logger: logging.Logger, now_ms: Callable[[], int] = loop_time_ms) -> None:
        self._logger = logger
        self._now_ms = now_ms
        self._keys: dict[str, _Key] = {}

    def log(self, level: int, key: str, message: str) -> None:
        now_ms, state = self._now_ms(), self._keys.get(key)
        if state is None or now_ms >= state.quiet_until_ms + state.quiet_ms:
            self._keys[key] = _Key(FIRST_QUIET_MS, now_ms + FIRST_QUIET_MS)
            more = state.suppressed if state is not None else 0
        elif now_ms < state.quiet_until_ms:
            state.suppressed += 1
            return
        else:
            more, state.suppressed = state.suppressed, 0
            state.quiet_ms = min(2 * state.quiet_ms, LONGEST_QUIET_MS)
            state.quiet_until_ms = now_ms + state.quiet_ms
        suffix = f" (and {more:,} more like it since the last message)" if more else ""
        self._logger.log(level, "%s%s", message, suffix)
