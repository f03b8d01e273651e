"""`python -m bench.publish RESULT.json [RESULT.json ...]`: docs/benchmarks.md and its plots from runs that are over.

A run in parts, each on a quiet machine, becomes one page. Where two runs have the same scenario the later file counts, with all of its
peers: figures of one scenario never come from two runs. A target that is a share of another scenario says so where that is of another run.
What the page is made of is kept beside it, so that `python -m bench.publish docs/benchmarks.json RESULT.json` renews a part of it.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import plots, report
from bench.measures import all_measures
from bench.model import HERE, load_peers, load_scenarios
from bench.results import Run, read_run

DOCS = HERE.parent / "docs" / "benchmarks.md"


def merged(runs: Sequence[Run]) -> Run:
    """Scenarios in the order of their files; the machine is that of the last run."""
    found = Run(runs[-1].facts, {}, {}, min(run.rounds for run in runs))
    parts: dict[tuple[int, int], int] = {}
    for place, run in enumerate(runs):
        for name in run.outcomes:
            found.parts[name] = parts.setdefault((place, run.parts.get(name, 0)), len(parts))
        found.peers = dict(found.peers) | dict(run.peers)
        found.missing = dict(found.missing) | dict(run.missing)
        found.outcomes |= run.outcomes
        found.seconds += run.seconds
        found.busy += run.busy
    found.missing = {name: why for name, why in found.missing.items() if name not in found.peers}
    return found


def publish(run: Run, page: Path) -> list[Path]:
    """The page between its marks, and beside it the plots and the readings; what was written."""
    scenarios, measures = load_scenarios(), all_measures()
    ordered = [scenario for scenario in scenarios if scenario.name in run.outcomes]
    drawn = plots.write(plots.draw(run, ordered, measures), page.parent, page.stem)
    rows = list(report.rows(run, ordered, measures))
    report.write_docs(page, report.markdown(run, rows, ordered, load_peers(), [path.name for path in drawn]))
    return [page, run.save(page.with_suffix(".json")), *drawn]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.publish", description=__doc__)
    parser.add_argument("results", nargs="+", type=Path, help="JSON files of runs, the earliest first")
    parser.add_argument("--page", type=Path, default=DOCS, help="the page that is written")
    options = parser.parse_args()
    for path in publish(merged([read_run(path) for path in options.results]), options.page):
        print(path, file=sys.stderr)


if __name__ == "__main__":
    main()
