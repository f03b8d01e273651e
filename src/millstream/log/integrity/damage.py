"""The damaged batches that were found. Each is logged once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from millstream.core.types import TopicPartition
from millstream.log.errors import DamagedBatch
from millstream.log.rate_limited_logging import RateLimitedLog

logger = logging.getLogger("millstream.log.damage")

_MAX_BATCHES: Final = 1000

REMEDY: Final = (
    "Records before and after it are served, but not the batch itself. Restore the file from a"
    " copy. If another broker has the partition, stop this one and remove the partition's directory:"
    " it is copied again"
)


class DamageRegister:
    """The damaged batches of all logs, by partition, file and position."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.batches: dict[tuple[TopicPartition, str, int], str] = {}
        self.count = 0  # all damaged batches, including those not kept
        self._rate_limited = RateLimitedLog(logger, clock)

    def note(self, tp: TopicPartition, damage: DamagedBatch) -> None:
        """Record a damaged batch. Thread-safe."""
        key = (tp, damage.path, damage.position)
        if key in self.batches:
            return
        self.count += 1
        if len(self.batches) < _MAX_BATCHES:
            self.batches[key] = damage.message
            logger.error("%s: %s. %s", tp, damage.message, REMEDY)
        else:
            self._rate_limited.log(logging.ERROR, "damage", f"{tp}: {damage.message}")

    def partitions(self) -> set[TopicPartition]:
        return {tp for tp, _path, _position in self.batches}

    def forget(self, tp: TopicPartition) -> None:
        """Drop the damage of a partition that was deleted, or whose log was replaced."""
        for key in [key for key in self.batches if key[0] == tp]:
            del self.batches[key]
