"""`python -m bench`: run scenarios against peers and report the results.

It shows the table, stores JSON and plots, and writes docs/benchmarks.md.
"""

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
    parser.add_argument("--all", action="store_true", help="every scenario, including slow ones")
    parser.add_argument(
        "--against",
        default="",
        help="names of peers: run the scenarios with a target versus one of them, "
        "and those that such a peer names",
    )
    parser.add_argument(
        "--peers", default="", help="names of peers (default: those that run by default)"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        help=f"interleaved rounds of every scenario (default {ROUNDS}, or the scenario's number)",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=2,
        help="seconds to wait for a quiet machine before each measurement",
    )
    parser.add_argument("--scratch", help="directory for the data of the brokers")
    parser.add_argument(
        "--results",
        type=Path,
        default=HERE / "results",
        help="directory for the JSON and the plots",
    )
    parser.add_argument(
        "--docs",
        action="store_true",
        help="write docs/benchmarks.md and its plots even after a part of the scenarios",
    )
    parser.add_argument("--list", action="store_true", help="list scenarios and peers, run nothing")
    return parser.parse_args(argv)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Runner:
    """Runs scenario by scenario, round by round; the order of peers rotates with the round."""

    def __init__(
        self,
        workshop: Workshop,
        peers: Sequence[Peer],
        measures: Mapping[str, Measure],
        patience_s: float = 0.0,
    ) -> None:
        self.workshop, self.peers, self.measures, self.patience_s = (
            workshop,
            peers,
            measures,
            patience_s,
        )
        self.busy: list[float] = []

    def scenario(self, scenario: Scenario, rounds: int, progress: str) -> Outcome:
        outcome, measure = Outcome(), self.measures[scenario.measure]
        relevant = [p for p in self.peers if scenario.concerns(p)]
        outcome.absent = {
            p.name: p.cannot[measure.name] for p in relevant if measure.name in p.cannot
        }
        if reason := missing(scenario.requires):
            outcome.absent = {p.name: reason for p in relevant}
        runnable = [p for p in relevant if p.name not in outcome.absent]
        for round_index in range(scenario.rounds or rounds):
            for peer in (
                runnable[round_index % len(runnable) :] + runnable[: round_index % len(runnable)]
                if runnable
                else []
            ):
                self._measure_once(
                    scenario,
                    measure,
                    peer,
                    outcome,
                    f"{progress} {scenario.name}, round {round_index + 1}, {peer.name}",
                )
        self.workshop.ballast.drop()
        return outcome

    def _measure_once(
        self, scenario: Scenario, measure: Measure, peer: Peer, outcome: Outcome, label: str
    ) -> None:
        if peer.name in outcome.absent:  # failed in an earlier round
            return
        self.busy.append(machine.wait_quiet(self.patience_s))
        started = time.perf_counter()
        try:
            reading = measure.run(self.workshop, scenario.on(peer), peer)
        except Exception as error:  # keep the other measurements
            if not isinstance(error, BenchFailed):
                traceback.print_exc()
            reason = (
                str(error) if isinstance(error, BenchFailed) else f"{type(error).__name__}: {error}"
            )
            outcome.absent[peer.name] = f"failed: {reason}"
            say(f"{label}: FAILED: {reason}")
            return
        outcome.readings.setdefault(peer.name, []).append(reading)
        figures = ", ".join(
            f"{m.label} {report.number(reading.values[m.name])} {m.unit}"
            for m in measure.metrics
            if m.name in reading.values
        )
        say(f"{label}: {figures}  [{time.perf_counter() - started:.1f} s]")


