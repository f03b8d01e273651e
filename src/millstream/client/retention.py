"""Which records the retention of a topic deletes at once, because of their old timestamps."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from millstream.client.errors import UnknownTopic

if TYPE_CHECKING:
    from millstream.client.admin.client import Admin

UNLIMITED = -1


class Retention:
    """Reads the settings of a topic once, when the first record for it is checked."""

    def __init__(self, admin: Admin, *, now_ms: int | None = None) -> None:
        self._admin = admin
        self._now_ms = int(time.time() * 1000) if now_ms is None else now_ms
        self._kept_ms: dict[str, int] = {}

    def kept_ms(self, topic: str) -> int:
        """Return how long a record is kept by its own timestamp.

        -1 if there is no limit, or if the topic uses the time of appending.
        """
        if topic not in self._kept_ms:
            self._kept_ms[topic] = self._read(topic)
        return self._kept_ms[topic]

    def deletes(self, topic: str, timestamp_ms: int) -> bool:
        """Return whether a record with this timestamp is already due for deletion.

        A record without a timestamp gets the time of sending.
        """
        kept_ms = self.kept_ms(topic)
        return kept_ms != UNLIMITED and timestamp_ms > 0 and timestamp_ms < self._now_ms - kept_ms

    def _read(self, topic: str) -> int:
        try:
            settings = {
                config.name: config.value for config in self._admin.configs.describe("topic", topic)
            }
        except UnknownTopic:
            return UNLIMITED
        deletes = "delete" in (settings.get("cleanup.policy") or "").split(",")
        appends_time = settings.get("message.timestamp.type") == "LogAppendTime"
        return (
            int(settings.get("retention.ms") or UNLIMITED)
            if deletes and not appends_time
            else UNLIMITED
        )
