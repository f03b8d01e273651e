"""Which records the retention of a topic takes at once, because the times that they carry are older
than it keeps.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from millstream.client.errors import UnknownTopic

if TYPE_CHECKING:
    from millstream.client.admin.client import Admin

KEPT = -1


class Retention:
    """Asks for the settings of a topic once, when the first record for it is looked at."""

    def __init__(self, admin: Admin, *, now_ms: int | None = None) -> None:
        self._admin = admin
        self._now_ms = int(time.time() * 1000) if now_ms is None else now_ms
        self._kept_ms: dict[str, int] = {}

    def kept_ms(self, topic: str) -> int:
        """For how long a record with the time of its producer stays; -1: for ever, or as long as
        any other.
        """
        if topic not in self._kept_ms:
            self._kept_ms[topic] = self._asked(topic)
        return self._kept_ms[topic]

    def takes(self, topic: str, timestamp_ms: int) -> bool:
        """Whether a record of this time is already due for deletion. One without a time gets that
        of its arrival.
        """
        kept_ms = self.kept_ms(topic)
        return kept_ms != KEPT and timestamp_ms > 0 and timestamp_ms < self._now_ms - kept_ms

    def _asked(self, topic: str) -> int:
        try:
            found = {one.name: one.value for one in self._admin.configs.describe("topic", topic)}
        except UnknownTopic:
            return KEPT
        deletes = "delete" in (found.get("cleanup.policy") or "").split(",")
        stamps = found.get("message.timestamp.type") == "LogAppendTime"
        return int(found.get("retention.ms") or KEPT) if deletes and not stamps else KEPT
