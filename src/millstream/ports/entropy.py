"""Chance, as a port: ids that nobody else makes, and the jitter that keeps clients and timers apart."""

from __future__ import annotations

import random
import uuid
from typing import Protocol


class Entropy(Protocol):
    """Where chance comes from; the simulation draws it from its seed."""

    def uuid(self) -> uuid.UUID:
        """A random id (version 4)."""

    def random(self) -> float:
        """Evenly from 0 up to, but not, 1: for jitter, never for secrets."""


class SystemEntropy:
    """The operating system's."""

    def uuid(self) -> uuid.UUID:
        return uuid.uuid4()

    def random(self) -> float:
        return random.random()
