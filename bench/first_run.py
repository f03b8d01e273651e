"""`make first-run`: what a new user meets. Fresh clones of one commit, `make demo` and `make test` in them, also beside busy neighbours.

Each run gets a clone of its own, installs with pip's shared cache, and is appended to a file of JSON lines when it has ended. A later
call skips what the file has for the same commit, so that an interrupted series goes on where it was. The clone of a failed run is kept without
its `.venv`.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent
LOOPS = 2
# What each command installs first, and its times are counted without.
SETUP = {"demo": "setup-spark", "test": "setup"}
TAIL_LINES = 40
LONGEST_LINE = 2000
TIMED_OUT = 124
STOP_S = 60.0
# Of the make that runs this, and of its virtual environment: a new user has neither.
FOREIGN = (
    "MAKEFLAGS",
    "MFLAGS",
    "MAKELEVEL",
    "MAKEOVERRIDES",
    "VIRTUAL_ENV",
    "PYTHONPATH",
    "PIP_NO_CACHE_DIR",
)
# Ends by itself when the process that wanted the load is gone, however it ended.
LOOP = (
    "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    for _ in range(1_000_000):\n        pass\n"
)

Record = dict[str, Any]


class Kind(NamedTuple):
    """What is run: a target of the Makefile, with or without load beside it."""

    target: str
    busy: bool

    @property
    def command(self) -> str:
        return f"make {self.target}"

    @property
    def load(self) -> str:
        return f"{LOOPS} busy loops" if self.busy else "none"


class Output(NamedTuple):
    """How a command ended."""

    exit_code: int
    seconds: float
    first_row_s: float | None
    tail: list[str]


def plan(runs: int, busy: int, tests: int) -> list[tuple[Kind, int]]:
    """How often each kind is to be run; `busy` of the `runs` of the demo are beside busy loops."""
    return [(Kind("demo", False), runs - busy), (Kind("demo", True), busy), (Kind("test", True), tests)]


def read_records(path: Path) -> list[Record]:
    """What the file has; a last line that was cut off by an interruption is left out."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def append_record(path: Path, record: Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cut_off = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write(("\n" if cut_off else "") + json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())


def done(records: Sequence[Record], commit: str, kind: Kind) -> list[Record]:
    return [
        one
        for one in records
        if (one["commit"], one["command"], one["load"]) == (commit, kind.command, kind.load)
    ]


def git(*words: str, cwd: Path) -> str:
    ran = subprocess.run(["git", *words], cwd=cwd, check=True, capture_output=True, text=True)
    return ran.stdout.strip()


def environment(scratch: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    return kept | {"TMPDIR": str(scratch)}


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Processes that keep cores busy until the block ends."""
    words = [sys.executable, "-ISc", LOOP, str(os.getpid())]
    loops = [subprocess.Popen(words, stdin=subprocess.DEVNULL) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run_command(
    words: Sequence[str], cwd: Path, env: Mapping[str, str], timeout_s: float, log: Path
) -> Output:
    """Run it to its end in a session of its own; its output goes to a file, and the time of the first table row is noted."""
    began_s = time.monotonic()
    first_row_s: float | None = None
    code: int | None = None
    with log.open("wb") as output:
        process = subprocess.Popen(
            words,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while (code := process.poll()) is None:
                if first_row_s is None and has_row(log):
                    first_row_s = round(time.monotonic() - began_s, 1)
                if time.monotonic() > began_s + timeout_s:
                    code = TIMED_OUT
                    break
                time.sleep(0.1)
        finally:
            _end(process)
    seconds = round(time.monotonic() - began_s, 1)
    lines = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
    return Output(code or 0, seconds, first_row_s, [line[:LONGEST_LINE] for line in lines])


def has_row(log: Path) -> bool:
    """Whether the output has a row below the head of a table of flows."""
    lines = log.read_text(errors="replace").splitlines(keepends=True)
    heads = [number for number, line in enumerate(lines) if line.startswith("flow ") and "rows/s" in line]
    return bool(heads) and len(lines) > heads[0] + 1 and lines[heads[0] + 1].endswith("\n")


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the whole session, which the demo takes as Ctrl-C; SIGKILL where that does not help."""
    for number, patience_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, None)):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            continue


