"""What goes wrong a thousand times a second is told now and then: a full disk refuses every append, and must not fill itself up
with messages about it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from millstream.log.errors import StorageError

logger = logging.getLogger(__name__)

QUIET_MS = 10_000


class Complaints:
    """Logs the first failure of a directory at once, then one in so many seconds, with how many there were in between."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._until_ms: dict[str, int] = {}
        self._untold: dict[str, int] = {}

    def tell(self, error: StorageError) -> None:
        now_ms, directory = self._now_ms(), error.directory
        if now_ms < self._until_ms.get(directory, now_ms):
            self._untold[directory] = self._untold.get(directory, 0) + 1
            return
        self._until_ms[directory] = now_ms + QUIET_MS
        more = self._untold.pop(directory, 0)
        logger.error(
            "%s%s", error.message, f" (and {more:,} more like it since the last message)" if more else ""
        )
