"""The randomness port: unique ids, and jitter that keeps clients and timers apart."""

from __future__ import annotations

import random
import uuid
from typing import Protocol


class Entropy(Protocol):
    """A source of randomness. The simulation derives it from its seed."""

    def uuid(self) -> uuid.UUID:
        """A random id (version 4)."""

    def random(self) -> float:
        """Return a uniform number in [0, 1): for jitter, never for secrets."""


class SystemEntropy:
    """Randomness of the operating system."""

    def uuid(self) -> uuid.UUID:
        return uuid.uuid4()

    def random(self) -> float:
        return random.random()
