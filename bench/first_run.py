"""`make first-run`: what a new user experiences.

It runs `make demo` and `make test` in fresh clones of one commit, alone and beside busy processes.

Each run gets a new clone, installs with pip's shared cache, and is appended to a file of JSON lines
at its end. A later call skips runs that the file has for the same commit, so an interrupted series
continues. The clone of a failed run is kept without its `.venv`.
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
# The setup target of each command; its time is not counted.
SETUP = {"demo": "setup-spark", "test": "setup"}
TAIL_LINES = 40
MAX_LINE = 2000
TIMED_OUT = 124
STOP_S = 60.0
# Variables of the make and the virtual environment that run this; a new user has neither.
FOREIGN = (
    "MAKEFLAGS",
    "MFLAGS",
    "MAKELEVEL",
    "MAKEOVERRIDES",
    "VIRTUAL_ENV",
    "PYTHONPATH",
    "PIP_NO_CACHE_DIR",
)
# Ends when the process that started it is gone, however that ended.
LOOP = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    for _ in range(1_000_000):\n        pass\n"

Record = dict[str, Any]


class Kind(NamedTuple):
    """A target of the Makefile, with or without load beside it."""

    target: str
    busy: bool

    @property
    def command(self) -> str:
        return f"make {self.target}"

    @property
    def load(self) -> str:
        return f"{LOOPS} busy loops" if self.busy else "none"


class Output(NamedTuple):
    """The result of a command."""

    exit_code: int
    seconds: float
    first_row_s: float | None
    tail: list[str]


def plan(runs: int, busy: int, tests: int) -> list[tuple[Kind, int]]:
    """Return how often to run each kind; `busy` of the `runs` of the demo are beside busy loops."""
    return [
        (Kind("demo", False), runs - busy),
        (Kind("demo", True), busy),
        (Kind("test", True), tests),
    ]


def read_records(path: Path) -> list[Record]:
    """Return the records of the file, without a last line that an interruption truncated."""
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
    is_truncated = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write(("\n" if is_truncated else "") + json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())


def done(records: Sequence[Record], commit: str, kind: Kind) -> list[Record]:
    return [
        record
        for record in records
        if (record["commit"], record["command"], record["load"])
        == (commit, kind.command, kind.load)
    ]


def git(*words: str, cwd: Path) -> str:
    ran = subprocess.run(["git", *words], cwd=cwd, check=True, capture_output=True, text=True)
    return ran.stdout.strip()


def environment(scratch: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    return kept | {"TMPDIR": str(scratch)}


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keep cores busy with processes until the block ends."""
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
    """Run a command to its end in a new session, with its output in a file.

    The time of the first table row is measured.
    """
    started_s = time.monotonic()
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
                    first_row_s = round(time.monotonic() - started_s, 1)
                if time.monotonic() > started_s + timeout_s:
                    code = TIMED_OUT
                    break
                time.sleep(0.1)
        finally:
            _end(process)
    seconds = round(time.monotonic() - started_s, 1)
    lines = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
    return Output(code or 0, seconds, first_row_s, [line[:MAX_LINE] for line in lines])


