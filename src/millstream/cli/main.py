"""``millstream``: the entry point. Routes fast commands before anything heavy is imported.

``serve`` goes straight to the broker, because the command line would add to its startup time. Help
and version print text. Every other command goes through ``app``, which imports click and the
module of the named noun.
"""

from __future__ import annotations

import os
import sys

COMPLETION_VARIABLE = "_MILLSTREAM_COMPLETE"
COMPLETION_OPTIONS = ("--show-completion", "--install-completion")
INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code.

    0 is success, 1 a failure, 2 a usage error, 130 Ctrl-C.
    """
    try:
        return _route(sys.argv[1:], own_process=True) if argv is None else _route(argv)
    except KeyboardInterrupt:
        return INTERRUPTED


def _route(words: list[str], *, own_process: bool = False) -> int:
    if COMPLETION_VARIABLE not in os.environ:
        if words[:1] == ["serve"]:
            return _serve(words[1:])
        if not words or words in (["--help"], ["-h"], ["help"]):
            return _print_help()
        if words in (["version"], ["--version"], ["-V"]):
            return _print_version()
        if words[0] in COMPLETION_OPTIONS and len(words) <= 2:
            return _complete(*words)
    if own_process:
        from millstream.cli.pipeline import driver_restart

        driver_restart.allow()
    from millstream.cli.app import run

    return run(words)


def _serve(words: list[str]) -> int:
    from millstream.broker.main import serve_command

    return serve_command(words)


def _complete(option: str, shell: str | None = None) -> int:
    from millstream.cli.support.completion import run_option

    return run_option(option, shell)


def _print_help() -> int:
    from millstream.cli.commands import help_text

    print(help_text(), end="")
    return 0


def _print_version() -> int:
    from millstream import __version__

    print(f"millstream {__version__}")
    return 0
