"""The results of a run: readings per scenario, peer and round, stored as JSON.

They are summarised as medians, ratios and spreads.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.measures import Reading
from bench.model import Metric, Scenario, Target


@dataclass(frozen=True, slots=True)
class Summary:
    """The figure that counts, and the range over the rounds."""

    value: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """Half the range relative to the value."""
        return (self.high - self.low) / 2 / self.value if self.value else 0.0


def summarise(values: Sequence[float], metric: Metric) -> Summary:
    chosen = median(values)
    if metric.worst:
        chosen = max(values) if metric.better == "lower" else min(values)
    return Summary(chosen, min(values), max(values))


@dataclass(slots=True)
class Outcome:
    """One scenario: readings by peer in the order of rounds, and why a peer has none."""

    readings: dict[str, list[Reading]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    def values(self, peer: str, metric: str) -> list[float]:
        return [r.values[metric] for r in self.readings.get(peer, []) if metric in r.values]

    def summary(self, peer: str, metric: Metric) -> Summary | None:
        values = self.values(peer, metric.name)
        return summarise(values, metric) if values else None

    def ratio(self, peer: str, versus: str, metric: Metric) -> Summary | None:
        """Compare round by round, so that a machine that slows down affects both sides."""
        return _ratios(self.readings.get(peer, ()), self.readings.get(versus, ()), metric)

    def compared(self, peer: str, other: "Outcome", metric: Metric) -> Summary | None:
        """Compare with the same peer in another scenario of the run, round by round."""
        return _ratios(self.readings.get(peer, ()), other.readings.get(peer, ()), metric)

    def rounds(self) -> int:
        """Return the number of rounds of the peer that has most."""
        return max(map(len, self.readings.values()), default=0)


def _ratios(mine: Iterable[Reading], theirs: Iterable[Reading], metric: Metric) -> Summary | None:
    """Return the ratios of rounds in which both have a figure."""
    name = metric.name
    ratios = [
        a.values[name] / b.values[name]
        for a, b in zip(mine, theirs, strict=False)
        if name in a.values and b.values.get(name, 0) > 0
    ]
    return summarise(ratios, metric) if ratios else None


@dataclass(slots=True)
class Run:
    facts: Mapping[str, Any]
    peers: Mapping[str, str]  # name -> version
    missing: Mapping[str, str]
    rounds: int
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    seconds: float = 0.0
    # Share of the cores that other programs used before each measurement.
    busy: list[float] = field(default_factory=list)
    parts: dict[str, int] = field(
        default_factory=dict
    )  # scenario -> which of several runs it is from

    def achieved(self, scenario: Scenario, target: Target, metric: Metric) -> float | None:
        """Return the subject's value for a target, or None if it was not measured."""
        mine, subject = self.outcomes[scenario.name], scenario.subject
        if target.versus:
            summary = mine.ratio(subject, target.versus, metric)
        elif target.of:
            summary = mine.compared(subject, self.outcomes.get(target.of, Outcome()), metric)
        else:
            summary = mine.summary(subject, metric)
        return summary.value if summary else None

    def in_one_run(self, scenario: Scenario, target: Target) -> bool:
        """Return whether a target compares figures of one run; a page may combine several."""
        if target.of not in self.outcomes:
            return True
        return self.parts.get(scenario.name) == self.parts.get(target.of)

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        return self.save(folder / f"{time.strftime('%Y%m%d-%H%M%S')}.json")

    def save(self, path: Path) -> Path:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        return path


def read_run(path: Path) -> Run:
    table = json.loads(path.read_text(encoding="utf-8"))
    outcomes = {
        name: Outcome(
            {
                peer: [Reading(**r) for r in readings]
                for peer, readings in outcome["readings"].items()
            },
            outcome["absent"],
        )
        for name, outcome in table.pop("outcomes").items()
    }
    return Run(**table, outcomes=outcomes)