def has_row(log: Path) -> bool:
    """Return whether the output has a row below the head of a table of flows."""
    lines = log.read_text(errors="replace").splitlines(keepends=True)
    heads = [
        number for number, line in enumerate(lines) if line.startswith("flow ") and "rows/s" in line
    ]
    return bool(heads) and len(lines) > heads[0] + 1 and lines[heads[0] + 1].endswith("\n")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM, which the demo treats as Ctrl-C, to the session; then SIGKILL if needed."""
    for number, timeout_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, None)):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            continue


class Series:
    """Runs of one commit of one repository."""

    def __init__(
        self,
        repository: Path,
        commit: str,
        results: Path,
        scratch: Path,
        timeout_s: float,
        python: str,
    ) -> None:
        self.repository, self.commit, self.results = repository, commit, results
        self.scratch, self.timeout_s, self.python = scratch, timeout_s, python

    def run(self, kind: Kind, number: int) -> Record:
        """Run once in a fresh clone, and append the record to the file."""
        folder = Path(tempfile.mkdtemp(prefix=f"first-run-{kind.target}-", dir=self.scratch))
        record: Record | None = None
        try:
            record = self._run(kind, number, folder)
            append_record(self.results, record)
            return record
        finally:
            if record is None or record["exit_code"] == 0:
                shutil.rmtree(folder, ignore_errors=True)
            else:
                shutil.rmtree(folder / "clone" / ".venv", ignore_errors=True)

    def _run(self, kind: Kind, number: int, folder: Path) -> Record:
        clone, temporary = folder / "clone", folder / "tmp"
        temporary.mkdir()
        git("clone", "--quiet", str(self.repository), str(clone), cwd=folder)
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
        setup = run_command(
            [*make, SETUP[kind.target]], clone, env, self.timeout_s, folder / "setup.log"
        )
        record["setup_seconds"] = setup.seconds
        if setup.exit_code:
            return record | {"exit_code": setup.exit_code, "seconds": 0.0, "tail": setup.tail}
        with busy_loops(LOOPS if kind.busy else 0):
            output = run_command(
                [*make, kind.target], clone, env, self.timeout_s, folder / f"{kind.target}.log"
            )
        record |= {"exit_code": output.exit_code, "seconds": output.seconds}
        if output.first_row_s is not None:
            record["first_row_seconds"] = output.first_row_s
        if output.exit_code:
            record |= {"tail": output.tail, "kept": str(folder)}
        return record


def table(records: Sequence[Record], commit: str, kinds: Sequence[tuple[Kind, int]]) -> str:
    """Return a table with a row for each kind: how many passed, and their times."""
    heads = (
        "command",
        "load",
        "passed",
        "seconds (min, median, max)",
        "first row (min, median, max)",
    )
    rows = [heads]
    for kind, planned in kinds:
        finished = done(records, commit, kind)
        successful = [record for record in finished if record["exit_code"] == 0]
        passed = f"{len(successful)} of {len(finished)}" + (
            f", {planned} planned" if planned > len(finished) else ""
        )
        first = [
            record["first_row_seconds"] for record in successful if "first_row_seconds" in record
        ]
        rows.append(
            (
                kind.command,
                kind.load,
                passed,
                _range([record["seconds"] for record in successful]),
                _range(first),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _range(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{min(values):.0f}, {median(values):.0f}, {max(values):.0f}"


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.first_run", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="runs of make demo")
    parser.add_argument(
        "--busy", type=int, default=10, help="how many of them beside two busy loops"
    )
    parser.add_argument(
        "--tests", type=int, default=5, help="runs of make test, all beside two busy loops"
    )
    parser.add_argument("--commit", default="HEAD", help="the commit to clone")
    parser.add_argument("--repository", type=Path, default=ROOT, help="the repository to clone")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "first-run.jsonl")
    parser.add_argument("--scratch", type=Path, help="directory for the clones")
    parser.add_argument(
        "--timeout", type=float, default=3600, help="timeout of one command in seconds"
    )
    parser.add_argument(
        "--python",
        default=getattr(sys, "_base_executable", sys.executable),
        help="the PYTHON of make",
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
        print("uncommitted changes are not in the clones", file=sys.stderr)
    scratch = (options.scratch or Path(tempfile.gettempdir())).resolve()
    series = Series(
        options.repository.resolve(),
        commit,
        options.results,
        scratch,
        options.timeout,
        options.python,
    )
    kinds = plan(options.runs, options.busy, options.tests)
    interrupted = False
    try:
        for kind, planned in kinds:
            for number in range(
                len(done(read_records(options.results), commit, kind)) + 1, planned + 1
            ):
                record = series.run(kind, number)
                result = (
                    "passed"
                    if record["exit_code"] == 0
                    else f"FAILED with exit code {record['exit_code']}"
                )
                print(
                    f"{kind.command}, load: {kind.load}, {number} of {planned}: {result}, {record['seconds']:.0f} s",
                    flush=True,
                )
    except KeyboardInterrupt:
        interrupted = True
        print("interrupted; the same command continues from here", file=sys.stderr)
    records = read_records(options.results)
    print(f"\n{commit[:12]}, all runs in {options.results}\n\n{table(records, commit, kinds)}")
    finished = [record for kind, _ in kinds for record in done(records, commit, kind)]
    failed = [record for record in finished if record["exit_code"]]
    for record in failed:
        last = "\n    ".join(record["tail"][-5:])
        where = f", kept in {record['kept']}" if "kept" in record else ""
        print(
            f"\n{record['command']}, load: {record['load']}, run {record['number']}{where}:\n    {last}"
        )
    return 130 if interrupted else int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
