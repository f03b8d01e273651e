"""Programs of peers that pip does not have.

`python -m bench.fetch kafka` fetches Apache Kafka's jars with Maven.

They are stored in build/bench (or $MILLSTREAM_BENCH_CACHE), in a folder per version. A peer or a
scenario names them in `[requires] fetched`; its commands refer to them as {KAFKA_LIBS}. That
environment variable can name another folder.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.model import HERE

POM = HERE / "java" / "pom.xml"
VARIABLE = "KAFKA_LIBS"
TIMEOUT_S = 900


def cache() -> Path:
    return Path(os.environ.get("MILLSTREAM_BENCH_CACHE") or HERE.parent / "build" / "bench")


def kafka_version() -> str:
    match = re.search(r"<kafka\.version>(.+?)<", POM.read_text(encoding="utf-8"))
    assert match is not None
    return match[1]


def kafka_libs() -> Path:
    """Return the folder of the jars, which need not exist."""
    folder = os.environ.get(VARIABLE)
    return Path(folder) if folder else cache() / f"kafka-{kafka_version()}"


def words() -> dict[str, str]:
    """Return the names that commands of peers may use."""
    return {VARIABLE: str(kafka_libs())}


def obtain(name: str) -> str | None:
    """Fetch a program unless it exists; return why that failed, or None."""
    if name != "kafka":
        return f"nothing named {name} can be fetched"
    libs = kafka_libs()
    if any(libs.glob("kafka_*.jar")):
        return None
    if os.environ.get(VARIABLE):
        return f"no jars of Apache Kafka in the folder that {VARIABLE} names"
    maven = shutil.which("mvn")
    if maven is None:
        return f"no program mvn to fetch Apache Kafka with, and {VARIABLE} is not set"
    return _copy_jars(maven, libs)


def _copy_jars(maven: str, libs: Path) -> str | None:
    """Copy into a folder of another name first, so that an incomplete one is never used."""
    partial = libs.with_name(f"{libs.name}.{os.getpid()}")
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
    command = [maven, "-q", "-B", "-f", str(POM), *goal]
    try:
        partial.mkdir(parents=True)
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        if done.returncode:
            output = (done.stdout + done.stderr).strip().splitlines()
            return f"Maven could not fetch Apache Kafka: {output[0] if output else done.returncode}"
        if not libs.exists():
            partial.rename(libs)
        return None
    except subprocess.TimeoutExpired:
        return f"Maven did not fetch Apache Kafka within {TIMEOUT_S} s"
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def main(argv: Sequence[str] | None = None) -> int:
    names = list(sys.argv[1:] if argv is None else argv)
    if not names:
        print("usage: python -m bench.fetch kafka", file=sys.stderr)
        return 2
    for name in names:
        if reason := obtain(name):
            print(f"{name}: {reason}", file=sys.stderr)
            return 1
        print(f"{name}: {kafka_libs()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
