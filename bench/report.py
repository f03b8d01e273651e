"""A run as a table in the terminal, and as Markdown in docs/benchmarks.md."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from bench.measures import Measure
from bench.model import Metric, Peer, Scenario
from bench.results import Outcome, Run, Summary

COLD_SHARE = 0.95
# After the last message of a fixed rate. A broker that keeps up needs about 10 ms.
LATE_MS = 100.0
BEGIN, END = "<!-- figures: begin (written by `make bench`) -->", "<!-- figures: end -->"


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of one scenario, as text."""

    name: str
    title: str
    metric: str
    heads: tuple[str, ...]  # of the columns behind the scenario
    figures: tuple[str, ...]  # one per peer
    ratios: tuple[str, ...]  # the subject to each other peer
    goal: str
    verdict: str
    rounds: int


def number(value: float) -> str:
    """Format with three significant digits and commas for thousands."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        digits = 3 - len(f"{abs(value):.0f}")
        return f"{round(value, digits):,.0f}"
    return f"{value:.3g}"


def _figure(outcome: Outcome, peer: str, metric: Metric) -> str:
    """Format a figure. A peer that failed in a later round is marked."""
    summary, failed = (
        outcome.summary(peer, metric),
        outcome.absent.get(peer, "").startswith("failed"),
    )
    if summary is None:
        return "failed" if failed else "–"
    spread = f" ±{summary.spread:.0%}" if summary.high > summary.low else ""
    then = f", then failed (round {len(outcome.readings[peer]) + 1})" if failed else ""
    return f"{number(summary.value)} {metric.unit}{spread}{then}"


def _ratio(ratio: Summary | None) -> str:
    if ratio is None:
        return "–"
    spread = f" ({_share(ratio.low)}–{_share(ratio.high)})" if ratio.high > ratio.low else ""
    return f"{_share(ratio.value)}x{spread}"


def _share(value: float) -> str:
    """Format with two decimals, or with two digits if the decimals were 0."""
    return f"{value:.2f}" if value >= 0.1 else number(float(f"{value:.2g}"))


def _heads(peers: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    return ("metric", *peers, *(f"ratio to {name}" for name in others), "goal", "")


def rows(run: Run, scenarios: Sequence[Scenario], measures: Mapping[str, Measure]) -> Iterator[Row]:
    """Yield the rows, with columns for the peers of a scenario.

    The peers are compared with its subject, if that ran.
    """
    for scenario in scenarios:
        outcome = run.outcomes.get(scenario.name)
        if outcome is None:
            continue
        subject = scenario.subject
        peers = [name for name in run.peers if name in outcome.readings or name in outcome.absent]
        others = [name for name in peers if name != subject] if subject in peers else []
        for metric in measures[scenario.measure].metrics:
            figures = tuple(_figure(outcome, p, metric) for p in peers)
            ratios = tuple(_ratio(outcome.ratio(subject, p, metric)) for p in others)
            yield Row(
                scenario.name,
                scenario.title,
                metric.label,
                _heads(peers, others),
                figures,
                ratios,
                *_goals(run, scenario, metric),
                outcome.rounds(),
            )


def _goals(run: Run, scenario: Scenario, metric: Metric) -> tuple[str, str]:
    """Return the targets and the verdicts; a metric may have several."""
    mine = [target for target in scenario.targets if target.metric == metric.name]
    verdicts = [
        target.verdict(run.achieved(scenario, target, metric))
        + ("" if run.in_one_run(scenario, target) else " (of another run)")
        for target in mine
    ]
    return "; ".join(target.text(metric.unit) for target in mine), "; ".join(verdicts)


def show(run: Run, table_rows: Sequence[Row], console: Console) -> None:
    visible = [row for row in table_rows if any(figure != "–" for figure in row.figures)]
    for heads in dict.fromkeys(row.heads for row in visible):
        title = f"medians of {run.rounds} interleaved rounds, ± half the range"
        console.print(
            _table(title, heads, [row for row in visible if row.heads == heads], run.rounds)
        )
    for name, wall, cpu, callback, position in stalls(run):
        suffix = f"({position})" if position else ""
        line = f"{name}: {wall:.1f} ms, {cpu:.1f} ms on CPU: {callback} {suffix}"
        console.print(line, markup=False, highlight=False)
    console.print(_neighbours(run), markup=False, highlight=False)
    for line in remarks(run):
        console.print(line, markup=False, highlight=False)


def _rounds(row: Row, usual: int) -> str:
    """Return the number of rounds if it is unusual: set by the scenario, or stopped early."""
    if row.rounds in (0, usual):
        return ""
    return f"({_counted(row.rounds)})"


def _counted(rounds: int) -> str:
    return "1 round" if rounds == 1 else f"{rounds} rounds"


def _table(title: str, heads: Sequence[str], table_rows: Sequence[Row], rounds: int) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("scenario", *heads):
        table.add_column(name, overflow="fold")
    last = None
    for row in table_rows:
        if last is not None and row.name != last:
            table.add_section()
        name = "" if row.name == last else f"{row.name} {_rounds(row, rounds)}".rstrip()
        style = (
            "bold red"
            if "MISSED" in row.verdict
            else "green"
            if "met" in row.verdict.split("; ")
            else ""
        )
        verdict = f"[{style}]{row.verdict}[/]" if style else row.verdict
        table.add_row(name, row.metric, *row.figures, *row.ratios, row.goal, verdict)
        last = row.name
    return table


def remarks(run: Run) -> Iterator[str]:
    """Yield what has no figure, and why."""
    for name, reason in run.missing.items():
        yield f"{name} is missing here: {reason}"
    seen: dict[tuple[str, str], list[str]] = {}
    for scenario, outcome in run.outcomes.items():
        for peer, reason in outcome.absent.items():
            if done := len(outcome.readings.get(peer, ())):
                yield f"{peer} has figures of only {_counted(done)} for {scenario}: {reason}"
            else:
                seen.setdefault((peer, reason), []).append(scenario)
    for (peer, reason), names in seen.items():
        yield f"{peer} has no figure for {', '.join(names)}: {reason}"
    yield from _late(run)
    yield from _not_cold(run)
    parts = {
        f"{scenario} has no figure for a part: {reading.detail['missing']}": None
        for scenario, outcome in run.outcomes.items()
        for readings in outcome.readings.values()
        for reading in readings
        if reading.detail.get("missing")
    }
    yield from parts


def _late(run: Run) -> Iterator[str]:
    """Yield peers that did not hold the rate: their latency is that of the client's queue."""
    for scenario, outcome in run.outcomes.items():
        for peer, readings in outcome.readings.items():
            late_ms = max((reading.detail.get("late_ms", 0.0) for reading in readings), default=0.0)
            if late_ms > LATE_MS:
                yield (
                    f"{peer} does not keep up in {scenario}: "
                    f"the last message was acknowledged {late_ms / 1000:.1f} s late"
                )


