"""`python -m bench`: run scenarios against peers, show the table, keep JSON and plots, write docs/benchmarks.md."""

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from bench import machine, plots, report
from bench.measures import Measure, all_measures
from bench.model import HERE, BadDeclaration, Peer, Scenario, load_peers, load_scenarios, select
from bench.processes import BenchFailed
from bench.publish import DOCS, publish
from bench.results import Outcome, Run
from bench.running import Workshop, missing, version

PIPED_WIDTH = 150
ROUNDS = 3


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure Millstream beside its peers."
    )
    parser.add_argument(
        "--only",
        default="",
        help="names of scenarios, separated by commas (default: those that run by default)",
    )
    parser.add_argument("--all", action="store_true", help="every scenario, also those that take long")
    parser.add_argument(
        "--against",
        default="",
        help="names of peers: the scenarios with a target versus one of them, and those that such a peer names itself",
    )
    parser.add_argument("--peers", default="", help="names of peers (default: those that run by default)")
    parser.add_argument(
        "--rounds",
        type=int,
        help=f"interleaved rounds, of every scenario (default {ROUNDS}, or as many as a scenario says)",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=2,
        help="seconds to wait for a quiet machine before each measurement",
    )
    parser.add_argument("--scratch", help="where the brokers keep their data while measured")
    parser.add_argument(
        "--results", type=Path, default=HERE / "results", help="where the JSON and the plots go"
    )
    parser.add_argument(
        "--docs",
        action="store_true",
        help="write docs/benchmarks.md and its plots also after a part of the scenarios",
    )
    parser.add_argument("--list", action="store_true", help="name scenarios and peers, run nothing")
    return parser.parse_args(argv)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Runner:
    """Scenario by scenario, round by round, peers taking turns (the order rotates with the round)."""

    def __init__(
        self,
        workshop: Workshop,
        peers: Sequence[Peer],
        measures: Mapping[str, Measure],
        patience_s: float = 0.0,
    ) -> None:
        self.workshop, self.peers, self.measures, self.patience_s = workshop, peers, measures, patience_s
        self.busy: list[float] = []

    def scenario(self, scenario: Scenario, rounds: int, place: str) -> Outcome:
        outcome, measure = Outcome(), self.measures[scenario.measure]
        meant = [p for p in self.peers if scenario.concerns(p)]
        outcome.absent = {p.name: p.cannot[measure.name] for p in meant if measure.name in p.cannot}
        if why := missing(scenario.requires):
            outcome.absent = {p.name: why for p in meant}
        able = [p for p in meant if p.name not in outcome.absent]
        for turn in range(scenario.rounds or rounds):
            for peer in able[turn % len(able) :] + able[: turn % len(able)] if able else []:
                self._once(
                    scenario,
                    measure,
                    peer,
                    outcome,
                    f"{place} {scenario.name}, round {turn + 1}, {peer.name}",
                )
        self.workshop.ballast.forget()
        return outcome

    def _once(self, scenario: Scenario, measure: Measure, peer: Peer, outcome: Outcome, where: str) -> None:
        if peer.name in outcome.absent:  # failed in an earlier round
            return
        self.busy.append(machine.wait_quiet(self.patience_s))
        started = time.perf_counter()
        try:
            reading = measure.run(self.workshop, scenario.on(peer), peer)
        except Exception as error:  # what else was measured is not to be lost
            if not isinstance(error, BenchFailed):
                traceback.print_exc()
            why = str(error) if isinstance(error, BenchFailed) else f"{type(error).__name__}: {error}"
            outcome.absent[peer.name] = f"failed: {why}"
            say(f"{where}: FAILED: {why}")
            return
        outcome.readings.setdefault(peer.name, []).append(reading)
        figures = ", ".join(
            f"{m.label} {report.number(reading.values[m.name])} {m.unit}"
            for m in measure.metrics
            if m.name in reading.values
        )
        say(f"{where}: {figures}  [{time.perf_counter() - started:.1f} s]")


