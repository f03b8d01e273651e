"""Randomness from the seed: the ids and the jitter of one simulated process."""

from __future__ import annotations

import random
import uuid


class SimEntropy:
    """Implements `Entropy`."""

    def __init__(self, seed: str) -> None:
        self.dice = random.Random(seed)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self.dice.getrandbits(128), version=4)

    def random(self) -> float:
        return self.dice.random()