class Series:
    """Runs of one commit of one repository."""

    def __init__(
        self, repository: Path, commit: str, results: Path, scratch: Path, timeout_s: float, python: str
    ) -> None:
        self.repository, self.commit, self.results = repository, commit, results
        self.scratch, self.timeout_s, self.python = scratch, timeout_s, python

    def run(self, kind: Kind, number: int) -> Record:
        """One run in a fresh clone; its record is in the file when this returns."""
        place = Path(tempfile.mkdtemp(prefix=f"first-run-{kind.target}-", dir=self.scratch))
        record: Record | None = None
        try:
            record = self._run(kind, number, place)
            append_record(self.results, record)
            return record
        finally:
            if record is None or record["exit_code"] == 0:
                shutil.rmtree(place, ignore_errors=True)
            else:
                shutil.rmtree(place / "clone" / ".venv", ignore_errors=True)

    def _run(self, kind: Kind, number: int, place: Path) -> Record:
        clone, temporary = place / "clone", place / "tmp"
        temporary.mkdir()
        git("clone", "--quiet", str(self.repository), str(clone), cwd=place)
        git("checkout", "--quiet", "--detach", self.commit, cwd=clone)
        env = environment(temporary)
        record: Record = {
            "commit": self.commit,
            "command": kind.command,
            "load": kind.load,
            "number": number,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        make = ["make", "--no-print-directory", f"PYTHON={self.python}"]
        setup = run_command([*make, SETUP[kind.target]], clone, env, self.timeout_s, place / "setup.log")
        record["setup_seconds"] = setup.seconds
        if setup.exit_code:
            return record | {"exit_code": setup.exit_code, "seconds": 0.0, "tail": setup.tail}
        with busy_loops(LOOPS if kind.busy else 0):
            output = run_command(
                [*make, kind.target], clone, env, self.timeout_s, place / f"{kind.target}.log"
            )
        record |= {"exit_code": output.exit_code, "seconds": output.seconds}
        if output.first_row_s is not None:
            record["first_row_seconds"] = output.first_row_s
        if output.exit_code:
            record |= {"tail": output.tail, "kept": str(place)}
        return record


def table(records: Sequence[Record], commit: str, kinds: Sequence[tuple[Kind, int]]) -> str:
    """A row for each kind: how many passed, and their times."""
    heads = ("command", "load", "passed", "seconds (least, median, most)", "first row (least, median, most)")
    rows = [heads]
    for kind, wanted in kinds:
        found = done(records, commit, kind)
        good = [one for one in found if one["exit_code"] == 0]
        passed = f"{len(good)} of {len(found)}" + (f", {wanted} wanted" if wanted > len(found) else "")
        first = [one["first_row_seconds"] for one in good if "first_row_seconds" in one]
        rows.append(
            (kind.command, kind.load, passed, _range([one["seconds"] for one in good]), _range(first))
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _range(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{min(values):.0f}, {median(values):.0f}, {max(values):.0f}"


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.first_run", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="runs of make demo")
    parser.add_argument("--busy", type=int, default=10, help="how many of them beside two busy loops")
    parser.add_argument("--tests", type=int, default=5, help="runs of make test, all beside two busy loops")
    parser.add_argument("--commit", default="HEAD", help="what is cloned")
    parser.add_argument("--repository", type=Path, default=ROOT, help="where it is cloned from")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "first-run.jsonl")
    parser.add_argument("--scratch", type=Path, help="where the clones are made")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds that one command may take")
    parser.add_argument(
        "--python", default=getattr(sys, "_base_executable", sys.executable), help="the PYTHON of make"
    )
    options = parser.parse_args(argv)
    if not 0 <= options.busy <= options.runs:
        parser.error(f"--busy {options.busy} is not between 0 and --runs {options.runs}")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    commit = git("rev-parse", f"{options.commit}^{{commit}}", cwd=options.repository)
    if git("status", "--porcelain", cwd=options.repository):
        print("changes that are not committed are not in the clones", file=sys.stderr)
    scratch = (options.scratch or Path(tempfile.gettempdir())).resolve()
    series = Series(
        options.repository.resolve(), commit, options.results, scratch, options.timeout, options.python
    )
    kinds = plan(options.runs, options.busy, options.tests)
    interrupted = False
    try:
        for kind, wanted in kinds:
            for number in range(len(done(read_records(options.results), commit, kind)) + 1, wanted + 1):
                record = series.run(kind, number)
                how = "passed" if record["exit_code"] == 0 else f"FAILED with exit code {record['exit_code']}"
                print(
                    f"{kind.command}, load: {kind.load}, {number} of {wanted}: {how}, {record['seconds']:.0f} s",
                    flush=True,
                )
    except KeyboardInterrupt:
        interrupted = True
        print("interrupted; the same command goes on from here", file=sys.stderr)
    records = read_records(options.results)
    print(f"\n{commit[:12]}, all runs in {options.results}\n\n{table(records, commit, kinds)}")
    found = [one for kind, _ in kinds for one in done(records, commit, kind)]
    failed = [one for one in found if one["exit_code"]]
    for one in failed:
        last = "\n    ".join(one["tail"][-5:])
        where = f", kept in {one['kept']}" if "kept" in one else ""
        print(f"\n{one['command']}, load: {one['load']}, run {one['number']}{where}:\n    {last}")
    return 130 if interrupted else int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
