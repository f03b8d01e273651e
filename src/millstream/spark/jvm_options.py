"""Options of the JVM of a local Spark session: its compiler, and its class archive.

``spark.millstream.jvm`` is ``peak`` or ``quick``. ``peak`` is Java's default: code that runs often
is compiled twice, the second time with all optimizations. Warming up a streaming query that way
takes more CPU time than anything else during the first half minute. ``quick`` compiles once and
starts in half the CPU time. It suits short runs: ``pipeline check``, the demo, tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millstream.client.errors import ClientError

SETTING = "spark.millstream.jvm"
EXTRA = "spark.driver.extraJavaOptions"
QUICK = "quick"
PEAK = "peak"
COMPILERS: Mapping[str, tuple[str, ...]] = {PEAK: (), QUICK: ("-XX:TieredStopAtLevel=1",)}

ARCHIVE_OPTIONS = ("-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit", "-Xshare")


def driver_options(settings: Mapping[str, object], archive: Iterable[str]) -> dict[str, object]:
    """Return the settings to add for the driver's JVM. The user's options come last and win."""
    profile = str(settings.get(SETTING, PEAK))
    if profile not in COMPILERS:
        raise ClientError(
            f"{SETTING} is {profile!r}", hint=f"use {PEAK} for long runs or {QUICK} for short ones"
        )
    user_options = str(settings.get(EXTRA, "") or "")
    # A JVM has at most one dynamic archive.
    if any(name in user_options for name in ARCHIVE_OPTIONS):
        archive = ()
    ours = [_quoted(option) for option in (*archive, *COMPILERS[profile])]
    options = " ".join([*ours, *([user_options] if user_options else [])])
    return {EXTRA: options} if options else {}


def _quoted(option: str) -> str:
    """Quote an option for Spark's launcher, which splits at spaces."""
    if not any(character in option for character in " \"'\\"):
        return option
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