def choose_scenarios(
    known: Mapping[str, Scenario], options: argparse.Namespace, peers: Mapping[str, Peer]
) -> list[Scenario]:
    """Return the named scenarios, or those that concern the peers of --against, or the defaults.

    A scenario concerns a peer if it has a target versus that peer, or if the peer names it.
    """
    if options.rounds:  # overrides the numbers of the scenarios
        known = {name: replace(scenario, rounds=None) for name, scenario in known.items()}
    if options.only:
        return [known[name] for name in select(options.only.split(","), known, "scenario")]
    others = set(options.against.split(",")) - {""}
    named_by_peers = {name for other in others & set(peers) for name in peers[other].scenarios}
    return [
        scenario
        for scenario in known.values()
        if (scenario.default or options.all or others)
        and (
            not others
            or scenario.name in named_by_peers
            or any(target.versus in others for target in scenario.targets)
        )
    ]


def choose_peers(
    known: Mapping[str, Peer], options: argparse.Namespace, chosen: Sequence[Scenario]
) -> tuple[list[Peer], dict[str, str]]:
    """Return the peers that can run here, and the others with the reason."""
    if options.peers:
        names = select(options.peers.split(","), known, "peer")
    elif options.against:
        others = select(options.against.split(","), known, "peer")
        names = [*dict.fromkeys(scenario.subject for scenario in chosen), *others]
    else:
        names = [peer.name for peer in known.values() if peer.default]
    absent = {name: reason for name in names if (reason := missing(known[name].requires))}
    return [known[name] for name in names if name not in absent], absent


def run(options: argparse.Namespace) -> int:
    scenarios = {s.name: s for s in load_scenarios()}
    peers, measures = load_peers(), all_measures()
    chosen = choose_scenarios(scenarios, options, peers)
    if options.list:
        _list(scenarios.values(), peers.values())
        return 0
    runnable, absent = choose_peers(peers, options, chosen)
    if not chosen:
        raise BadDeclaration(
            f"no scenario has a target versus {options.against}: name some with --only"
        )
    workshop, started = Workshop(options.scratch), time.perf_counter()
    try:
        rounds = options.rounds or ROUNDS
        results = Run(
            machine.facts(workshop.folder), {p.name: version(p) for p in runnable}, absent, rounds
        )
        runner = Runner(workshop, runnable, measures, options.patience)
        complete = _measure(results, runner, chosen)
    finally:
        workshop.close()
    results.seconds, results.busy = time.perf_counter() - started, runner.busy
    is_complete = complete and not (options.only or options.peers or options.against)
    return _report(results, chosen, measures, options, docs=options.docs or is_complete)


def _measure(results: Run, runner: Runner, chosen: Sequence[Scenario]) -> bool:
    """Run all scenarios; False if stopped by a signal, with the results so far."""
    try:
        for i, scenario in enumerate(chosen, 1):
            results.outcomes[scenario.name] = runner.scenario(
                scenario, results.rounds, f"[{i}/{len(chosen)}]"
            )
    except KeyboardInterrupt:
        say("bench: stopped; these are the measurements so far")
        return False
    return True


def _report(
    results: Run,
    chosen: Sequence[Scenario],
    measures: Mapping[str, Measure],
    options: argparse.Namespace,
    *,
    docs: bool,
) -> int:
    table_rows = list(report.rows(results, chosen, measures))
    report.show(results, table_rows, Console(width=None if sys.stdout.isatty() else PIPED_WIDTH))
    stored = results.write(options.results)
    drawn = plots.write(plots.draw(results, chosen, measures), stored.parent, stored.stem)
    for path in (stored, *drawn, *(publish(results, DOCS) if docs else ())):
        say(f"written: {path}")
    failed = any(
        reason.startswith("failed")
        for outcome in results.outcomes.values()
        for reason in outcome.absent.values()
    )
    return 1 if failed else 0


def _list(scenarios: object, peers: object) -> None:
    for item in (*scenarios, *peers):  # type: ignore[misc]
        print(f"{item.name:28} {item.title}{'' if item.default else '  (on request)'}")


def main(argv: Sequence[str] | None = None) -> int:
    # Both end the run cleanly, even if a shell started it with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        return run(arguments(argv))
    except BadDeclaration as error:
        say(f"bench: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
