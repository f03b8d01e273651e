"""One run of the demo, with the cost of all its processes, including those that end early.

Job: side ("ours" or "spark"), seconds, rate, jars (of Spark's connector), work (a directory).
Orphaned processes become children of this one (Linux: PR_SET_CHILD_SUBREAPER), which waits for them
all. The kernel's sum of the processor time of its children is then complete.
"""

import ctypes
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from bench.first_run import has_row
from bench.load.job import Job, run, say_ready, wait_go

PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.25


def adopt_orphans() -> bool:
    """Return whether the kernel makes this process the parent of orphans."""
    try:
        return ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    except (OSError, AttributeError):
        return False


def command(job: Job) -> list[str]:
    amount = [str(job["seconds"]), str(job["rate"])]
    if job["side"] == "ours":
        return [
            sys.executable,
            "-m",
            "millstream",
            "demo",
            "--seconds",
            amount[0],
            "--rate",
            amount[1],
        ]
    return [sys.executable, "-m", "bench.load.demo_spark", "story", *amount, ",".join(job["jars"])]


def family() -> list[psutil.Process]:
    return [process for process in psutil.Process().children(recursive=True) if _alive(process)]


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def cpu_s() -> float:
    """Return the CPU time of children that have ended, and of live ones with their children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = usage.ru_utime + usage.ru_stime
    for process in psutil.Process().children(recursive=True):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


def reap(leader: int) -> int | None:
    """Wait for every child that has ended; return the exit code of the leader if it is one."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == leader:
            code = os.waitstatus_to_exitcode(status)


def queries(work: Path) -> int:
    """Count the checkpoints: each query of Spark has one."""
    return len(list(work.glob("millstream-demo-*/checkpoints/*/*/offsets")))


def work(job: Job) -> Job:
    folder, log = Path(job["work"]), Path(job["work"]) / "output"
    say_ready()
    wait_go()
    adopted = adopt_orphans()
    started_s, started_cpu_s = time.monotonic(), cpu_s()
    result: Job = {"first_row_s": None, "first_row_cpu_s": None, "queries": 0, "processes": 0}
    with log.open("wb") as output:
        environment = os.environ | {"TMPDIR": str(folder), "COLUMNS": "200"}
        process = subprocess.Popen(
            command(job), stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
        code = None
        while code is None:
            if result["first_row_s"] is None and has_row(log):
                result["first_row_s"] = time.monotonic() - started_s
                result["first_row_cpu_s"] = cpu_s() - started_cpu_s
            result["processes"] = max(result["processes"], len(family()))
            result["queries"] = max(result["queries"], queries(folder))
            time.sleep(POLL_S)
            code = reap(process.pid)
    result["seconds"] = time.monotonic() - started_s
    for process_left in family():  # of a demo that failed
        process_left.kill()
    while psutil.Process().children():
        reap(process.pid)
        time.sleep(0.01)
    lines = log.read_text(errors="replace").splitlines()
    if code or result["first_row_s"] is None:
        raise RuntimeError(f"the demo ended with exit code {code}: {' / '.join(lines[-8:])}")
    checks = [line.strip() for line in lines if line.endswith((" OK", " FAILED"))]
    return result | {"cpu_s": cpu_s() - started_cpu_s, "complete": adopted, "checks": checks}


if __name__ == "__main__":
    run(work)
