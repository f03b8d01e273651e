"""The declarations of a benchmark: scenario, peer, metric and target, read from TOML.

A scenario differs from the baseline in at most one factor (`[factor]`). The amount of work
(`[amount]`) is not a factor, and neither is the operation of a stall scenario (`[activity]`), which
is not compared. A peer may have factors too: a cluster is always measured with acks=all. To add a
scenario or a peer, add a file.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SUBJECT = "millstream"


class BadDeclaration(Exception):
    """A scenario or peer file that is invalid, with the reason."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of a measure. With `worst`, the worst round counts and not the median."""

    name: str
    label: str
    unit: str
    better: str  # "higher" or "lower"
    worst: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """A goal for a metric.

    It is absolute, a ratio to a peer (`versus`), or a ratio to another scenario of the subject
    (`of`).
    """

    metric: str
    versus: str | None = None
    of: str | None = None
    at_least: float | None = None
    at_most: float | None = None

    def met(self, value: float) -> bool:
        return not (
            (self.at_least is not None and value < self.at_least)
            or (self.at_most is not None and value > self.at_most)
        )

    def verdict(self, value: float | None) -> str:
        """Return whether the target is met, or the share of the limit by which it is missed."""
        if value is None:
            return "not measured"
        limit = self.at_least if self.at_least is not None else self.at_most
        return "met" if self.met(value) else f"MISSED by {abs(value / (limit or 1.0) - 1):.0%}"

    def text(self, unit: str) -> str:
        sign, limit = ("≥", self.at_least) if self.at_least is not None else ("≤", self.at_most)
        if other := self.versus or self.of:
            return f"{sign} {limit:g}x {other}"
        return f"{sign} {limit:g} {unit}"


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    title: str
    measure: str
    load: Mapping[str, Any]  # the baseline with the changed factor or the values of the activity
    factor: Mapping[str, Any] = field(default_factory=dict)
    activity: Mapping[str, Any] = field(
        default_factory=dict
    )  # its `name`, and any values of the baseline
    amount: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)  # broker settings, by Kafka's names
    topic_settings: Mapping[str, Any] = field(default_factory=dict)
    targets: tuple[Target, ...] = ()
    rounds: int | None = None
    peers: tuple[str, ...] = ()  # its only peers; empty: all that run everywhere
    subject: str = SUBJECT  # the peer whose figures the targets are about
    requires: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # as for a peer
    default: bool = True  # False: only by name or with --all
    note: str = ""

    def concerns(self, peer: "Peer") -> bool:
        if peer.scenarios:
            return self.name in peer.scenarios
        return peer.name in self.peers if self.peers else peer.everywhere

    def on(self, peer: "Peer") -> "Scenario":
        """Return the scenario with the factors of this peer."""
        return replace(self, load=dict(self.load) | dict(peer.load)) if peer.load else self


@dataclass(frozen=True, slots=True)
class Peer:
    """How to start, detect as ready and stop a system; `cannot` maps measures to reasons."""

    name: str
    title: str
    command: tuple[str, ...]
    # Pattern with a group `address` on stdout; None: the first connection to {port}.
    ready: str | None = None
    # The arguments for one broker setting, with {name} and {value}.
    setting: tuple[str, ...] = ()
    prepare: tuple[tuple[str, ...], ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)  # written below {work} before `prepare`
    environment: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)  # for {names} in commands and files
    requires: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # programs, modules, fetched
    version: tuple[str, ...] = ()
    topics: str = "admin"  # or "stdin"
    stores: bool = True  # stores messages in files
    timed: bool = False  # an asyncio program that bench.timed_loop can wrap
    default: bool = True
    everywhere: bool = True  # False: only in scenarios that name it
    protocol: str = "kafka"  # or a module of bench.streams
    scenarios: tuple[str, ...] = ()  # its only scenarios; empty: all that it supports
    warm_up_requests: int = 0  # of each kind, for systems with a just-in-time compiler
    replication: int = 1  # replication factor of its topics
    load: Mapping[str, Any] = field(default_factory=dict)  # factors of the peer
    start_timeout_s: float = 30.0
    stop_timeout_s: float = 20.0
    cannot: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def load_scenarios(
    folder: Path = HERE / "scenarios", baseline: Path = HERE / "baseline.toml"
) -> list[Scenario]:
    base = _read(baseline)["load"]
    scenarios = [_scenario(path, base) for path in folder.glob("*.toml")]
    return [
        scenario
        for _, scenario in sorted(scenarios, key=lambda row: (row[0], _natural(row[1].name)))
    ]


def _natural(name: str) -> str:
    """Return a key that sorts 8 before 64."""
    return re.sub(r"\d+", lambda digits: digits[0].zfill(9), name)


def _scenario(path: Path, base: Mapping[str, Any]) -> tuple[int, Scenario]:
    table = _read(path)
    order, factor = table.pop("order", 100), table.get("factor", {})
    changed = factor | {
        name: value for name, value in table.get("activity", {}).items() if name != "name"
    }
    if len(factor) > 1:
        raise BadDeclaration(
            f"{path.name}: {len(factor)} factors differ from the baseline, at most one may"
        )
    if unknown := set(changed) - set(base):
        raise BadDeclaration(
            f"{path.name}: the baseline has no factor {', '.join(sorted(unknown))}"
        )
    table["peers"] = tuple(table.get("peers", ()))
    table["requires"] = _requires(table)
    table["targets"] = tuple(_checked(Target, path, row) for row in table.pop("target", []))
    return order, _checked(
        Scenario, path, table | {"name": path.stem, "load": dict(base) | changed}
    )


def load_peers(folder: Path = HERE / "peers") -> dict[str, Peer]:
    return {path.stem: _peer(path) for path in sorted(folder.glob("*.toml"))}


def _peer(path: Path) -> Peer:
    """Read a peer. A file may begin with `like = "other"` and contain only the differences."""
    table = _read(path)
    if other := table.pop("like", None):
        table = _read(path.with_name(f"{other}.toml")) | table
    table["name"] = path.stem
    for name in ("command", "setting", "version", "scenarios"):
        if name in table:
            table[name] = tuple(table[name])
    table["prepare"] = tuple(tuple(command) for command in table.get("prepare", ()))
    table["requires"] = _requires(table)
    peer: Peer = _checked(Peer, path, table)
    return peer


def _requires(table: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {kind: tuple(names) for kind, names in table.get("requires", {}).items()}


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise BadDeclaration(f"{path.name}: {error}") from None


def _checked(kind: Any, path: Path, table: Mapping[str, Any]) -> Any:
    try:
        return kind(**table)
    except TypeError as error:
        raise BadDeclaration(f"{path.name}: {str(error).replace('__init__() ', '')}") from None


def select(requested: Iterable[str], known: Mapping[str, Any], kind: str) -> list[str]:
    """Return the requested names, or all; BadDeclaration, with the known names, for another."""
    names = [name for name in requested if name]
    for name in names:
        if name not in known:
            raise BadDeclaration(f"unknown {kind} {name}; choose from: {', '.join(known)}")
    return names or list(known)
