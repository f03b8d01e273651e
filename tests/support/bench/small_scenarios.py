"""Scenarios cut down to what a test can wait for."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bench.model import Scenario, load_scenarios


def tiny(name: str, amounts: Mapping[str, Any]) -> Scenario:
    """The scenario of this name, one round, with those of the amounts that it has."""
    (found,) = [s for s in load_scenarios() if s.name == name]
    amount = dict(found.amount) | {k: v for k, v in amounts.items() if k in found.amount}
    return replace(found, amount=amount, rounds=1)