def choose_scenarios(
    known: Mapping[str, Scenario], options: argparse.Namespace, peers: Mapping[str, Peer]
) -> list[Scenario]:
    """By name; or those that are to hold their own against some peers, or that such a peer has by itself; or the usual ones."""
    if options.rounds:  # asked for: no scenario has a number of its own
        known = {name: replace(scenario, rounds=None) for name, scenario in known.items()}
    if options.only:
        return [known[name] for name in select(options.only.split(","), known, "scenario")]
    others = set(options.against.split(",")) - {""}
    theirs = {name for other in others & set(peers) for name in peers[other].scenarios}
    return [
        scenario
        for scenario in known.values()
        if (scenario.default or options.all or others)
        and (
            not others
            or scenario.name in theirs
            or any(target.versus in others for target in scenario.targets)
        )
    ]


def choose_peers(
    known: Mapping[str, Peer], options: argparse.Namespace, chosen: Sequence[Scenario]
) -> tuple[list[Peer], dict[str, str]]:
    """Those that can run here, and the others with the reason."""
    if options.peers:
        names = select(options.peers.split(","), known, "peer")
    elif options.against:
        others = select(options.against.split(","), known, "peer")
        names = [*dict.fromkeys(scenario.subject for scenario in chosen), *others]
    else:
        names = [peer.name for peer in known.values() if peer.default]
    absent = {name: why for name in names if (why := missing(known[name].requires))}
    return [known[name] for name in names if name not in absent], absent


def run(options: argparse.Namespace) -> int:
    scenarios = {s.name: s for s in load_scenarios()}
    peers, measures = load_peers(), all_measures()
    chosen = choose_scenarios(scenarios, options, peers)
    if options.list:
        _list(scenarios.values(), peers.values())
        return 0
    able, absent = choose_peers(peers, options, chosen)
    if not chosen:
        raise BadDeclaration(f"no scenario has a target versus {options.against}: name some with --only")
    workshop, started = Workshop(options.scratch), time.perf_counter()
    try:
        rounds = options.rounds or ROUNDS
        found = Run(machine.facts(workshop.folder), {p.name: version(p) for p in able}, absent, rounds)
        runner = Runner(workshop, able, measures, options.patience)
        complete = _measure(found, runner, chosen)
    finally:
        workshop.close()
    found.seconds, found.busy = time.perf_counter() - started, runner.busy
    whole = complete and not (options.only or options.peers or options.against)
    return _tell(found, chosen, measures, options, docs=options.docs or whole)


def _measure(found: Run, runner: Runner, chosen: Sequence[Scenario]) -> bool:
    """False when stopped by a signal: what has been measured is still told."""
    try:
        for i, scenario in enumerate(chosen, 1):
            found.outcomes[scenario.name] = runner.scenario(scenario, found.rounds, f"[{i}/{len(chosen)}]")
    except KeyboardInterrupt:
        say("bench: stopped; this is what was measured so far")
        return False
    return True


def _tell(
    found: Run,
    chosen: Sequence[Scenario],
    measures: Mapping[str, Measure],
    options: argparse.Namespace,
    *,
    docs: bool,
) -> int:
    table_rows = list(report.rows(found, chosen, measures))
    report.show(found, table_rows, Console(width=None if sys.stdout.isatty() else PIPED_WIDTH))
    kept = found.write(options.results)
    drawn = plots.write(plots.draw(found, chosen, measures), kept.parent, kept.stem)
    for path in (kept, *drawn, *(publish(found, DOCS) if docs else ())):
        say(f"written: {path}")
    failed = any(why.startswith("failed") for o in found.outcomes.values() for why in o.absent.values())
    return 1 if failed else 0


def _list(scenarios: object, peers: object) -> None:
    for thing in (*scenarios, *peers):  # type: ignore[misc]
        print(f"{thing.name:28} {thing.title}{'' if thing.default else '  (when asked for)'}")


def main(argv: Sequence[str] | None = None) -> int:
    # Both stop the run in order, also where a shell started it with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        return run(arguments(argv))
    except BadDeclaration as error:
        say(f"bench: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
