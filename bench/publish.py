"""`python -m bench.publish RESULT.json [RESULT.json ...]`: write docs/benchmarks.md from finished
runs.

Several partial runs, each on a quiet machine, become one page. If two runs have the same scenario,
the later file wins with all of its peers: figures of one scenario never come from two runs. A
target that is a share of another scenario's figure is marked if that figure is from another run.
The data of the page is kept beside it, so `python -m bench.publish docs/benchmarks.json
RESULT.json` updates a part of it.
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
    """Return one run with the scenarios of all; the machine is that of the last run."""
    result = Run(runs[-1].facts, {}, {}, min(run.rounds for run in runs))
    parts: dict[tuple[int, int], int] = {}
    for number, run in enumerate(runs):
        for name in run.outcomes:
            result.parts[name] = parts.setdefault((number, run.parts.get(name, 0)), len(parts))
        result.peers = dict(result.peers) | dict(run.peers)
        result.missing = dict(result.missing) | dict(run.missing)
        result.outcomes |= run.outcomes
        result.seconds += run.seconds
        result.busy += run.busy
    result.missing = {
        name: reason for name, reason in result.missing.items() if name not in result.peers
    }
    return result


def publish(run: Run, page: Path) -> list[Path]:
    """Write the page between its markers, the plots and the readings; return the written files."""
    scenarios, measures = load_scenarios(), all_measures()
    ordered = [scenario for scenario in scenarios if scenario.name in run.outcomes]
    drawn = plots.write(plots.draw(run, ordered, measures), page.parent, page.stem)
    rows = list(report.rows(run, ordered, measures))
    report.write_docs(
        page, report.markdown(run, rows, ordered, load_peers(), [path.name for path in drawn])
    )
    return [page, run.save(page.with_suffix(".json")), *drawn]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.publish", description=__doc__)
    parser.add_argument(
        "results", nargs="+", type=Path, help="JSON files of runs, the earliest first"
    )
    parser.add_argument("--page", type=Path, default=DOCS, help="the page to write")
    options = parser.parse_args()
    for path in publish(merged([read_run(path) for path in options.results]), options.page):
        print(path, file=sys.stderr)


if __name__ == "__main__":
    main()