def _not_cold(run: Run) -> Iterator[str]:
    """Yield reads that should come from the disk and may have come from memory."""
    for scenario, outcome in run.outcomes.items():
        for peer, readings in outcome.readings.items():
            cold = min((reading.detail.get("cold_share", 1.0) for reading in readings), default=1.0)
            if cold < COLD_SHARE:
                yield f"{peer} in {scenario}: only {cold:.0%} of the pages are known to have been cold"


def stalls(run: Run) -> Iterator[tuple[str, float, float, str, str]]:
    """Yield the slowest callback of each stall scenario.

    The fields are the scenario, wall ms, CPU ms, the callback, and the lines 5 ms into it.
    """
    for name, outcome in run.outcomes.items():
        entries = [
            entry
            for readings in outcome.readings.values()
            for reading in readings
            for entry in reading.detail.get("slowest", [])
        ]
        if entries:
            top = max(entries, key=lambda entry: entry["wall_ms"])
            yield name, top["wall_ms"], top["cpu_ms"], top["callback"], top["line"]


def markdown(
    run: Run,
    table_rows: Sequence[Row],
    scenarios: Sequence[Scenario],
    peers: Mapping[str, Peer],
    pictures: Sequence[str] = (),
) -> str:
    out = [*map(_wrapped, _machine(run, peers)), "", "### Figures", ""]
    out.append(
        _wrapped(
            f"Medians of {run.rounds} rounds unless stated otherwise, ± half the range between the rounds. "
            "Ratios are taken round by round, with their range in brackets. For stalls the worst round "
            "counts."
        )
    )
    for name in pictures:
        out += ["", f"![{Path(name).stem.replace('-', ': ', 1)}]({name})"]
    for title in dict.fromkeys(row.title for row in table_rows):
        note = next((s.note for s in scenarios if s.title == title), "")
        mine = [row for row in table_rows if row.title == title]
        heads = mine[0].heads
        head = " ".join(
            word for word in (f"**{title}.**", _rounds(mine[0], run.rounds), note) if word
        )
        out += ["", _wrapped(head), "", _line(heads), _line(["---"] * len(heads))]
        for row in mine:
            out.append(_line([row.metric, *row.figures, *row.ratios, row.goal, row.verdict]))
    if slow := list(stalls(run)):
        out += [
            "",
            "### The slowest callbacks",
            "",
            _line(["scenario", "wall", "on CPU", "callback", "after 5 ms at"]),
            _line(["---"] * 5),
        ]
        out += [
            _line([n, f"{wall:.1f} ms", f"{cpu:.1f} ms", f"`{name}`", line])
            for n, wall, cpu, name, line in slow
        ]
    if notes := list(remarks(run)):
        out += ["", "### Without a figure", "", *(_wrapped(f"- {line}") for line in notes)]
    return "\n".join(out) + "\n"


def _wrapped(text: str) -> str:
    """Return a paragraph or a list item, wrapped at 100 columns."""
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(
        text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _machine(run: Run, peers: Mapping[str, Peer]) -> Iterator[str]:
    facts = run.facts
    yield "### This run"
    yield ""
    yield (
        f"- {facts['processor']}, {facts['cores']} cores, {facts['memory_gib']} GiB, {facts['kernel']}, "
        f"data on {facts['file_system']}"
    )
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    yield f"- Python {facts['python']}; {packages}"
    for name, version in run.peers.items():
        note = " ".join(peers[name].note.split())
        yield f"- `{name}`: {peers[name].title} {version}. {note}".rstrip()
    yield f"- {run.rounds} rounds, {run.seconds / 60:.1f} minutes; {_neighbours(run)}"


def _neighbours(run: Run) -> str:
    """Describe the load by other programs just before each measurement."""
    if not run.busy:
        return "the load by other programs is not known"
    raised = (
        f", the bench ran at priority {run.facts['priority']}" if run.facts.get("priority") else ""
    )
    typical, maximum = median(run.busy), max(run.busy)
    return f"other programs used {typical:.0%} of the cores before a measurement (at most {maximum:.0%}){raised}"


def write_docs(path: Path, figures: str, begin: str = BEGIN) -> None:
    """Replace the text between the markers and keep the rest of the page."""
    before, begin_found, rest = path.read_text(encoding="utf-8").partition(begin)
    _, end_found, after = rest.partition(END)
    if not begin_found or not end_found:
        raise ValueError(f"{path} lacks the marks {begin} and {END}")
    path.write_text(f"{before}{begin}\n\n{figures}\n{END}{after}", encoding="utf-8")
