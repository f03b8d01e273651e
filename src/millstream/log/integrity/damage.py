"""What is known to be damaged: told once, kept for whoever asks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from millstream.core.types import TopicPartition
from millstream.log.errors import DamagedBatch
from millstream.log.rate_limited_logging import RateLimitedLog

logger = logging.getLogger("millstream.log.damage")

_MOST_PLACES: Final = 1000

REMEDY: Final = (
    "Records before it are served, and so are those after it; it is refused. Restore the file from a copy. "
    "If another broker has the partition, stop this one and remove the partition's directory: it is copied again"
)


class DamageRegister:
    """The damaged places of all logs, by partition and file."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.places: dict[tuple[TopicPartition, str, int], str] = {}
        self.count = 0  # of damaged places that were found, also those that are not kept
        self._rate_limited = RateLimitedLog(logger, clock)

    def note(self, tp: TopicPartition, damage: DamagedBatch) -> None:
        """May be called in a thread."""
        place = (tp, damage.path, damage.position)
        if place in self.places:
            return
        self.count += 1
        if len(self.places) < _MOST_PLACES:
            self.places[place] = damage.message
            logger.error("%s: %s. %s", tp, damage.message, REMEDY)
        else:
            self._rate_limited.log(logging.ERROR, "damage", f"{tp}: {damage.message}")

    def partitions(self) -> set[TopicPartition]:
        return {tp for tp, _path, _position in self.places}

    def forget(self, tp: TopicPartition) -> None:
        """The partition was deleted, or its log replaced."""
        for place in [place for place in self.places if place[0] == tp]:
            del self.places[place]
